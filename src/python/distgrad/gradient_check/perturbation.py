"""Moves values inside a function apart that are equal or at a kink: each element of its operators'
operands is moved a little, by a number of its own."""

import torch
from torch.utils._pytree import tree_map

from ..ranks.rounding import EXACT, Shaking, has_values, without_dynamo

# These are exact too, but they compute: unlike copies, they may have kinks at their operands.
_COMPUTES = frozenset(
    """
    abs amax amin clamp clamp_max clamp_min max maximum min minimum neg relu sign sort topk
    """.split()
)


class Perturbation(Shaking):
    """Perturbs values inside the function during its calls. The first call, at the inputs, measures
    sizes, and those before settle() measure nearby sizes. All later calls add the same numbers, so
    that slopes are those of one function. In turns 0 and 1 elements keep their order or reverse it,
    as torch breaks ties by order; later turns rotate it, so that each comes first in some turn."""

    _still = EXACT - _COMPUTES

    def __init__(self, share, turn, rank, ranks):
        super().__init__(turn)
        self._share, self._turn = share, turn
        self._of_rank = (rank + turn) % ranks / ranks
        # Operands are counted within a call. Each has (shape, size here, size nearby) in _sizes.
        self._sizes, self._added, self._next, self._call = [], None, 0, -1

    def __enter__(self):
        self._next, self._call = 0, self._call + 1
        return super().__enter__()

    def settle(self, nearer):
        """Fixes the numbers that are added. A value that is 0 at the inputs counts as its nearby
        size times `nearer`, as values inside are moved so many times further than inputs were."""
        self._added = [self._numbers(*x, nearer) for x in self._sizes]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not self._is_still(func) and not func._schema.is_mutable:
            args = tree_map(self._moved, args)
        return func(*args, **(kwargs or {}))

    without_dynamo(__torch_dispatch__)

    def _moved(self, x):
        if not has_values(x):
            return x
        at, self._next = self._next, self._next + 1
        if self._added is None:
            self._look(at, x)
            return x
        fits = at < len(self._added) and self._added[at].shape == x.shape
        return x + self._added[at].to(x) if fits else x

    def _look(self, at, x):
        """Notes an operand's size at the inputs, and nearby: a square of 0 stays tiny there."""
        size = float(x.detach().abs().nan_to_num(posinf=0).max())
        if self._call == 0:
            self._sizes.append((x.shape, size, 0.0))
        elif at < len(self._sizes) and self._sizes[at][0] == x.shape:
            shape, here, beside = self._sizes[at]
            self._sizes[at] = shape, here, max(beside, size)

    def _numbers(self, shape, size, beside, nearer):
        """Returns evenly spaced numbers, with a sign and scale for each operand, as kinks may
        coincide."""
        sign = (1, -1)[self._turn] if self._turn < 2 else 1 - 2 * float(
            torch.randint(0, 2, (), generator=self._generator))
        part = 0.25 + 0.75 * float(torch.rand((), generator=self._generator))
        place = torch.arange(shape.numel(), dtype=torch.float64).reshape(shape)
        if place.dim() and self._turn > 1:
            place = place.roll([self._turn] * place.dim(), list(range(place.dim())))
        evenly = place + self._of_rank + 0.75 - shape.numel() / 2
        return sign * part * (self._share * size or nearer * beside) * evenly
