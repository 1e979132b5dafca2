"""Holds the right and the measured backward for one input and one output, as grids of blocks [to
rank][from rank].

A block maps rank k's cotangent of the output to rank r's gradient of the input, in the coordinates
of the directions that were probed: the elements, or a few random directions. Ranks that lack the
input or the output have blocks of no rows or no columns. Nothing here communicates.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Optional

import torch

_MOST_DENOMINATOR = 64
_EXACT = 1e-12


@dataclass
class Pair:
    """Holds grids of float64 matrices: the right and the measured blocks, and room, by how much
    their elements may differ."""

    right: list
    measured: list
    room: list
    # A block is the identity if input and output have equally many elements, else None.
    identity: Optional[list] = None
    # At a kink any value in the grids' [low, high] is right. Both are None without kinks.
    low: Optional[list] = None
    high: Optional[list] = None
    # A mask for each rank tells at which elements this input is 0 on any rank; None if unknown.
    zero_rows: Optional[list] = None
    by_element: bool = True  # The coordinates are elements.
    row_shapes: list = field(default_factory=list)  # These are the input's shapes by rank, or ().
    is_divided: bool = False  # The right blocks are divided by the number of ranks: a mean's.

    def __post_init__(self):
        self.ranks = len(self.right)
        if self.identity is None:
            self.identity = [[torch.eye(len(block), dtype=torch.float64)
                              if block.shape[0] == block.shape[1] else None for block in row]
                             for row in self.right]

    def pairs(self):
        return [(r, k) for r in range(self.ranks) for k in range(self.ranks)]

    def is_right(self, r, k):
        return bool((self.excess(r, k) <= 0).all())

    def excess(self, r, k):
        """Returns for each element how much further the measured block is from the right one than
        it may be; inf for NaN."""
        measured, right, room = self.measured[r][k], self.right[r][k], self.room[r][k]
        low = right if self.low is None else self.low[r][k]
        high = right if self.high is None else self.high[r][k]
        apart = torch.maximum(low - measured, measured - high)
        return torch.where(apart.isnan(), torch.full_like(apart, math.inf), apart - room)

    def wrong(self):
        return [(r, k) for r, k in self.pairs() if not self.is_right(r, k)]

    def equals(self, r, k, block, room=None):
        """Returns whether the measured block is this one, within what it may be off."""
        measured = self.measured[r][k]
        if measured.shape != block.shape:
            return False
        allowed = self.room[r][k] if room is None else torch.maximum(self.room[r][k], room)
        return bool(((measured - block).abs() <= allowed).all())

    def is_zero(self, r, k):
        return bool((self.measured[r][k].abs() <= self.room[r][k]).all())

    def is_local(self):
        """Returns whether no rank's input goes into another rank's output."""
        return all(self.right_is_zero(r, k) for r, k in self.pairs() if r != k)

    def right_is_zero(self, r, k):
        return bool((self.right[r][k].abs() <= self.room[r][k]).all())

    def measured_coefficient(self, r, k, base):
        return coefficient(self.measured[r][k], base, self.room[r][k])

    def right_coefficient(self, r, k, base):
        return coefficient(self.right[r][k], base, self.room[r][k])

    def coefficients(self):
        """Returns measured blocks [to][from] as multiples of the right ones, or None if some block
        is no multiple."""
        grid = [[self.relative(r, k) for k in range(self.ranks)] for r in range(self.ranks)]
        return None if any(c is None for row in grid for c in row) else grid

    def relative(self, r, k):
        """Returns c if the measured block is c times the right one, 0 if both are zero, else
        None."""
        if self.measured[r][k].isnan().any():
            return None
        if self.right_is_zero(r, k):
            return Fraction(0) if self.is_zero(r, k) else None
        c = self.measured_coefficient(r, k, self.right[r][k])
        return None if c == 1 and not self.is_right(r, k) else c


def coefficient(block, base, room):
    """Returns c with block = c * base within `room`, as a fraction if it is near enough to one, or
    None if there is no such c."""
    if base is None or block.shape != base.shape:
        return None
    if bool((block.abs() <= room).all()):
        return Fraction(0)
    size = float((base * base).sum())
    if not size > 0 or not bool(block.isfinite().all()):
        return None
    c = float((block * base).sum()) / size
    if not bool(((block - c * base).abs() <= room * (1 + abs(c))).all()):
        return None
    return as_fraction(c, float(room.max()) / math.sqrt(size) + 1e-14)


def as_fraction(c, error):
    """Returns the fraction of small denominator that c is, or may be within `error` (relative to 1
    or c); else c, to the digits that are known. The larger the error, the smaller the denominator
    must be, so that c is not near a fraction by accident. It is never 0, as what c is the factor of
    would be, too."""
    if not math.isfinite(error * (1 + abs(c))):
        return c
    near = Fraction(c).limit_denominator(_MOST_DENOMINATOR)
    if near and abs(float(near) - c) <= _EXACT * (1 + abs(c)):
        return near
    error *= 1 + abs(c)
    near = Fraction(c).limit_denominator(
        int(min(_MOST_DENOMINATOR, max(1.0, math.sqrt(0.01 / error)))))
    if near and abs(float(near) - c) <= error:
        return near
    if not c:
        return c
    digits = 1 + math.ceil(math.log10(0.5 / error) + math.floor(math.log10(abs(c))))
    return float(f"{c:.{min(17, max(1, digits))}g}")
