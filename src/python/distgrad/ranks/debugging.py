"""A debugger on a rank: breakpoint() and pdb.set_trace() in the user's code talk to the terminal
that distgrad runs in.

A rank's standard input is /dev/null, its output a file, and its session has no terminal; so the
driver's is opened by its name. Ranks that stop at the same time take turns at every prompt: one
that steps over a collective lets the others come to theirs.
"""

import contextlib
import fcntl
import os
import pdb
import re
import sys


_is_silent = False


@contextlib.contextmanager
def silent():
    """No breakpoint stops: for the runs of a case that its user has not asked for."""
    global _is_silent
    _is_silent = True
    try:
        yield
    finally:
        _is_silent = False


def install(rank, world_size):
    """For this process. PYTHONBREAKPOINT, where set, goes on to say what breakpoint() does."""

    def stop(*, header=None, **_):
        if _is_silent:
            return
        _RankPdb(f"(Pdb rank {rank} of {world_size}) ", header).set_trace(sys._getframe(1))

    pdb.set_trace = stop
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = stop


class _RankPdb(pdb.Pdb):
    def __init__(self, prompt, header):
        self._file = _terminal()
        super().__init__(stdin=open(self._file, closefd=False),
                         stdout=open(self._file, "w", closefd=False), nosigint=True)
        self.prompt = prompt
        self._header = header

    def interaction(self, *arguments, **options):
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            if self._header:
                self.message(self._header)
                self._header = None
            super().interaction(*arguments, **options)
            self.stdout.flush()
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _terminal():
    """A descriptor of the driver's terminal. The driver is the parent of the process that forked
    this one."""
    for fd in range(3):
        try:
            path = os.readlink(f"/proc/{_parent(os.getppid())}/fd/{fd}")
            opened = os.open(path, os.O_RDWR | os.O_NOCTTY) if path.startswith("/dev/") else -1
        except OSError:
            continue
        if opened >= 0 and os.isatty(opened):
            return opened
        if opened >= 0:
            os.close(opened)
    raise RuntimeError("breakpoint: distgrad runs without a terminal, so there is none to debug in")


def _parent(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"^PPid:\s*(\d+)", file.read(), re.MULTILINE)[1])
