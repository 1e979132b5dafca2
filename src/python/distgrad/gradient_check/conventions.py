"""Says which gradient of a rank is right, given the objective that the ranks' losses form and the
inputs that are copies of one tensor.

    sum         J = Σ_k l_k, each loss the rank's own
    mean        J = 1/N Σ_k l_k, each rank calls backward on its own loss undivided, and nothing
                averages gradients afterwards, as DistributedDataParallel would: inside of it an
                operator is right by `sum`
    replicated  J = l_0, all losses being one function of outputs that are the same on all ranks

A copy should have the gradient of all copies. If an output is not the same on all ranks, each rank
has a part of it, and "replicated" treats it as "sum" does.
"""

from dataclasses import dataclass, replace

import torch

from .blocks import coefficient
from .formulas import bar, number
from .predicates import Mistake, on_ranks
from .report import Finding

OBJECTIVES = ("sum", "mean", "replicated")


@dataclass(frozen=True)
class Convention:
    """Holds the objective, the names of inputs that are copies, whether that is only assumed, and
    the names of outputs that are equal (`alike`) on all ranks. The copies in `doubtful` may be
    pieces of a tensor: they are 0 on all ranks, beside tensors that ranks hold pieces of."""

    objective: str
    copies: tuple = ()
    is_assumed: bool = False
    alike: tuple = ()
    doubtful: tuple = ()

    def apart(self, x):
        """Returns the Convention by which x is a tensor of its own on each rank."""
        return replace(self, copies=tuple(name for name in self.copies if name != x))

    def text(self):
        found = f'objective "{self.objective}"'
        if self.objective == "mean":
            found += ", if no gradient is averaged afterwards, as DistributedDataParallel does"
        if not self.copies:
            return found
        why = " (assumed, as they are equal on all ranks)" if self.is_assumed else ""
        return f"{found}; copies of one tensor on each rank: {', '.join(self.copies)}{why}"

    def is_one_loss(self, output):
        return self.objective == "replicated" and output in self.alike

    def by(self, x, ranks):
        """Returns the text of what a formula's derivative is taken by."""
        tensor = f"the one tensor {x}" if x in self.copies else "rank r's input"
        return f"{tensor}, divided by the {ranks} ranks" if self.objective == "mean" else tensor

    def grid(self, grid, x):
        """Turns blocks [to rank][from rank] for the sum of all losses into this objective's."""
        n = len(grid)
        if x in self.copies:
            sums = [sum(grid[r][k] for r in range(n)) for k in range(n)]
            grid = [sums] * n
        return [[block / n for block in row] for row in grid] if self.objective == "mean" else grid


class OneLoss:
    """Judges an input and an output that is equal, with an equal cotangent, on all ranks."""

    def __init__(self, pair, x, names, is_copy):
        """Takes the pair whose right blocks are those of the sum of all losses."""
        self._x, self._names, self._is_copy, self._n = x, names, is_copy, pair.ranks
        ranks = range(pair.ranks)
        low, high = pair.low or pair.right, pair.high or pair.right
        self._measured = [sum(pair.measured[r]) for r in ranks]
        self._parts = [sum(row) / pair.ranks for row in pair.right]
        self._room = [sum(row) for row in pair.room]
        self._low, self._high = ([sum(row) / pair.ranks for row in grid] for grid in (low, high))
        self._own = self._parts
        if is_copy:
            self._parts, self._low, self._high = (
                [sum(blocks)] * pair.ranks for blocks in (self._parts, self._low, self._high))
            self._room = [room + sum(self._room) / pair.ranks for room in self._room]

    @staticmethod
    def is_one_function(pair, is_copy):
        """Returns whether the output depends alike on the input, or on all its copies, on all
        ranks."""
        n = range(pair.ranks)
        if len({pair.right[r][k].shape[1] for r, k in pair.pairs()}) != 1:
            return False
        rows = [[sum(pair.right[r][k] for r in n) for k in n]] if is_copy else pair.right
        room = [[sum(pair.room[r][k] for r in n) for k in n]] if is_copy else pair.room
        return all(bool(((row[k] - row[0]).abs() <= rooms[k] + rooms[0]).all())
                   for row, rooms in zip(rows, room) for k in n)

    def wrong(self):
        """Returns the ranks whose gradient is wrong."""
        return tuple(r for r in range(self._n) if not self._is(r, self._low[r], self._high[r]))

    def right_is_zero(self):
        return all(bool((part.abs() <= room).all())
                   for part, room in zip(self._parts, self._room))

    def formula(self):
        if self._is_copy:
            return f"{bar(self._x)}_r = Σ_k {self._term('k')}"
        return f"{bar(self._x)}_r = {self._term('r')}"

    def legend(self):
        of = f"rank k's copy of {self._x}" if self._is_copy else "rank r's input"
        k = "k" if self._is_copy else "r"
        return (f"{self._names.derivative}_{k}: the derivative of {self._names.output}, the same on"
                f" all ranks, by {of}; {self._names.cotangent}: its cotangent, likewise")

    def finding(self, dtype):
        mistake, measured = self._mistake()
        return Finding(mistake.name, mistake.text, [self._x], [self._names.output],
                       list(mistake.ranks), measured, [self.formula()], self.legend(),
                       details=[] if measured else self._details(), dtype=dtype)

    def _mistake(self):
        """Returns (Mistake, [the measured formula, if there is one])."""
        wrong, n, gradient = self.wrong(), self._n, bar(self._x)
        where = on_ranks(wrong, n)
        if all(self._is(r, 0 * self._own[r]) for r in wrong):
            lines = [f"{gradient}_r = 0"] if len(wrong) == n else []
            return Mistake("no-gradient", f"{where} the gradient is zero or missing where the right"
                           " one is not", wrong), lines
        if self._is_copy and n > 1 and all(self._is(r, self._own[r]) for r in range(n)):
            return Mistake("missing-reduction", "each copy has only what its own rank makes of it:"
                           " the other ranks' parts were not summed", wrong
                           ), [f"{gradient}_r = {self._term('r')}"]
        factors = [coefficient(self._measured[r], self._parts[r], self._room[r]) for r in wrong]
        if None not in factors and len(set(map(number, factors))) == 1:
            c = number(factors[0])
            twice = (f", {n} being the number of ranks: summed over the ranks once too often"
                     if factors[0] == n else "")
            lines = [self.formula().replace(" = ", f" = {c} ", 1)] if len(wrong) == n else []
            return Mistake("double-reduction" if twice else "scaled",
                           f"{where} the gradient is {c} times the right one{twice}", wrong), lines
        if self._is_copy and not all(self._is(r, self._measured[0]) for r in range(n)):
            summed = sum(self._measured)
            if bool(((summed - self._parts[0]).abs() <= sum(self._room)).all()):
                return Mistake("missing-reduction", "each copy has a part of the right gradient:"
                               " the parts were not summed", wrong), []
            return Mistake("unsynchronised", "the copies' gradients differ from rank to rank: a"
                           " part of them was not summed over the ranks", wrong), []
        return Mistake("other-backward", f"{where} the gradient is another one than the right one",
                       wrong), []

    def _is(self, r, low, high=None):
        high = low if high is None else high
        measured, room = self._measured[r], self._room[r]
        return bool(((measured >= low - room) & (measured <= high + room)).all())

    def _term(self, rank):
        return f"{self._names.derivative}_{rank}ᵀ {self._names.cotangent}"

    def _details(self):
        lines = []
        for r in self.wrong()[:2]:
            apart = (self._measured[r] - self._parts[r]).abs().nan_to_num(nan=torch.inf)
            i, j = divmod(int(apart.reshape(-1).argmax()), apart.shape[1])
            lines.append(f"to rank {r} element {i}, from element {j}: measured"
                         f" {float(self._measured[r][i, j]):.6g}, right"
                         f" {float(self._parts[r][i, j]):.6g}")
        return lines
