"""Reports where a rank's time goes, for `distgrad run --verbose`, as lines appended to the file
that DISTGRAD_TIMES names.

A line is "PROCESS PHASE NANOSECONDS": what the process has spent in a phase up to now, so the last
line of each counts. Without the variable nothing is written. Failing to write is ignored.
"""

import contextlib
import os
import time

_spent = {}  # phase -> nanoseconds, of this process
_running = []  # phases that have begun, outermost first


@contextlib.contextmanager
def spent_in(phase):
    """Counts the block's time for a phase: interpreter, torch, module, connect or case. The time of
    a phase inside does not count for the outer one."""
    began = time.monotonic_ns()
    _running.append(phase)
    try:
        yield
    finally:
        _running.pop()
        elapsed = time.monotonic_ns() - began
        _spent[phase] = _spent.get(phase, 0) + elapsed
        if _running:
            _spent[_running[-1]] = _spent.get(_running[-1], 0) - elapsed


def note_interpreter():
    """Counts the time from the start of the process until now, in steps of 10 ms as Linux reports
    it."""
    with open("/proc/self/stat") as file:
        started = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    _spent["interpreter"] = int((time.clock_gettime(time.CLOCK_BOOTTIME) - started) * 1e9)


def forget():
    """Forgets the times before a fork, which are the parent's."""
    _spent.clear()
    _running.clear()


def write():
    path = os.environ.get("DISTGRAD_TIMES")
    if not path:
        return
    try:
        with open(path, "a") as file:
            file.write("".join(f"{os.getpid()} {phase} {ns}\n" for phase, ns in _spent.items()))
    except OSError:
        pass
