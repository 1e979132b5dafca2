"""What the functions under test are made of: collectives of the group that is checked, and
autograd.Functions from two functions."""

from dataclasses import dataclass, field
from typing import Callable

import torch
import torch.distributed as dist

_group = None  # the one that is checked


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
    """Stacked."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(n())]
    dist.all_gather(parts, x.contiguous(), _group)
    return torch.stack(parts)


def scattered(x):
    """This rank's slice of the sum."""
    return reduced(x)[me()].clone()


def exchanged(x):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(out, x.contiguous(), group=_group)
    return out


def rooted(x, root=0):
    """Root's value."""
    return gathered(x)[root].clone()


def function(forward, backward):
    """backward gets the cotangent and the operand."""

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            return backward(g, ctx.saved_tensors[0])

    return Made.apply


def two_of_one(backward):
    """The sum and twice the sum, of one node. backward gets both cotangents: None for an output
    that is in no loss, which may be so on one rank."""

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
    """Different on each rank, no two elements alike, all above 0."""
    generator = torch.Generator().manual_seed(7 + me())
    x = low + torch.rand(rows, columns, generator=generator, dtype=torch.float64)
    return x.to(dtype).requires_grad_()


NOTHING = "nothing"


@dataclass
class Case:
    """finding None: right. measured, right: the formulas expected, for 4 ranks; None: not looked
    at."""

    name: str
    function: Callable
    inputs: Callable = matrix
    finding: str = None
    measured: tuple = None
    right: tuple = None
    right_for: str = None  # words of the line on other objectives, or NOTHING
    ranks: tuple = (4,)  # numbers of ranks of the group
    options: dict = field(default_factory=dict)
    words: tuple = ()  # in the report's text
    absent: tuple = ()  # not in it
    alone: bool = True  # no other finding comes with it
    may_raise: bool = False  # in backward, on all ranks, where this torch has none
    makes: bool = False  # `function` makes the function
    breaks: bool = False  # leaves its group unusable
    verdict: str = "right"  # where there is no finding
