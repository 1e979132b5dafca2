"""Detects processes that wait for each other for ever: nothing of them runs, and each is inside
torch.distributed."""

import os
import re
import time

_EVERY_S = 0.25
_STILL_S = 5.0  # of no movement
_POLLING = 0.02  # of a core: Gloo's event loop, which looks every few milliseconds, takes 0.004
_TICK_NS = 10e6
_FRAME = re.compile(r'File "(.*)", line \d+ in (\w+)')
_INSIDE = ("wrapper", "wait", "_wait")  # names that do not tell the collective


class Stillness:
    def __init__(self):
        self._looked_at, self._since, self._first = 0.0, 0.0, None

    def lasts(self, pids):
        """Returns whether the main threads of these processes have neither run nor wanted to for a
        while, and their other threads have run no more than one that polls, such as Gloo's event
        loop. Call it again and again."""
        now = time.monotonic()
        if now - self._looked_at < _EVERY_S:
            return False
        self._looked_at = now
        sample = {pid: times_of(pid) for pid in pids}
        if not is_still(self._first, sample, now - self._since):
            self._since, self._first = now, sample
            return False
        if now - self._since < _STILL_S:
            return False
        self._first = None  # starts over for the next answer
        return True


def is_still(first, sample, seconds, polling=_POLLING):
    """Returns whether nothing of these processes ran between two samples, {pid: times_of(pid)},
    that were taken `seconds` apart. `polling` is the fraction of a core that other threads may
    take."""
    if first is None or None in sample.values() or first.keys() != sample.keys():
        return False
    for pid, (main, others) in sample.items():
        main_before, others_before = first[pid] or (None, {})
        moved_ns = sum(others.values()) - sum(others_before.values())
        if main != main_before or others.keys() != others_before.keys() or (
                moved_ns > _TICK_NS + polling * seconds * 1e9):
            return False
    return True


def times_of(pid):
    """Returns (the main thread's (nanoseconds running, nanoseconds waiting for a core, times it got
    one), {other thread: nanoseconds running}). Returns None if the main thread is not asleep, or
    the kernel says nothing."""
    others = {}
    try:
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] != "S":
                return None
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                times = tuple(map(int, file.read().split()))
            if thread == str(pid):
                main = times
            else:
                others[thread] = times[0]
    except OSError:
        return None
    return main, others


def collective_of(stack):
    """Returns the function of torch.distributed that the innermost call of a stack is in, such as
    "all_reduce"; "" if it is in something else."""
    name = ""
    for path, function in _FRAME.findall(stack):
        if "/torch/distributed/" not in path:
            break
        if function not in _INSIDE:
            name = function
    return name
