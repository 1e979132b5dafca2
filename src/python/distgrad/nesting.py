"""A test file is imported in the ranks, too: a check at its top would start ranks of its own, and
so on for ever."""

import os

# Set in the environment of all processes that distgrad's Python API starts
IN_RANK = "DISTGRAD_IN_RANK"


def refuse_in_rank(name):
    """Raises RuntimeError in a rank."""
    if os.environ.get(IN_RANK):
        raise RuntimeError(f"distgrad.{name} was called in a rank, which imports the file that the"
                           " function is in: put the call into a test function, or under `if"
                           " __name__ == \"__main__\":`")
