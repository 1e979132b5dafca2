"""Defines the directions along which inputs are moved and cotangents given. They are the rows and
columns of both maps.

    elements    one direction an element: a basis. A linear backward that is right for a basis is
                right for everything.
    blocks      a few random directions for each tensor of each rank
    whole       a few random directions of all ranks' tensors together

Each rank makes its part of a direction by itself, from the tensor's name and shape and a number. In
blocks it does not depend on the rank, so that blocks of different ranks can be compared. Rank 0
sees only coordinates.
"""

import zlib
from dataclasses import dataclass

import torch


_MOST_KEPT = 1 << 24  # Directions of so many elements, 8 bytes each, are kept in memory.


@dataclass(frozen=True)
class Tensor:
    """Describes a tensor as all ranks know it. scale is the size of numbers in its random
    directions."""

    name: str
    shape: tuple
    scale: float = 1.0

    def size(self):
        return int(torch.Size(self.shape).numel())


@dataclass
class Coordinates:
    """Holds the kind ("elements", "blocks", "whole"), tensors by rank, and count of directions."""

    kind: str
    tensors: tuple
    count: int = 0

    def __post_init__(self):
        self.ranges = {}  # (rank, name) -> the slice of its coordinates, in order
        self._made, self._made_elements = {}, 0  # Directions are kept until they are too many.
        self.size = self.count if self.kind == "whole" else 0
        for rank, tensors in enumerate(self.tensors):
            for t in tensors:
                extent = self.extent(t)
                at = 0 if self.kind == "whole" else self.size
                self.ranges[rank, t.name] = slice(at, at + extent)
                self.size = max(self.size, at + extent)

    def extent(self, tensor):
        """Returns the number of coordinates of one tensor of one rank."""
        if self.kind == "whole":
            return self.count
        return tensor.size() if self.kind == "elements" else min(self.count, tensor.size())

    def expand(self, rank, coefficients):
        """Returns this rank's part of the directions' combination with these coefficients: float64
        tensors, or None for one that is 0."""
        return [self._combined(rank, t, coefficients[self.ranges[rank, t.name]])
                for t in self.tensors[rank]]

    def project(self, rank, values):
        """Returns this rank's part for assemble(): the products of its directions and its tensors
        (None counts as zero)."""
        parts = []
        for t, value in zip(self.tensors[rank], values):
            if value is None:
                parts.append(torch.zeros(self.extent(t), dtype=torch.float64))
                continue
            flat = value.detach().to("cpu", torch.float64).reshape(-1)
            if self.kind == "elements":
                parts.append(flat)
            else:
                products = [self._direction(rank, t, s).reshape(-1) @ flat
                            for s in range(self.extent(t))]
                parts.append(
                    torch.stack(products) if products else torch.zeros(0, dtype=torch.float64))
        if self.kind == "whole":
            return sum(parts, torch.zeros(self.count, dtype=torch.float64))
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def assemble(self, by_rank):
        """Returns all coordinates of a vector, or of several as rows, from the ranks' project()."""
        return sum(by_rank) if self.kind == "whole" else torch.cat(by_rank, -1)

    def identity(self, to, source, others):
        """Returns the identity's block from `source`, a (rank, tensor) of the Coordinates `others`,
        to `to`, a (rank, tensor) of these."""
        if to[1].size() != source[1].size() or self.kind == "whole":
            return None
        rows = [self._direction(*to, s).reshape(-1) for s in range(self.extent(to[1]))]
        columns = [others._direction(*source, s).reshape(-1)
                   for s in range(others.extent(source[1]))]
        if not rows:
            return torch.zeros(0, 0, dtype=torch.float64)
        return torch.stack(rows) @ torch.stack(columns).T

    def columns(self, rank, tensor):
        """Returns a matrix with a column for each element of this tensor: the coordinates of that
        element alone in random directions."""
        return torch.stack([self._direction(rank, tensor, s).reshape(-1)
                            for s in range(self.extent(tensor))])

    def _combined(self, rank, tensor, coefficients):
        if not bool(coefficients.any()):
            return None
        if self.kind == "elements":
            return coefficients.reshape(tensor.shape)
        total = torch.zeros(tensor.shape, dtype=torch.float64)
        for s, c in enumerate(coefficients.tolist()):
            if c:
                total += c * self._direction(rank, tensor, s)
        return total

    def __getstate__(self):
        return {**self.__dict__, "_made": {}, "_made_elements": 0}

    def _direction(self, rank, tensor, number):
        """Returns numbers of both signs and of the size `scale`."""
        owner = rank if self.kind == "whole" else ""
        key = owner, tensor, number
        if key not in self._made:
            direction = self._made_direction(owner, tensor, number)
            if self._made_elements + tensor.size() > _MOST_KEPT:
                return direction
            self._made[key] = direction
            self._made_elements += tensor.size()
        return self._made[key]

    @staticmethod
    def _made_direction(owner, tensor, number):
        seed = zlib.crc32(f"{owner}/{tensor.name}/{tuple(tensor.shape)}/{number}".encode())
        generator = torch.Generator().manual_seed(seed)
        sign = 2.0 * torch.randint(0, 2, tensor.shape, generator=generator) - 1
        size = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) + 0.5
        return tensor.scale * sign * size
