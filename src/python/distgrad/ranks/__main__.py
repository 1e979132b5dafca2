"""The rank program: `python -m distgrad.ranks --zygote FD`, or this file by its path.
`--functions`: see finding.py."""

import os
import sys

if __name__ == "__main__" and not __package__:
    # When this file is started by path, the package goes to the end of the search path, so that
    # none of our modules hides one of the user's.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != here]
    sys.path.append(os.path.dirname(os.path.dirname(here)))
    __package__ = "distgrad.ranks"

if sys.argv[1:2] == ["--functions"]:
    from distgrad.ranks.finding import main

    sys.exit(main(sys.argv[2:]))

from distgrad.ranks.zygote import main

sys.exit(main(sys.argv[1:]))
