"""How a process stands to the kernel: its name, its end, its place among others."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def die_with_parent():
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def set_name(name):
    """What ps shows; its first 15 characters."""
    _prctl(_PR_SET_NAME, name.encode())


def wait_for_a_free_core():
    """A woken thread takes no core from the one that wakes it, so that Gloo's threads do not spin on each other's locks."""
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):
        pass  # all works, slower


def _prctl(option, value):
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
