"""Values inside a function that are equal, or at a kink, moved apart: what its operators take is
moved a little, each element by another number."""

import torch
from torch.utils._pytree import tree_map

from ..ranks.rounding import EXACT, Shaking, has_values, without_dynamo

# Exact, but no mere copies
_COMPUTES = frozenset(
    """
    abs amax amin clamp clamp_max clamp_min max maximum min minimum neg relu sign sort topk
    """.split()
)


class Stirring(Shaking):
    """Around calls of the function. The first, at its inputs, tells how large all is; in the others
    the same numbers are added each time, so that slopes are those of one function. turn: by it each
    element, and each rank's, comes first and last in one or the other; in the first two they stay
    in their order, or the reverse, as where torch picks one of them."""

    _still = EXACT - _COMPUTES

    def __init__(self, share, turn, rank, ranks):
        super().__init__(turn)
        self._share, self._turn = share, turn
        self._of_rank = (rank + turn) % ranks / ranks
        self._added, self._next, self._is_first = [], 0, True

    def __enter__(self):
        self._next = 0
        return super().__enter__()

    def __exit__(self, *raised):
        self._is_first = False
        return super().__exit__(*raised)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not self._is_still(func) and not func._schema.is_mutable:
            args = tree_map(self._moved, args)
        return func(*args, **(kwargs or {}))

    without_dynamo(__torch_dispatch__)

    def _moved(self, x):
        if not has_values(x):
            return x
        if self._is_first:
            self._added.append(self._numbers(x))
            return x
        at, self._next = self._next, self._next + 1
        fits = at < len(self._added) and self._added[at].shape == x.shape
        return x + self._added[at] if fits else x

    def _numbers(self, x):
        """Evenly apart; of each operator in another direction and size, as kinks may coincide."""
        sign = (1, -1)[self._turn] if self._turn < 2 else 1 - 2 * float(
            torch.randint(0, 2, (), generator=self._generator))
        part = 0.25 + 0.75 * float(torch.rand((), generator=self._generator))
        place = torch.arange(x.numel(), dtype=torch.float64).reshape(x.shape)
        if x.dim() and self._turn > 1:
            place = place.roll([self._turn] * x.dim(), list(range(x.dim())))
        evenly = place + self._of_rank + 0.75 - x.numel() / 2
        size = float(x.detach().abs().nan_to_num(posinf=0).max()) or 1.0
        return (sign * part * self._share * size * evenly).to(x)
