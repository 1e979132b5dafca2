"""The processes of check_step: one that imports torch and forks the ranks and the single run, and those.

It is a fresh interpreter, since a process that has run autograd (a test's, for one) cannot be forked: autograd's threads would be
missing. Functions come by distgrad.transport, and users' modules are imported after the fork.

In its folder it finds `request`, and leaves the gradients in the folders `ranks` and `single`, as save_gradients writes them; for each
process NAME (`rank-0`, ..., `single`) NAME.done or NAME.error, a traceback; NAME.out, what it printed; NAME.stack, where it hung.
`outcome` is the list of failures, in JSON.
"""

import contextlib
import datetime
import faulthandler
import inspect
import json
import os
import pickle
import random
import signal
import sys
import time
import traceback
from collections.abc import Mapping

from . import saving, transport
from .ranks.process import die_with_parent
from .watching import Watch

_POLL_S = 0.005
_GRACE_S = 0.5  # for the other ranks' errors, once one has failed
_STACK_S = 0.3
SINGLE = "single"


def main(folder, parent):
    die_with_parent()
    if os.getppid() != int(parent):
        return
    with open(os.path.join(folder, "request"), "rb") as file:
        request = pickle.load(file)
    import torch  # noqa: F401: once, for all that are forked
    import torch.distributed  # noqa: F401

    _Nursery(folder, request).run()


class _Nursery:
    """Forks, watches, and ends. No process that it forked is left when run() is through."""

    def __init__(self, folder, request):
        self._folder = folder
        self._request = request
        self._processes = {}  # pid -> name, of those alive
        self._failures = []

    def run(self):
        names = [f"rank-{rank}" for rank in range(self._request["world_size"])]
        names += [SINGLE] if self._request["single"] is not None else []
        gate, self._gate_end = os.pipe()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        try:
            for name in names:
                self._fork(name, gate)
            self._watch(names)
        finally:
            self._kill()
        with open(self._path("outcome"), "w") as file:
            json.dump(self._failures, file)

    def _fork(self, name, gate):
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.close(self._gate_end)
                _be(name, self._folder, self._request, gate, parent)
            finally:
                os._exit(1)
        with contextlib.suppress(OSError):  # the child does it too, and may have ended
            os.setpgid(pid, pid)
        self._processes[pid] = name

    def _watch(self, names):
        """Until all are done, or a while after the first failure, or too late."""
        waiting = set(names)
        end = time.monotonic() + self._request["timeout_s"]
        while waiting and time.monotonic() < end:
            dead = self._reap()
            for name in sorted(waiting):
                if os.path.exists(self._path(name + ".error")):
                    self._fail(name, "exception", self._text(name + ".error"))
                elif name in dead and not os.path.exists(self._path(name + ".done")):
                    self._fail(name, "crash", _status_text(dead[name]))
                elif not os.path.exists(self._path(name + ".done")):
                    continue
                waiting.discard(name)
            if len(self._failures) == 1:
                end = min(end, time.monotonic() + _GRACE_S)
            time.sleep(_POLL_S)
        if waiting and not self._failures:
            self._tell_hang(waiting)

    def _tell_hang(self, names):
        for pid, name in self._processes.items():
            if name in names:
                os.kill(pid, signal.SIGUSR1)
        time.sleep(_STACK_S)
        for name in sorted(names):
            self._fail(name, "hang", "\n".join(line for line in self._text(name + ".stack").split("\n") if _is_told(line)))

    def _reap(self):
        dead = {}
        for pid in list(self._processes):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                dead[self._processes.pop(pid)] = status
                _kill_group(pid)  # what it started
        return dead

    def _kill(self):
        for pid in self._processes:
            _kill_group(pid)
        for pid in self._processes:
            os.waitpid(pid, 0)
        self._processes.clear()

    def _fail(self, name, kind, text):
        self._failures.append({"process": name, "kind": kind, "text": text, "output": self._text(name + ".out")[-4096:]})

    def _path(self, name):
        return os.path.join(self._folder, name)

    def _text(self, name):
        try:
            with open(self._path(name), errors="replace") as file:
                return file.read().strip()
        except FileNotFoundError:
            return ""


def _is_told(line):
    """Of a line of a stack: whether it is the user's or torch's."""
    return f'"{__file__}"' not in line and 'File "<string>"' not in line


def _kill_group(pid):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _status_text(status):
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with exit status {os.waitstatus_to_exitcode(status)}"


def _be(name, folder, request, gate, parent):
    """A rank, or the single run. Never returns."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(0)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what Ctrl-C means is the caller's decision
    path = os.path.join(folder, name)
    output = os.open(path + ".out", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    stack = open(path + ".stack", "w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    try:
        _run_and_save(name, folder, request)
        open(path + ".done", "w").close()
    except BaseException as error:  # SystemExit too
        with open(path + ".error~", "w") as file:
            file.write(_traceback(error))
        os.rename(path + ".error~", path + ".error")
    sys.stdout.flush()
    sys.stderr.flush()
    os.read(gate, 1)  # others may still need this end of their connections
    os._exit(0)


def _traceback(error):
    here = os.path.dirname(os.path.abspath(__file__))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(here)]
    lines = ["Traceback (most recent call last):\n"] + traceback.format_list(frames) if frames else []
    return "".join(lines + traceback.format_exception_only(type(error), error))


def _run_and_save(name, folder, request):
    import torch

    rank = None if name == SINGLE else int(name.rpartition("-")[2])
    torch.set_num_threads(1)
    random.seed(request["seed"])
    torch.manual_seed(request["seed"])
    watch, tracing = Watch(), _tracing(name, folder, request)
    if rank is not None:
        _join_group(rank, folder, request)
        watch.start()
    if tracing:
        tracing.start()
    function = transport.loads(request["single" if rank is None else "parallel"])
    torch.manual_seed(request["seed"])  # importing the user's module may have drawn
    found = _call(function, rank, request["world_size"])
    if not isinstance(found, Mapping):
        raise TypeError(f"{name}: the function returned a {type(found).__name__}; it is to return {{parameter: gradient}}")
    reached = sum(gradient is not None for gradient in found.values())
    saving.save(found, os.path.join(folder, SINGLE if rank is None else "ranks"), **watch.described(reached))
    if tracing:
        tracing.finish(found)


def _tracing(name, folder, request):
    """Of the second run, after a mismatch; else None."""
    if "wrong" not in request:
        return None
    from .tracing.watched import watched

    return watched(name, folder, request, SINGLE)


def _join_group(rank, folder, request):
    import torch
    import torch.distributed as dist

    # Where nothing else is said the ranks talk over loopback; as under torchrun for the user's code that looks.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(request["world_size"]),
                      LOCAL_WORLD_SIZE=str(request["world_size"]))
    if "nccl" in request["backend"]:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    store = dist.FileStore(os.path.join(folder, "store"), request["world_size"])
    # The time-out of the check comes first.
    timeout = datetime.timedelta(seconds=request["timeout_s"] + 60)
    dist.init_process_group(request["backend"], store=store, rank=rank, world_size=request["world_size"], timeout=timeout)


def _call(function, rank, world_size):
    offered = {} if rank is None else {"rank": rank, "world_size": world_size}
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        parameters = {}
    return function(**{name: value for name, value in offered.items() if name in parameters})
