"""Refuses checks inside ranks. The ranks import the test file, too, so a check at its top would
start ranks of its own, and so on for ever."""

import os

# The variable is set in all processes that distgrad's Python API starts.
IN_RANK = "DISTGRAD_IN_RANK"


def refuse_in_rank(name):
    """Raises RuntimeError in a rank."""
    if os.environ.get(IN_RANK):
        raise RuntimeError(f"distgrad.{name} was called in a rank, which imports the file that the"
                           " function is in: put the call into a test function, or under `if"
                           " __name__ == \"__main__\":`")
