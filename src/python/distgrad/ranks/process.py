"""What Python has no function for: prctl."""

import ctypes
import signal

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def die_with_parent():
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def set_name(name):
    """What ps shows; its first 15 characters."""
    _prctl(_PR_SET_NAME, name.encode())


def _prctl(option, value):
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
