"""Code under test in which one rank does something else than the others: FAULTS times the places
where it may happen.

Each is a function of this module, named PLACE_FAULT_RANK, which test_faults.py puts into a
scenario."""

import ctypes
import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def _sum(t):
    dist.all_reduce(t)


def _gather(t):
    dist.all_gather([torch.empty_like(t) for _ in range(dist.get_world_size())], t)


def _sleep(_):
    time.sleep(10_000)


def _sleep_outside_python(_):
    ctypes.CDLL(None).sleep(10_000)


# Of one line, so that a stack has one place to name.
def _spin(_):
    while True: pass


def _raise(_):
    raise ValueError("planted")


def _async_sum(t):
    dist.all_reduce(t, async_op=True).wait()


def _scattered(t):
    dist.reduce_scatter(torch.empty_like(t[:1]), list(t.repeat(4)[:dist.get_world_size()].split(1)))


def _other(by):
    return (dist.get_rank() + by) % dist.get_world_size()


def _wait_for_a_message(t):
    dist.recv(t.clone(), src=_other(1))


def _send_what_nobody_takes(t):
    dist.send(t, dst=_other(1))


def _ring(t):
    """Each to the next, the later message first."""
    works = [dist.isend(t, _other(1), tag=tag) for tag in (1, 2)]
    works += [dist.irecv(torch.empty_like(t), _other(-1), tag=tag) for tag in (2, 1)]
    for work in reversed(works):
        work.wait()


def _ring_without_sending(t):
    dist.irecv(torch.empty_like(t), _other(-1), tag=1).wait()


def _in_a_pair(t):
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    dist.all_reduce(t, group=pairs[dist.get_rank() // 2])


def _make_groups(_):
    for ranks in ([0, 1], [2, 3]):
        dist.new_group(ranks)


# What a rank does in turn: where nothing is wrong, and what the odd one does instead.
_RIGHT = (_sum, _gather)
_ROOT = (lambda t: dist.broadcast(t, src=0),)
FAULTS = {
    # name: the others, the odd one
    "order": (_RIGHT, (_gather, _sum)),
    "kind": (_RIGHT, (lambda t: dist.broadcast(t, src=0), _gather)),
    "scatter": (_RIGHT, (_scattered, _gather)),
    "op": (_RIGHT, (lambda t: dist.all_reduce(t, op=dist.ReduceOp.MAX), _gather)),
    "shape": (_RIGHT, (lambda t: dist.all_reduce(t[:2].clone()), _gather)),
    "dtype": (_RIGHT, (lambda t: dist.all_reduce(t.to(torch.int32)), _gather)),
    "root": (_ROOT, (lambda t: dist.broadcast(t, src=1),)),
    "group": ((_make_groups, _sum), (_in_a_pair,)),
    "barrier": (_RIGHT, (lambda t: dist.barrier(), _gather)),
    "skips": (_RIGHT, (_gather,)),
    "leaves": (_RIGHT, ()),
    "leavesearly": (_RIGHT, (_sum,)),
    "onemore": (_RIGHT, (*_RIGHT, _sum)),
    "twice": (_RIGHT, (_sum, _sum, _gather)),
    "asyncskips": ((_async_sum, _gather), (_gather,)),
    "asyncmore": ((_async_sum,), (_async_sum, _async_sum)),
    "unsent": (_RIGHT, (_wait_for_a_message, *_RIGHT)),
    "untaken": (_RIGHT, (_send_what_nobody_takes, *_RIGHT)),
    "ring": ((_ring,), (_ring_without_sending,)),
    "raises": (_RIGHT, (_raise,)),
    "raisesbetween": (_RIGHT, (_sum, _raise)),
    "exits": (_RIGHT, (lambda t: sys.exit(3),)),
    "ends": (_RIGHT, (lambda t: os._exit(7),)),
    "killed": (_RIGHT, (lambda t: os.kill(os.getpid(), signal.SIGKILL),)),
    "segfault": (_RIGHT, (lambda t: os.kill(os.getpid(), signal.SIGSEGV),)),
    "aborts": (_RIGHT, (_sum, lambda t: os.abort())),
    "stopped": (_RIGHT, (lambda t: os.kill(os.getpid(), signal.SIGSTOP), *_RIGHT)),
    "asleep": (_RIGHT, (_sleep,)),
    "asleepinc": (_RIGHT, (_sum, _sleep_outside_python)),
    "spins": (_RIGHT, (_spin,)),
    # Nothing is wrong with these.
    "right": (_RIGHT, _RIGHT),
    "slow": (_RIGHT, (lambda t: time.sleep(1), *_RIGHT)),
    "slowreader": (_RIGHT, (_sum, lambda t: time.sleep(1), _gather)),
    "rightring": ((_ring, _sum), (_ring, _sum)),
    "rightasync": ((_async_sum, _gather), (_async_sum, _gather)),
}
RIGHT = ("right", "slow", "slowreader", "rightring", "rightasync")
# It may come yet: reported when the case's time is over
UNTIL_ITS_TIME = ("asleep", "asleepinc", "spins")


def _do(fault, odd, t):
    others, deviating = FAULTS[fault]
    for what in deviating if dist.get_rank() == odd else others:
        what(t)


class _Faulty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fault, odd, in_backward):
        ctx.planted = (fault, odd) if in_backward else None
        if not in_backward:
            _do(fault, odd, x.detach().clone())
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        if ctx.planted:
            _do(*ctx.planted, g.detach().clone())
        return g.clone(), None, None, None


def _call(fault, odd, in_backward):
    def call(x):
        return _Faulty.apply(x, fault, odd, in_backward)

    return call


def _collective(fault, odd, in_backward):
    def all_reduce(x, group=None):
        return _Faulty.apply(x, fault, odd, in_backward)

    return all_reduce


for _fault in FAULTS:
    for _odd in range(4):
        for _place, _make in (("call", _call), ("collective", _collective)):
            globals()[f"{_place}_forward_{_fault}_{_odd}"] = _make(_fault, _odd, False)
            globals()[f"{_place}_backward_{_fault}_{_odd}"] = _make(_fault, _odd, True)


def every_rank(xs):
    """What the calls would compute."""
    return [x.clone() for x in xs]
