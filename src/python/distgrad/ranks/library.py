"""Loads libdistgrad_rank.so, of which distgrad-rank is made, and calls what src/rank/library.h
declares. It was compiled against one version of torch."""

import ctypes
import functools
import os

import torch


class Start(ctypes.Structure):
    """Says what a worker is to be: DistgradStart."""

    _fields_ = [(name, ctypes.c_int) for name in
                ("is_simulator", "rank", "world_size", "socket", "board", "output", "uses_gpu")]


_FORK = ctypes.CFUNCTYPE(ctypes.c_int)
_BEGIN = ctypes.CFUNCTYPE(None)
_ANSWER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t,
                           ctypes.c_void_p)


@functools.cache
def loaded():
    """Returns the library. torch.ops.distgrad_rank has its operators then."""
    built_for = os.environ["DISTGRAD_RANK_TORCH"]
    if torch.__version__.partition("+")[0] != built_for.partition("+")[0]:
        raise ImportError(f"this Python has torch {torch.__version__}, and distgrad was built with"
                          f" torch {built_for}: build distgrad with this one")
    return ctypes.CDLL(os.environ["DISTGRAD_RANK_LIBRARY"])


def serve_zygote(control):
    """Serves the driver's control socket. Returns the Start of a worker in each worker, and None in
    the zygote once all are dead."""
    start = Start()
    is_worker = loaded().distgrad_rank_zygote(control, _FORK(_forked), ctypes.byref(start))
    return start if is_worker else None


def _forked():
    try:
        return os.fork()
    except OSError as error:
        return -error.errno


def work(start, begin, answer):
    """Runs the worker until the driver has no more requests, and returns its exit status.
    `answer(header, numbers)`, which never raises, gives the same of the reply: JSON text in bytes,
    and a tensor."""

    def answered(header, size, data, count, reply):
        numbers = torch.zeros(count, dtype=torch.float64)
        ctypes.memmove(numbers.data_ptr(), data, 8 * count)
        text, own = answer(ctypes.string_at(header, size), numbers)
        loaded().distgrad_rank_reply(ctypes.c_void_p(reply), text, ctypes.c_size_t(len(text)),
                                     ctypes.c_void_p(own.data_ptr()), ctypes.c_size_t(own.numel()))

    return loaded().distgrad_rank_work(ctypes.byref(start), _BEGIN(begin), _ANSWER(answered))
