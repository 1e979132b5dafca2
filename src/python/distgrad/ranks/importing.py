"""Imports the user's modules once, before ranks are forked. Importing a large package takes longer
than all that is done with it afterwards.

A child of the zygote tries it, and goes on as the zygote unless something that ranks need each for
itself, or that a fork would lose or share, came up: a module asked at import which rank it is or
whether torch.distributed is there; or there are threads, child processes, signal handlers, sockets,
shared memory, a GPU. Then, or if the import fails in any way, the child ends, and each rank imports
for itself as if nothing had been tried.

What a module prints and warns of at import is kept, so that each rank can repeat it.
"""

import contextlib
import os
import resource
import select
import signal
import sys

import torch
from torch.distributed import distributed_c10d

from . import adapters_loading, garbage, times, warned
from .process import (adopt_orphans, children, die_with_parent, end_children, limit_memory,
                      set_name)

_LIMIT_S = 900  # as long as the driver waits for the import of a rank
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_GOES_ON = b"y"
_OUTPUT_LIMIT = 64 << 10
_OF_RANKS = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}


def imported(places):
    """Forks a child that imports `places`. Returns True in the child if it may go on as the zygote;
    this process then waits for it and ends as it does. Returns False here if no child goes on."""
    parent = os.getpid()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        die_with_parent()
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)
        adopt_orphans()
        if not _import_all(places):
            end_children()
            os._exit(0)
        os.write(writer, _GOES_ON)
        os.close(writer)
        return True
    os.close(writer)
    in_time = bool(select.select([reader], [], [], _LIMIT_S)[0])
    if in_time and os.read(reader, 1) == _GOES_ON:
        _end_as(child)
    os.close(reader)
    end_children()  # the child, and what it started
    if not in_time:
        for place in places:
            adapters_loading.refused[place] = f"its import takes more than {_LIMIT_S} s"
    return False


def _end_as(child):
    set_name("dg waits")
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    _, status = os.waitpid(child, 0)
    end_children()
    if os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):  # SIGKILL has no other action
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _import_all(places):
    """Imports the modules and returns whether ranks may be forked from here now."""
    before = _Surroundings()
    with _limited_memory(), garbage.left_alone(for_good=True), times.spent_in("module"):
        for place in places:
            with _asking() as asked, _captured() as output, warned.caught() as warnings:
                try:
                    adapters_loading.load_module(place)
                except BaseException:
                    return False
            if asked:
                return False
            adapters_loading.imported[place] = output, warnings
    return not before.differences()


class _Surroundings:
    """Remembers what a fork does not copy, or leaves shared."""

    def __init__(self):
        self._threads = _threads()
        self._descriptors = _descriptors()
        self._memory = _shared_memory()
        self._handlers = _handlers()
        self._streams = sys.stdout, sys.stderr

    def differences(self):
        """Returns words for what is there now and was not before."""
        found = {
            "threads": _threads() - self._threads,
            "child processes": children(),
            "descriptors": _descriptors() - self._descriptors,
            "shared memory": _shared_memory() - self._memory,
            "signal handlers": _handlers() != self._handlers,
            "output": (sys.stdout, sys.stderr) != self._streams,
            "torch.distributed": distributed_c10d.is_initialized(),
        }
        return [words for words, is_there in found.items() if is_there]


def _threads():
    """Returns this process's threads except jemalloc's. jemalloc stops that one before a fork and
    restarts it after, on both sides."""
    found = set()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:
            if file.read() != "jemalloc_bg_thd\n":
                found.add(thread)
    return found


def _descriptors():
    """Returns the descriptors whose state is not this process's own. For a file that is only its
    offset, so files do not count."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            to = os.readlink(f"/proc/self/fd/{fd}")
            if to.startswith(("socket:", "pipe:", "anon_inode:", "/dev/nvidia")):
                found.add(to)
    return found


def _shared_memory():
    """Returns the addresses of memory that all forked processes would write to, and of the driver
    of a GPU, whose state no fork survives."""
    with open("/proc/self/maps") as file:
        lines = [line.split(maxsplit=5) for line in file]
    return {line[0] for line in lines
            if line[1].startswith("rw-s") or "libcuda.so" in line[-1]}


def _handlers():
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


@contextlib.contextmanager
def _asking():
    """Yields a list of what code asks for meanwhile that has another answer on a rank. torch's own
    modules have the world as a default of parameters; they may be imported before it is there."""
    asked = []
    world = distributed_c10d._WorldMeta.WORLD

    def get_world(cls):
        if not _is_torchs(sys._getframe(1)):
            asked.append("torch.distributed")
        return world.fget(cls)

    environ = os.environ
    missing = [environ.encodekey(name) for name in _OF_RANKS if name not in environ]
    environ._data.update(dict.fromkeys(missing, b"0"))  # so copies have them
    plain, environ.__class__ = type(environ), _environment_that_notes(asked)
    distributed_c10d._WorldMeta.WORLD = property(get_world, world.fset)
    try:
        yield asked
    finally:
        distributed_c10d._WorldMeta.WORLD = world
        environ.__class__ = plain
        for name in missing:
            environ._data.pop(name, None)


def _environment_that_notes(asked):
    """Returns a class for os.environ that adds to `asked`. Copying it, or looking through it for
    other names, asks nothing. Finding a rank's variable in the copy, or passing one to a process,
    does."""

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            if str.__eq__(self, other):
                asked.append(str(self))
            return str.__eq__(self, other)

        def encode(self, *arguments):
            asked.append(str(self))
            return str.encode(self, *arguments)

    class Environ(type(os.environ)):
        def __iter__(self):
            return (Name(name) if name in _OF_RANKS else name for name in super().__iter__())

        def __getitem__(self, name):
            return super().__getitem__(self._noted(name))

        def __contains__(self, name):
            return super().__contains__(self._noted(name))

        def __setitem__(self, name, value):
            super().__setitem__(self._noted(name), value)

        def _noted(self, name):
            if isinstance(name, Name):
                return "".join(name)
            if name in _OF_RANKS:
                asked.append(name)
            return name

    return Environ


def _is_torchs(frame):
    """Returns whether the module that asks is one of torch's."""
    while frame.f_code.co_filename == distributed_c10d.__file__:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_TORCH)


@contextlib.contextmanager
def _captured():
    """Yields a list that gets what was written to standard output and error, its last 64 KiB."""
    text = []
    streams = sys.stdout, sys.stderr
    kept = [os.dup(fd) for fd in (1, 2)]
    with os.fdopen(os.memfd_create("import"), "rb") as file:
        for fd in (1, 2):
            os.dup2(file.fileno(), fd)
        try:
            yield text
        finally:
            for stream in streams:
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            for fd, old in zip((1, 2), kept):
                os.dup2(old, fd)
                os.close(old)
            length = os.fstat(file.fileno()).st_size
            text.append(os.pread(file.fileno(), _OUTPUT_LIMIT, max(0, length - _OUTPUT_LIMIT))
                        .decode("utf-8", "replace"))


@contextlib.contextmanager
def _limited_memory():
    """Limits the memory to what the driver allows all ranks of a world together (--max-memory)."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = int(os.environ.get("DISTGRAD_MAX_MEMORY", 0))
    if allowed:
        limit_memory(allowed)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
