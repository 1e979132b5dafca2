"""Runs the zygote. It loads torch once and forks a rank whenever the driver asks, so a rank starts
in milliseconds.

It starts no thread and runs no autograd, since neither survives a fork. The user's code is imported
in the ranks, or once in a process that goes on as the zygote (importing.py).
"""

import importlib
import os
import resource
import select
import signal
import sys

from . import garbage, times
from .process import adopt_orphans, die_with_parent, end_children, kill_group, set_group, set_name


class Zygote:
    """Serves the control socket `fd` until it ends or SIGTERM comes. By then all ranks are dead and
    waited for."""

    def __init__(self, fd):
        from .frames import Channel  # which imports torch

        os.set_inheritable(fd, False)
        self._pid = os.getpid()
        self._control = Channel(fd)
        self._workers = {}  # pid -> the driver's number
        self._asked_to_end = False
        self._wake_reader, self._wake_writer = os.pipe()
        for end in (self._wake_reader, self._wake_writer):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the byte in the pipe says it all
        signal.signal(signal.SIGTERM, self._end)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)

    def serve(self, torch_version):
        """Returns in a forked rank what it is to be: be_worker's arguments. Returns None in the
        zygote when nothing more is to be forked."""
        self._say(kind="ready", protocol=1, torch=torch_version)
        try:
            while not self._asked_to_end:
                ready, _, _ = select.select([self._control, self._wake_reader], [], [])
                if self._wake_reader in ready:
                    self._reap()
                if self._control in ready:
                    ended = self._control.receive(wait=False) is None
                    start = self._obey()
                    if start is not None:
                        return start
                    if ended:
                        break
        except OSError:  # the driver is gone
            pass
        self._kill_all()
        return None

    def _say(self, **event):
        from .frames import FrameWriter

        self._control.send(FrameWriter().frame(event))

    def _end(self, *_):
        self._asked_to_end = True

    def _obey(self):
        while (frame := self._control.next()) is not None:
            request = frame.header
            if request["kind"] == "fork":
                start = self._fork(request, frame.descriptors)
                if start is not None:
                    return start
            elif request["kind"] == "kill":
                self._kill(request["worker"])
        return None

    def _fork(self, request, descriptors):
        worker = request["worker"]
        refusal = None
        if len(descriptors) != 3:
            refusal = "a request to fork came without its descriptors"
        elif request["role"] not in ("rank", "simulator"):
            refusal = f"a {request['role']} is no role of the rank program in Python"
        if refusal is None:
            try:
                pid = os.fork()
            except OSError as error:
                refusal = f"fork: {error.strerror}"
        if refusal is not None:
            self._say(kind="fork_failed", worker=worker, message=refusal)
        elif pid == 0:
            self._become_worker()
            return (request["role"], request["rank"], request["world_size"], *descriptors)
        else:
            set_group(pid)  # both sides do it, so it is done whichever runs first
            self._workers[pid] = worker
            self._say(kind="forked", worker=worker, pid=pid)
        for fd in descriptors:
            os.close(fd)
        return None

    def _become_worker(self):
        die_with_parent()
        if os.getppid() != self._pid:  # the zygote died before the line above
            os._exit(1)
        set_group(0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._control.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _kill(self, worker):
        for pid, name in self._workers.items():
            if name == worker:
                kill_group(pid)  # not reaped yet, so the number is still the worker's

    def _reap(self):
        """Reports every worker that has ended, and ends what it left behind."""
        try:
            while os.read(self._wake_reader, 4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            kill_group(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            worker = self._workers.pop(ended.si_pid, None)
            if worker is not None:
                self._say(kind="exited", worker=worker, wait_status=status)

    def _kill_all(self):
        for pid in self._workers:
            kill_group(pid)
        end_children()


def main(arguments):
    preload, places = "", []
    while len(arguments) > 2 and arguments[0] in ("--preload", "--import"):
        if arguments[0] == "--preload":
            preload = arguments[1]
        else:
            places.append(arguments[1])
        arguments = arguments[2:]
    if len(arguments) != 2 or arguments[0] != "--zygote" or not arguments[1].isdigit():
        print("usage: python -m distgrad.ranks [--preload MODULES] [--import PLACE]... --zygote FD"
              " (distgrad starts this itself)", file=sys.stderr)
        return 2
    set_name("dg zygote")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["OMP_NUM_THREADS"] = "1"  # also, a pool of threads would not survive the fork
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    adopt_orphans()
    torch, worker = _load(preload)
    times.write()
    if places:
        from .importing import imported

        worker.set_up()
        if imported(places):
            times.write()
    start = Zygote(int(arguments[1])).serve(torch.__version__)
    if start is not None:
        times.forget()
        worker.be_worker(*start)
    return 0


def _load(preload):
    """Loads torch, and with the worker all that every rank needs. `preload` names more of torch's
    modules."""
    times.note_interpreter()
    with times.spent_in("torch"), garbage.left_alone(for_good=True):
        import torch

        from . import worker

        for module in filter(None, preload.split(",")):
            try:
                importlib.import_module(module)
            except ImportError:  # another torch lacks it: the ranks import what they need
                pass
    return torch, worker
