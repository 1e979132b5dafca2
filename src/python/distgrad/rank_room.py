"""Computes how many ranks that Python forks this machine can hold at all, as src/pool/rank_room
does for the driver's."""

import contextlib
import os
import resource

_MIB = 1 << 20
# Gloo starts three threads of its own in each rank: its device's and two that work.
_THREADS = 4
_USUAL_STACK = 2 * _MIB  # glibc's default if stacks are not limited


def why_no_room(ranks, groups=1, room=None):
    """Returns why so many ranks cannot be started, and the most that can; "" if nothing forbids it.
    In each of `groups` a rank is connected with all others. `room` is (bytes of memory, bytes of a
    stack, descriptors of a process, tasks), by default this machine's; 0 means not limited.

    Counts only what each rank needs before its first collective."""
    memory, stack, descriptors, tasks = room or _room()
    stacks = _THREADS * stack
    limits = [(memory // (stacks + 1), f"the stacks of a rank's threads take {stacks // _MIB} MiB,"
               f" and there are {memory // _MIB} MiB of memory") if memory else None,
              (descriptors // groups + 1, f"a rank has {groups} connection{'s' * (groups > 1)} to"
               f" each other, and a process may have {descriptors} (ulimit -Hn)")
              if descriptors else None,
              (tasks // _THREADS, f"each has {_THREADS} threads, and there may be {tasks}")
              if tasks else None]
    most, why = min(filter(None, limits), default=(ranks, ""))
    if ranks < 2 or ranks <= most:  # one rank is connected with nobody
        return ""
    return f"{ranks} ranks are more than this machine has room for, {max(most, 1)} at most: {why}"


def _room():
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, of_user = resource.getrlimit(resource.RLIMIT_NPROC)  # does not hold for root
    allowed = [_number_in("/sys/fs/cgroup/pids.max"),
               0 if os.geteuid() == 0 else _limited(of_user)]
    return (int(os.environ.get("DISTGRAD_MAX_MEMORY", 0)) or _usual_memory(),
            _limited(stack) or _USUAL_STACK, _limited(descriptors),
            min(filter(None, allowed), default=0))


def _limited(value):
    return 0 if value == resource.RLIM_INFINITY else value


def _usual_memory():
    """Returns nine tenths of the memory, in bytes, of this machine or of the process's control
    group."""
    groups = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(filter(None, [total, *map(_number_in, groups)])) // 10 * 9


def _number_in(path):
    """Returns the number in the file, or 0 if there is no file or no limit."""
    with contextlib.suppress(OSError, ValueError):
        with open(path) as file:
            return int(file.read())
    return 0
