"""Connects breakpoint() and pdb.set_trace() in the user's code on a rank to the terminal that
distgrad runs in.

A rank's standard input is /dev/null, its output is a file, and its session has no terminal. So it
opens the driver's terminal by name. Ranks that stop at the same time take turns at every prompt: a
rank that steps over a collective lets the others reach theirs.
"""

import contextlib
import fcntl
import os
import pdb
import re
import sys


_is_silent = False
_prompt = ""


@contextlib.contextmanager
def silent():
    """Makes breakpoints do nothing, for runs of a case that the user has not asked for."""
    global _is_silent
    _is_silent = True
    try:
        yield
    finally:
        _is_silent = False


def install():
    """Replaces pdb.set_trace and breakpoint(). Call it before a user's module binds them to a name
    of its own. If PYTHONBREAKPOINT is set, it still decides what breakpoint() does."""
    pdb.set_trace = _stop
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = _stop


def stop_as(rank, world_size):
    """Makes breakpoints stop from now on, with the rank and world size in the prompt."""
    global _prompt
    _prompt = f"(Pdb rank {rank} of {world_size}) "


def _stop(*, header=None, **_):
    if _is_silent:
        return
    if not _prompt:
        raise RuntimeError("breakpoint: this process is no rank")
    _RankPdb(_prompt, header).set_trace(sys._getframe(1))


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
    """Returns a descriptor of the driver's terminal, which is that of the nearest ancestor that has
    one. Raises RuntimeError if there is none."""
    process = os.getppid()
    while process > 1:
        for fd in range(3):
            try:
                path = os.readlink(f"/proc/{process}/fd/{fd}")
                opened = os.open(path, os.O_RDWR | os.O_NOCTTY) if path.startswith("/dev/") else -1
            except OSError:
                continue
            if opened >= 0 and os.isatty(opened):
                return opened
            if opened >= 0:
                os.close(opened)
        process = _parent(process)
    raise RuntimeError("breakpoint: distgrad runs without a terminal, so there is none to debug in")


def _parent(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"^PPid:\s*(\d+)", file.read(), re.MULTILINE)[1])
