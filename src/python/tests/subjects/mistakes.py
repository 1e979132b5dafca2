"""Collectives with the mistakes that people make in a backward, for the diagnosis to name. Each is
a class `Name` and the function that a scenario names: `python:mistakes.py:NAME`."""

import time

import torch
import torch.distributed as dist

_BUFFER = {}


def _sum(x):
    y = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y)
    return y


def _all(x):
    pieces = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, x.contiguous())
    return pieces


def _collective(forward, backward):
    """A function whose value is forward(x) and whose gradient is backward(cotangent)."""

    class Collective(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            return backward(g)

    return Collective.apply


# --- all_reduce: memory, dtype, chance ---


def _overwrite(g):
    dist.all_reduce(g)  # in place: who shares the cotangent sees it change
    return g


def _do_not_wait(g):
    total = g.clone(memory_format=torch.contiguous_format)
    if dist.get_rank() == 0:
        time.sleep(0.01)  # so that the others never have the sum in time
    dist.all_reduce(total, async_op=True)
    return total


def _clear(g):
    total = _sum(g)
    g.zero_()  # to save memory, as if nobody else had it
    return total


def _reuse(g):
    buffer = _BUFFER.setdefault(g.shape, torch.empty_like(g, memory_format=torch.contiguous_format))
    buffer.copy_(g)
    dist.all_reduce(buffer)
    return buffer  # the next call writes into it before this one is read


def _never_write(g):
    return torch.empty_like(g)


def _narrow(g):
    return _sum(g.to(torch.bfloat16)).to(g.dtype)


def _in_steps(g):
    step = g.abs().amax() / 127 + 1e-30
    return _sum((g / step).round() * step)


def _as_stored(g):
    return _sum(g.as_strided(g.shape, torch.empty(g.shape).stride()))


def _backwards_where_strided(g):
    if g.is_contiguous():
        return _sum(g)
    return _sum(g.as_strided((g.numel(),), (1,)).flip(0).reshape(g.shape))


def _random(g):
    return _sum(g) * (1 + torch.rand_like(g))


def _scale_at_random(g):
    return _sum(g) * (1 + torch.rand((), dtype=g.dtype))


def _none_on_last(g):
    total = _sum(g)
    return None if dist.get_rank() == dist.get_world_size() - 1 else total


def _prescaled(x):
    """Right, with two roundings that a plain sum has not."""
    return _sum(x / dist.get_world_size()) * dist.get_world_size()


def _rounded_identity(g):
    return g / 3 * 3


none_on_last = _collective(_sum, _none_on_last)
prescaled = _collective(_prescaled, _prescaled)
prescaled_identity = _collective(_prescaled, _rounded_identity)
overwritten = _collective(_sum, _overwrite)
cleared = _collective(_sum, _clear)
stale = _collective(_sum, _reuse)
never_written = _collective(_sum, _never_write)
narrower = _collective(_sum, _narrow)
as_stored = _collective(_sum, _as_stored)
strided = _collective(_sum, _backwards_where_strided)
random = _collective(_sum, _random)
not_waited_for = _collective(_sum, _do_not_wait)
scaled_at_random = _collective(_sum, _scale_at_random)


# --- all_reduce: what no name fits ---


def _weighted(weights):
    """x̄_r = Σ_k weights(r, k) ȳ_k"""
    return lambda g: sum(weights(dist.get_rank(), k) * piece for k, piece in enumerate(_all(g)))


own_times_n = _collective(_sum, lambda g: g * dist.get_world_size())
own_twice = _collective(_sum, lambda g: _sum(g) + g)
own_and_next = _collective(_sum,
                           _weighted(lambda r, k: float(k in (r, (r + 1) % dist.get_world_size()))))
sign_turned = _collective(_sum, _weighted(lambda r, k: -1.0 if k == 1 else 1.0))
prefix_sum = _collective(_sum, _weighted(lambda r, k: float(k <= r)))
coefficients = _collective(_sum, _weighted(lambda r, k: (r + 1) / (k + 2)))
rolled = _collective(_sum, lambda g: _sum(g).flatten().roll(1).reshape(g.shape))
clipped = _collective(_sum, lambda g: _sum(g).clamp(-2, 2))
clipped_far = _collective(_sum, lambda g: _sum(g).clamp(-5000, 5000))
in_steps = _collective(_sum, _in_steps)


# --- copy: what a replicated weight's backward owes the other ranks ---


def _without(rank):
    return lambda g: torch.stack([x for r, x in enumerate(_all(g)) if r != rank]).sum(0)


def _alone(g):
    others = [x for r, x in enumerate(_all(g)) if r != 1]
    return g if dist.get_rank() == 1 else torch.stack(others).sum(0)


def _reduced_to_first(g):
    total = _sum(g)
    return total if dist.get_rank() == 0 else g


def _over_pairs(g):
    first = dist.get_rank() // 2 * 2
    return torch.stack(_all(g)[first : first + 2]).sum(0)


def _same(x):
    return x.clone()


right = _collective(_same, _sum)
forgotten = _collective(_same, lambda g: g)
averaged = _collective(_same, lambda g: _sum(g) / dist.get_world_size())
twice = _collective(_same, lambda g: _sum(_sum(g)))
without_one = _collective(_same, _without(1))
alone = _collective(_same, _alone)
reduced = _collective(_same, _reduced_to_first)
over_pairs = _collective(_same, _over_pairs)


# --- on one rank alone ---


def _sum_on_rank_0(g):
    return _sum(g) if dist.get_rank() == 0 else g


summed_by_rank_0 = _collective(_sum, _sum_on_rank_0)


def _nan_on_rank_1(g):
    return _sum(g) * (float("nan") if dist.get_rank() == 1 else 1)


nan_on_rank_1 = _collective(_sum, _nan_on_rank_1)
