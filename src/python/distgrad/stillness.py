"""Whether processes wait for each other for ever: none of their threads runs, and each is inside
torch.distributed."""

import os
import re
import time

_EVERY_S = 0.25
_STILL_S = 5.0  # that nothing moves
_FRAME = re.compile(r'File "(.*)", line \d+ in (\w+)')
_INSIDE = ("wrapper", "wait", "_wait")  # that say nothing of which collective it is


class Stillness:
    def __init__(self):
        self._looked_at, self._since, self._before = 0.0, None, None

    def lasts(self, pids):
        """Whether no thread of these processes has run, nor wanted to, for a while; to be asked
        again and again."""
        now = time.monotonic()
        if now - self._looked_at < _EVERY_S:
            return False
        self._looked_at = now
        threads = [_threads_of(pid) for pid in sorted(pids)]
        is_still = None not in threads and threads == self._before
        self._before = threads
        if not is_still:
            self._since = None
            return False
        self._since = self._since or now
        if now - self._since < _STILL_S:
            return False
        self._since = None  # and again after as long
        return True


def _threads_of(pid):
    """(thread, the time that it has run) of all; None where one runs, or is to, or cannot be looked
    at."""
    found = []
    try:
        for thread in sorted(os.listdir(f"/proc/{pid}/task")):
            folder = f"/proc/{pid}/task/{thread}"
            with open(folder + "/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            if fields[0] != "S":
                return None
            found.append((thread, fields[11], fields[12]))
    except OSError:
        return None
    return found


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
