"""Forks processes that each do some work in a folder, watches them, and ends them with all that
they started.

In the folder, each process NAME leaves NAME.done once it has finished, or NAME.error, a traceback.
NAME.stack tells where it hung or died. NAME.calls tells which collective it is in, if its work
notes that (blame.py).
"""

import datetime
import faulthandler
import fcntl
import os
import signal
import sys
import time
import traceback

from . import blame
from .ranks.long_text import cut
from .ranks.printed import print_into
from .ranks.process import (adopt_orphans, children, die_with_parent, end_children, kill_group,
                            raise_descriptor_limit, set_group)
from .stillness import Stillness, collective_of

_POLL_S = 0.005
_STACK_S = 0.3
_F_ADD_SEALS, _SIZE_SEALS = 1033, 0x2 | 0x4  # of linux/fcntl.h; Python's may lack them
_OUTPUT_BYTES, _TOLD_BYTES = 64 << 20, 64 << 10  # of all runs of a check
_STACK_BEGIN = "(most recent call first):"
_ENDING = (signal.SIGTERM, signal.SIGINT)


class ChildProcesses:
    """Forks, watches and ends processes. None that it forked is left when run() returns.

    `work(name)` runs in each process. `enough` names those that count, None for all: if another one
    dies, those notice it themselves.
    `together` names those that wait for each other: if all that are left do so and nothing moves,
    they hang.
    `apart` says that processes elsewhere may still need these, even if they hang: run() calls
    apart() with what it will return, and waits for SIGTERM unless a process raised or died. A file
    `late` in the folder means that the time is over.
    `grace_s` is the time for the others, in seconds, once one that counts has failed, any has
    raised, or all that count are done. `on_turn` is called again and again meanwhile."""

    def __init__(self, folder, names, timeout_s, work, enough=None, grace_s=0.5, together=(),
                 apart=None, on_turn=lambda: None):
        self._folder, self._names, self._timeout_s = folder, names, timeout_s
        self._work, self._grace_s = work, grace_s
        self._apart, self._on_turn = apart, on_turn
        self._together, self._stillness = set(together), Stillness()
        self._enough = set(names if enough is None else enough)
        self._processes = {}  # pid -> name, of those alive
        self._failures = []
        self._ended_by = None  # the signal that ends the run
        self._outputs = {name: _output_file() for name in names}

    def run(self):
        """Runs the processes and returns what failed: [{"process", "kind": "exception", "crash" or
        "hang", "text", "output", "noted" (blame.py)}]. Entries of kind "unfinished" or "finished"
        follow and tell where those are that they wait for."""
        adopt_orphans()
        others = children()
        gate, self._gate_end = os.pipe()
        raise_descriptor_limit()
        for number in _ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._exit_once)
        try:
            for name in self._names:
                self._fork(name, gate)
                self._turn()
            self._watch()
            if self._apart:
                self._apart(self._failures)
            while self._apart and all(failure["kind"] == "hang" for failure in self._failures):
                self._turn()
                time.sleep(_POLL_S)
        finally:
            self._kill()
            end_children(others)  # what was started in a session of its own
        return self._failures

    def output_of(self, name):
        """Returns the end of what the process printed."""
        file = self._outputs[name]
        end = os.lseek(file, 0, os.SEEK_CUR)
        begin = max(0, end - _TOLD_BYTES)
        return os.pread(file, end - begin, begin).decode(errors="replace").strip()

    def _fork(self, name, gate):
        parent = os.getpid()
        # Python drops and prints what a handler raises in its hooks around a fork. If another
        # thread gets the signal, that still happens: see _turn().
        allowed = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                # The caller decides what Ctrl-C means.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.pthread_sigmask(signal.SIG_SETMASK, allowed)
                for other in {self._gate_end, *self._outputs.values()} - {self._outputs[name]}:
                    os.close(other)
                _be(name, self._folder, self._work, gate, parent, self._outputs[name])
            finally:
                os._exit(1)
        set_group(pid)
        self._processes[pid] = name
        signal.pthread_sigmask(signal.SIG_SETMASK, allowed)

    def _exit_once(self, number, _):
        """Exits at the first signal. A second one does not interrupt the ending of the
        processes."""
        self._ended_by = number
        for ending in _ENDING:
            signal.signal(ending, signal.SIG_IGN)
        sys.exit(128 + number)

    def _turn(self):
        if self._ended_by:
            sys.exit(128 + self._ended_by)
        self._on_turn()

    def _watch(self):
        """Watches until all are done, or a while after the first failure, or the time is over."""
        waiting, is_ending = set(self._names), False
        begin = time.monotonic()
        end = begin + self._timeout_s
        while waiting and time.monotonic() < end and not (self._apart
                                                          and os.path.exists(self._path("late"))):
            dead = self._reap()
            for name in sorted(waiting):
                if os.path.exists(self._path(name + ".error")):
                    self._fail(name, "exception", self._text(name + ".error"))
                elif name in dead and not os.path.exists(self._path(name + ".done")):
                    self._fail(name, "crash", _status_text(dead[name]))
                    self._failures[-1]["stack"] = self._stack(name)
                elif not os.path.exists(self._path(name + ".done")):
                    continue
                waiting.discard(name)
            if not is_ending and (self._enough.isdisjoint(waiting)
                                  or any(map(self._ends_all, self._failures))):
                is_ending, end = True, min(end, time.monotonic() + self._grace_s)
            if not self._failures and self._is_stuck(waiting & self._together):
                waiting &= self._together
                break
            self._turn()
            time.sleep(_POLL_S)
        if waiting & self._enough and not self._failures:
            self._report_hang(waiting, time.monotonic() - begin)
        if self._failures:
            self._report_others(waiting)

    def _report_others(self, waiting):
        """Reports where those are that wait for a process that failed."""
        failed = {failure["process"] for failure in self._failures}
        others = self._together - failed
        if others & waiting:
            self._dump_stacks(others & waiting)
        for name in sorted(others):
            self._fail(name, "unfinished" if name in waiting else "finished",
                       self._stack(name) if name in waiting else "")

    def _ends_all(self, failure):
        return failure["kind"] == "exception" or failure["process"] in self._enough

    def _is_stuck(self, names):
        pids = [pid for pid, name in self._processes.items() if name in names]
        if not names or len(pids) < len(names) or not self._stillness.lasts(pids):
            return False
        self._dump_stacks(names)
        return all(collective_of(self._stack(name)) for name in names)

    def _report_hang(self, names, seconds):
        self._dump_stacks(names)
        finished = sorted(
            name for name in self._together - names if os.path.exists(self._path(name + ".done")))
        for name in sorted(names):
            stack, collective = self._stack(name), collective_of(self._stack(name))
            self._fail(name, "hang", stack)
            self._failures[-1].update(seconds=seconds, collective=collective, finished=finished)

    def _dump_stacks(self, names):
        for pid, name in self._processes.items():
            if name in names:
                os.kill(pid, signal.SIGUSR1)
        time.sleep(_STACK_S)

    def _stack(self, name):
        """Returns the last dumped stack of the main thread."""
        last = self._text(name + ".stack").rpartition(_STACK_BEGIN)[2].partition("\n\n")[0]
        lines = [line for line in last.split("\n") if line.startswith("  ") and _is_shown(line)]
        return "\n".join([f"Stack {_STACK_BEGIN}", *lines]) if lines else ""

    def _reap(self):
        dead = {}
        for pid in list(self._processes):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                dead[self._processes.pop(pid)] = status
                kill_group(pid)  # and what it started
        return dead

    def _kill(self):
        for pid in self._processes:
            kill_group(pid)
        for pid in self._processes:
            os.waitpid(pid, 0)
        self._processes.clear()

    def _fail(self, name, kind, text):
        self._failures.append({"process": name, "kind": kind, "text": text,
                               "output": self.output_of(name)[-4096:],
                               "noted": blame.noted(self._path(name + ".calls"))})

    def _path(self, name):
        return os.path.join(self._folder, name)

    def _text(self, name):
        try:
            with open(self._path(name), errors="replace") as file:
                return file.read().strip()
        except FileNotFoundError:
            return ""


def _is_shown(line):
    """Returns whether a line of a stack is the user's or torch's."""
    return (f'"{os.path.dirname(os.path.abspath(__file__))}' not in line
            and 'File "<string>"' not in line)


def _status_text(status):
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with exit status {os.waitstatus_to_exitcode(status)}"


def _output_file():
    """Makes a file that cannot grow. It has its full size from the start, which costs nothing."""
    file = os.memfd_create("output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, _OUTPUT_BYTES)
    fcntl.fcntl(file, _F_ADD_SEALS, _SIZE_SEALS)
    return file


def _be(name, folder, work, gate, parent, output):
    """Runs one process's work. Returns only if the folder cannot be written."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(0)
    set_group(0)
    path = os.path.join(folder, name)
    print_into(output)
    try:
        stack = open(path + ".stack", "w")
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
        # Dumps all threads, since one of Gloo's may be what aborts.
        faulthandler.enable(stack)
        try:
            work(name)
            open(path + ".done", "w").close()
        except BaseException as error:  # SystemExit too
            with open(path + ".error~", "w", errors="backslashreplace") as file:
                file.write(_traceback(error))
            os.rename(path + ".error~", path + ".error")
    except OSError as error:  # a full disk
        os.write(2, f"{folder} cannot be written: {error.strerror}\n".encode())
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.read(gate, 1)  # others may still need this end of their connections
    os._exit(0)


def _traceback(error):
    here = os.path.dirname(os.path.abspath(__file__))
    frames = [f for f in traceback.extract_tb(error.__traceback__)
              if not f.filename.startswith(here)]
    head = ["Traceback (most recent call last):\n"] if frames else []
    lines = head + traceback.format_list(frames)
    return "".join(lines) + cut("".join(traceback.format_exception_only(type(error), error)))


def join_group(rank, world_size, backend, folder, timeout_s, place=None):
    """Joins torch.distributed's default group of these ranks, over loopback unless the environment
    says otherwise. `place` describes a rank that a launcher has started, with the store's address
    and the interface."""
    import torch
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", place["interface"] if place else "lo")
    if place:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", place["interface"])
    local_rank, local_size = (place["local_rank"], place["local_size"]) if place else (rank,
                                                                                       world_size)
    # The user's code may look at them, as under torchrun.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(local_rank), WORLD_SIZE=str(world_size),
                      LOCAL_WORLD_SIZE=str(min(local_size, world_size)))
    if "nccl" in backend:
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    limit = datetime.timedelta(seconds=timeout_s)
    store = (dist.FileStore(os.path.join(folder, "store"), world_size) if not place
             else _store_at(place, rank, limit))
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=limit)
    # A rank may be through here while another still connects to it. If it then died in the user's
    # code, the other one would fail here, and what it calls there would never be known.
    store.set(f"joined-{rank}", "")
    store.wait([f"joined-{other}" for other in range(world_size)], limit)


def _store_at(place, rank, limit):
    import torch.distributed as dist

    more = {"master_listen_fd": place["listening"]} if rank == 0 else {}
    return dist.TCPStore(place["host"], place["port"], None, rank == 0, limit,
                         wait_for_workers=False, **more)
