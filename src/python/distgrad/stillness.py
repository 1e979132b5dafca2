"""Whether processes wait for each other for ever: nothing of them runs, and each is inside
torch.distributed."""

import os
import re
import time

_EVERY_S = 0.25
_STILL_S = 5.0  # that nothing moves
_POLLING = 0.02  # of a core: Gloo's event loop, which looks every few milliseconds, takes 0.004
_TICK_NS = 10e6
_FRAME = re.compile(r'File "(.*)", line \d+ in (\w+)')
_INSIDE = ("wrapper", "wait", "_wait")  # that say nothing of which collective it is


class Stillness:
    def __init__(self):
        self._looked_at, self._since, self._first = 0.0, 0.0, None

    def lasts(self, pids):
        """Whether the main threads of these processes have neither run nor wanted to for a while,
        and their other threads no more than one that polls does, as Gloo's event loop; to be asked
        again and again."""
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
        self._first = None  # and again after as long
        return True


def is_still(first, sample, seconds, polling=_POLLING):
    """Whether nothing of these processes ran between two samples, {pid: times_of(pid)}, that were
    taken so many seconds apart. polling: of a core, that other threads may take."""
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
    """The main thread's (nanoseconds that it ran, that it waited for a core, how often it was put
    on one), and those that each other thread ran; None where it runs or is to, or the kernel says
    nothing."""
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
    """What of torch.distributed the innermost call of a stack is in: "all_reduce"; empty where it
    is in something else."""
    name = ""
    for path, function in _FRAME.findall(stack):
        if "/torch/distributed/" not in path:
            break
        if function not in _INSIDE:
            name = function
    return name
