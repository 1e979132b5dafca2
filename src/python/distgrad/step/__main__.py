"""`python -m distgrad.step JSON`, as `distgrad step` calls it (src/cli/step_command.cpp)."""

import sys

from .command import main

sys.exit(main(sys.argv[1]))
