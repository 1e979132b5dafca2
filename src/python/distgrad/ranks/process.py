"""Sets what the kernel knows of a process: its name, its end, its children and its limits."""

import contextlib
import ctypes
import os
import resource
import signal

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_DESCRIPTORS = 1 << 16  # some programs visit every possible descriptor
_GENERATIONS = 100  # after so many rounds, children that fork faster than they die are left


def die_with_parent():
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def adopt_orphans():
    """Makes this process the parent of orphans, so that what code under test starts in its own
    session can be ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_children(kept=()):
    """Kills all children but `kept` and waits for them, and for what they leave behind in turn."""
    for _ in range(_GENERATIONS):
        found = set(children()).difference(kept)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def children():
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    found.append(int(name))
    return found


def set_group(pid):
    """Gives the process its own process group, with which it is killed. Parent and child both call
    it, so it is done whichever runs first."""
    with contextlib.suppress(OSError):  # the process has ended already
        os.setpgid(pid, pid)


def kill_group(pid):
    """Kills the process group: a process that called set_group and what it started in the same
    group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def limit_memory(allowed):
    """Limits data memory to `allowed` bytes more than there are now. The limit may be raised
    again."""
    with open("/proc/self/status") as file:
        held = 1024 * next(int(line.split()[1]) for line in file if line.startswith("VmData:"))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = held + allowed if most == resource.RLIM_INFINITY else min(held + allowed, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def raise_descriptor_limit():
    """Raises the limit as the driver does for its ranks, since a rank is connected with all."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _DESCRIPTORS)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def set_name(name):
    """Sets the name that ps shows, its first 15 characters."""
    _prctl(_PR_SET_NAME, name.encode())


def wait_for_a_free_core():
    """Keeps a woken thread from taking the core of the one that wakes it, so that Gloo's threads do
    not spin on each other's locks."""
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):
        pass  # everything works without it, only slower


def _prctl(option, value):
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
