"""Defines what the functions under test are made of: collectives of the group that is checked, and
autograd.Functions made from two functions."""

from dataclasses import dataclass, field
from typing import Callable

import torch
import torch.distributed as dist

_group = None  # This group is checked.


def use(group):
    global _group
    _group = group


def group():
    return _group


def me():
    return dist.get_rank(_group)


def n():
    return dist.get_world_size(_group)


def reduced(x, op=dist.ReduceOp.SUM):
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, op, _group)
    return x


def product_of(x):
    return reduced(x, dist.ReduceOp.PRODUCT)


def max_of(x):
    return reduced(x, dist.ReduceOp.MAX)


def gathered(x):
    """Returns the ranks' tensors, stacked."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(n())]
    dist.all_gather(parts, x.contiguous(), _group)
    return torch.stack(parts)


def scattered(x):
    """Returns this rank's slice of the sum."""
    return reduced(x)[me()].clone()


def exchanged(x):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(out, x.contiguous(), group=_group)
    return out


def rooted(x, root=0):
    """Returns root's value."""
    return gathered(x)[root].clone()


def function(forward, backward):
    """Makes an autograd.Function; backward gets the cotangent and the operands."""

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *operands):
            ctx.save_for_backward(*operands)
            return forward(*operands)

        @staticmethod
        def backward(ctx, g):
            return backward(g, *ctx.saved_tensors)

    return Made.apply


def two_of_one(backward):
    """Makes a node that gives the sum and twice the sum. backward gets both cotangents, of which
    one is None if its output is in no loss, perhaps on one rank only."""

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return reduced(x), 2 * reduced(x)

        @staticmethod
        def backward(ctx, a, b):
            return backward(a, b)

    return Made.apply


right_sum = function(reduced, lambda g, x: reduced(g))
right_gather = function(gathered, lambda g, x: reduced(g)[me()].clone())


def matrix(rows=2, columns=3, dtype=torch.float64, low=0.5):
    """Returns a matrix that differs on each rank, with no two elements alike and all above 0."""
    generator = torch.Generator().manual_seed(7 + me())
    x = low + torch.rand(rows, columns, generator=generator, dtype=torch.float64)
    return x.to(dtype).requires_grad_()


NOTHING = "nothing"


@dataclass
class Case:
    """Describes a case, which is right if finding is None. measured and right are the formulas
    expected for these ranks, or None if they are not looked at."""

    name: str
    function: Callable
    inputs: Callable = matrix
    finding: str = None
    measured: tuple = None
    right: tuple = None
    right_for: str = None  # The line on other objectives has these words, or there is NOTHING.
    ranks: tuple = (3,)  # The case runs on groups of these sizes.
    options: dict = field(default_factory=dict)
    words: tuple = ()  # The report's text has these words.
    absent: tuple = ()  # The report's text must not have these words.
    alone: bool = True  # No other finding comes with it.
    may_raise: bool = False  # Backward raises on all ranks if this torch has none.
    makes: bool = False  # `function` makes the function.
    breaks: bool = False  # The case leaves its group unusable.
    verdict: str = "right"  # This is the verdict if there is no finding.
