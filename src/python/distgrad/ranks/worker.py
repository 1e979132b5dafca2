"""Runs a rank or a simulator as a process. The library takes the driver's requests, and this
answers them."""

import faulthandler
import functools
import os
import signal
import sys
import time

import torch

from . import board as places
from . import times
from . import debugging, library, noting
from .board import Board
from .messages import Message, MessageWriter
from .printed import print_into
from .runner import Runner
from .simulator import Simulator


class Worker:
    def __init__(self, start):
        self._start = start
        self._board = Board(start.board, start.rank)
        self._runs = self._take_entered = None

    def begin(self):
        """Called once the process is the worker, with its output going to the driver's file."""
        print_into(1)
        # A segmentation fault prints its Python line; the signal's effect stays the same.
        faulthandler.enable(2)
        # On this signal, the process prints where it is, for the driver.
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
        start = self._start
        if start.is_simulator:
            self._runs, self._take_entered = Simulator(), list
        else:
            self._take_entered = noting.install(self._board)
            self._runs = Runner(start.rank, start.world_size, self._board)

    def answer(self, text, numbers):
        started = time.monotonic_ns()
        message, writer = Message(text, numbers), MessageWriter()
        request = message.header
        self._board.set_waits(False)
        with times.spent_in("case"):
            result = self._runs.run(request, message, writer)
        times.write()
        reply = {"kind": "simulation" if request["kind"] == "simulate" else "result",
                 "id": request["id"], **result}
        reply["elapsed_ns"] = time.monotonic_ns() - started - reply.pop("loading_ns", 0)
        reply["entered"] = self._take_entered()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # the user's code closed it
                pass
        return writer.message(reply)


def be_worker(start):
    """Runs the worker and ends the process. Never returns."""
    os.environ.update(RANK=str(start.rank), LOCAL_RANK=str(places.local_rank(start.rank)),
                      WORLD_SIZE=str(start.world_size),
                      LOCAL_WORLD_SIZE=str(places.local_size(start.world_size)))
    set_up()
    debugging.stop_as(start.rank, start.world_size)
    start.uses_gpu = start.uses_gpu or torch.cuda.is_available()
    worker = Worker(start)
    status = library.work(start, worker.begin, worker.answer)
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


def _save_coverage():
    """Saves coverage.py's data, which os._exit would lose. A user may measure how much of their
    code the scenarios run."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage else None
    if current is not None:
        current.stop()
        current.save()
