"""The ops of reductions. Of the methods, a script of `distgrad repro` has those that it calls."""

import torch
import torch.distributed as dist

from .exchange import averaged, fresh, gathered, is_alone, natively_reduced, natively_reduced_to
from .exchange import on_root, reduced_by_gathering, summed


class Sum:
    """Of the operands."""

    def jointly(self, xs):
        """The result, of the operands of all ranks."""
        return torch.stack(xs).sum(0)

    def reduced(self, x, group=None):
        """The result, on each rank of the group."""
        return summed(x, group)

    def reduced_to(self, root, x, group=None):
        """On root the result, elsewhere zeros."""
        return natively_reduced_to(root, x, "sum", group)

    def adjoint(self, g, x, group=None):
        """The operand's cotangent, given that of the result."""
        return g


class PremulSum:
    """The sum of the operands times a factor."""

    def __init__(self, factor):
        self.factor = factor

    def jointly(self, xs):
        return (self.factor * torch.stack(xs)).sum(0)

    def reduced(self, x, group=None):
        return summed(x * self.factor, group)

    def reduced_to(self, root, x, group=None):
        return natively_reduced_to(root, x * self.factor, "sum", group)

    def adjoint(self, g, x, group=None):
        return g * self.factor


class Avg:
    """The mean."""

    def jointly(self, xs):
        return torch.stack(xs).mean(0)

    def reduced(self, x, group=None):
        return fresh(x) if is_alone(x, group) else averaged(x, group)

    def reduced_to(self, root, x, group=None):
        return on_root(root, self.reduced(x, group), group)

    def adjoint(self, g, x, group=None):
        return g / dist.get_world_size(group)


class Product:
    """Of the operands."""

    def jointly(self, xs):
        return torch.stack(xs).prod(0)

    def reduced(self, x, group=None):
        return natively_reduced(x, "product", group)

    def reduced_to(self, root, x, group=None):
        return natively_reduced_to(root, x, "product", group)

    def adjoint(self, g, x, group=None):
        """Times the product of the others: no division, so that zeros are no matter."""
        others = torch.ones_like(x, memory_format=torch.contiguous_format)
        for rank, other in enumerate(gathered(x, group)):
            if rank != dist.get_rank(group):
                others = others * other
        return g * others


class Extremum:
    """Ranks that tie share evenly."""

    def reduced(self, x, group=None):
        return fresh(x) if is_alone(x, group) else reduced_by_gathering(x, self.name, group)

    def reduced_to(self, root, x, group=None):
        return on_root(root, self.reduced(x, group), group)

    def adjoint(self, g, x, group=None):
        holds = (x == self.reduced(x, group)).to(g.dtype)
        return g * holds / summed(holds, group)


class Min(Extremum):
    name = "min"

    def jointly(self, xs):
        return torch.stack(xs).amin(0)


class Max(Extremum):
    name = "max"

    def jointly(self, xs):
        return torch.stack(xs).amax(0)
