"""Finds where in the user's code something happens."""

import functools
import os
import sys
import traceback

import torch

from . import evaluating
from .long_text import cut

_LOOKED_THROUGH = 1 << 18  # characters; a regular expression takes 0.1 s for them
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.py")
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def place():
    """Returns the line of the user's code that is running, "layer.py:12"."""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
        if file == _PROGRAM and evaluating.is_on:
            return "an expression"
        if is_users(file):
            return f"{os.path.basename(file)}:{line}"
    return "a library"


@functools.lru_cache(maxsize=None)  # Each frame of each collective asks.
def is_users(file):
    """Returns whether a frame's file is of the user's code, or of a package that is not torch."""
    file = os.path.abspath(file)
    library = os.sep + "lib" + os.sep + "python" in file and "-packages" + os.sep not in file
    return not library and not file.startswith((_HERE, TORCH))


def words_of(error):
    """Returns an exception's text, or the line that raised one without text: `assert x.is_cuda`."""
    frames = traceback.extract_tb(error.__traceback__)
    return str(error) or (frames[-1].line if frames else None) or ""


def begin_and_end_of(error):
    """Returns the begin and end of an exception's words, so that matching a long text stays
    fast."""
    return cut(words_of(error), _LOOKED_THROUGH)
