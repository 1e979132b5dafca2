"""Runs a rank or a simulator as a process. It answers the requests of its data socket in order,
until the socket ends or a case fails."""

import ctypes
import faulthandler
import functools
import os
import signal
import sys
import time
import traceback

import torch

from . import board as places
from . import times
from . import debugging, noting
from .board import Board
from .frames import BadFrame, Channel, FrameWriter
from .printed import print_into
from .process import limit_memory, set_name, wait_for_a_free_core
from .runner import Runner
from .simulator import Simulator

_FLUSH_BYTES = 64 << 10
_FLUSH_NS = 1_000_000
_OUTPUT_LIMIT = 64 << 10
_LOOK_S = 50e-6  # between two looks at whether the other ranks finished a case


class CapturedOutput:
    """Redirects standard output and error into a file that the driver reads if this process
    dies."""

    def __init__(self, fd):
        self._fd = fd
        print_into(fd)
        # A segmentation fault prints its Python line; the signal's effect stays the same.
        faulthandler.enable(2)
        # On this signal, the process prints where it is, for the driver.
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
        self._flush_c = ctypes.CDLL(None).fflush

    def take(self):
        """Returns what was written since the last call, its last 64 KiB."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # the user's code closed it
                pass
        self._flush_c(None)
        end = os.lseek(self._fd, 0, os.SEEK_CUR)
        if end == 0:
            return ""
        begin = max(0, end - _OUTPUT_LIMIT)
        text = os.pread(self._fd, end - begin, begin)
        os.lseek(self._fd, 0, os.SEEK_SET)
        return text.decode("utf-8", "replace")


class Worker:
    def __init__(self, role, rank, world_size, socket, board, output):
        self._board = Board(board, rank)
        os.close(board)
        self._output = CapturedOutput(output)
        self._channel = Channel(socket)
        self._take_entered = noting.install(self._board) if role == "rank" else list
        self._runs = Simulator() if role == "simulator" else Runner(rank, world_size, self._board)
        self._peers = 0 if role == "simulator" else world_size
        self._case_id = 0  # of the last case
        self._flushed_ns = 0

    def serve(self):
        """Answers requests until the driver closes the socket, or a case fails: then the ranks are
        out of step."""
        while (frame := self._next_frame()) is not None:
            reply, failed = self._answer(frame)
            self._channel.queue(reply)
            waited = time.monotonic_ns() - self._flushed_ns
            if failed or self._channel.queued_bytes >= _FLUSH_BYTES or waited > _FLUSH_NS:
                self._flush()
            if failed:
                return

    def _flush(self):
        self._channel.flush()
        self._flushed_ns = time.monotonic_ns()

    def _next_frame(self):
        while (frame := self._channel.next()) is None:
            came = self._channel.receive(wait=False)
            if came is False:
                self._flush()
                came = self._channel.receive(wait=True)
            if came is None:
                return None
        return frame

    def _wait_for_peers(self):
        """Waits until the other ranks finish the last case. A collective that only some ranks make
        in it still waits for others. If these went on, it would be paired with one of the next
        case, whose verdict would then be wrong."""
        if self._case_id == 0 or self._board.all_are_through(self._case_id, self._peers):
            return
        self._flush()
        while not self._board.all_are_through(self._case_id, self._peers):
            time.sleep(_LOOK_S)

    def _answer(self, frame):
        request = frame.header
        self._wait_for_peers()
        self._case_id = request["id"]
        started = time.monotonic_ns()
        self._board.begin(request["id"], started)
        writer = FrameWriter()
        with times.spent_in("case"):
            result = self._runs.run(request, frame, writer)
        times.write()
        reply = {"kind": "simulation" if request["kind"] == "simulate" else "result",
                 "id": request["id"], **result}
        reply["elapsed_ns"] = time.monotonic_ns() - started - reply.pop("loading_ns", 0)
        reply["output"] = self._output.take()
        reply["entered"] = self._take_entered()
        self._board.set_phase(places.REPLY)
        return writer.frame(reply), "error" in result


def be_worker(role, rank, world_size, socket, board, output):
    """Runs the worker and ends the process. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what Ctrl-C means
    _limit_memory(world_size)
    set_name("dg simulator" if role == "simulator" else f"dg rank {rank}/{world_size}")
    wait_for_a_free_core()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(places.local_rank(rank)),
                      WORLD_SIZE=str(world_size),
                      LOCAL_WORLD_SIZE=str(places.local_size(world_size)))
    set_up()
    debugging.stop_as(rank, world_size)
    status = 0
    try:
        Worker(role, rank, world_size, socket, board, output).serve()
    except BadFrame as error:
        print(f"the requests cannot be read: {error}", file=sys.stderr)
    except BrokenPipeError:  # the driver is gone, or has no use for this rank
        pass
    except BaseException:
        traceback.print_exc()
        status = 1
    _save_coverage()
    sys.stdout.flush()
    sys.stderr.flush()
    # No tear-down: connections may wait for peers, and libtorch takes its time.
    os._exit(status)


@functools.cache
def set_up():
    """Sets what all ranks have in common. It runs before any of the user's modules, which may
    change it."""
    debugging.install()
    torch.set_num_threads(1)
    # A warning that torch gives once per process would be missing from later cases.
    torch.set_warn_always(True)
    # Fills new memory with NaN, so code that reads memory that nobody wrote always fails, and not
    # by luck. (use_deterministic_algorithms would do the same, and import torch.compile's modules
    # for a second or two.)
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = True


def _limit_memory(world_size):
    """Limits this rank to its share of the memory that the driver allows a world (--max-memory).
    Limits nothing if there is CUDA, which reserves addresses as if they were memory."""
    allowed = int(os.environ.get("DISTGRAD_MAX_MEMORY", 0)) // max(1, world_size)
    if allowed and not torch.cuda.is_available():
        limit_memory(allowed)


def _save_coverage():
    """Saves coverage.py's data, which os._exit would lose. A user may measure how much of their
    code the scenarios run."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage else None
    if current is not None:
        current.stop()
        current.save()
