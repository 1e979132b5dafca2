"""Where a function is not smooth at the inputs: what its derivative is just beside them.

Of equal values each may be the median, and none of them tells by moving alone. So all elements are
moved apart a little, where the function is smooth, and its derivative is measured there: what lies
between those derivatives is right at the inputs. Equal values change places from one such point to
the next, so that each of them comes first, and last, and everywhere between.
"""

from dataclasses import dataclass

import torch

_APART = 2.0**-16  # of an element's size
_NOISY = 0.35  # the power of the outputs' noise that they are moved apart by, where that is more
_STEPS = 64  # of the differences there, in that distance
_MOST_POINTS, _MOST_RUNS = 48, 4096
_OTHER = 1e-3  # by how much a slope is another one, relative to both
_JUMPS = 0.8  # of what a move changes, if one of a quarter does so, too


@dataclass
class Tie:
    """Input coordinates whose elements are equally large. signs: theirs; places: [element, digit]:
    the input, the rank and the indices of each."""

    columns: list
    signs: torch.Tensor
    places: torch.Tensor

    def orders(self, turn):
        """Two, as permutations: each index turned around, and the elements of each tensor. A
        reduction may go along one dimension, over the ranks, or over all."""
        return [_turned(digits, turn) for digits in self._digits()]

    def turns(self):
        """That bring each element to each place."""
        return max(int(digits.max()) + 1 for digits in self._digits())

    def _digits(self):
        _, tensor = self.places[:, :2].unique(dim=0, return_inverse=True)
        number = torch.tril(tensor[:, None] == tensor).sum(1) - 1
        return self.places, torch.stack([number, tensor], 1)


def _turned(digits, turn):
    sizes = digits.amax(0) + 1
    number = torch.zeros(len(digits), dtype=torch.int64)
    for digit, size in zip(((digits + turn) % sizes).T, sizes):
        number = number * size + digit
    return number.argsort().argsort()


class Nearby:
    """values(moves): the outputs; base: at the inputs; noise: by output coordinate."""

    def __init__(self, values, base, sizes, ties, noise, relative):
        self._values, self._base, self._sizes, self._ties = values, base, sizes, ties
        self._noise, self._apart = noise, max(_APART, relative**_NOISY)
        self._turns = min(max([1, *(tie.turns() for tie in ties)]), _MOST_POINTS // 4,
                          max(1, _MOST_RUNS // (4 * len(sizes) + 4)))
        self.slopes, self._floor = None, None  # [point, output, input]; [output, input]
        self.jumps = None  # [output, input]

    def look(self):
        directions = self._directions()
        count, step = len(self._sizes), self._apart / _STEPS
        points = self._apart * directions
        around = torch.cat([torch.zeros(1, count, dtype=torch.float64),
                            torch.diag(step * self._sizes)])
        moves = (points[:, None] + around).reshape(-1, count)
        values = self._values(torch.cat([moves, points / 4]))
        there = values[:len(moves)].reshape(len(points), count + 1, -1)
        here, moved = there[:, :1], there[:, 1:]
        h = (step * self._sizes)[:, None]
        self.slopes = ((moved - here) / h).transpose(1, 2)
        self._floor = (8 * self._noise / h).T
        self.jumps = self._where_it_jumps(
            self._are_jumps(here[:, 0], values[len(moves):]).any(0))

    def widened(self, low, high, depends):
        """(low, high, which elements are others than before): what lies between the slopes, too,
        that there are nearby."""
        finite = self.slopes.isfinite()
        least = torch.where(finite, self.slopes, low).amin(0)
        most = torch.where(finite, self.slopes, high).amax(0)
        room = _OTHER * torch.maximum(least.abs(), most.abs()) + self._floor
        down = torch.where(least < low - room, least - low, torch.zeros_like(low))
        up = torch.where(most > high + room, most - high, torch.zeros_like(high))
        for tie in self._ties:
            if tie.turns() > self._turns:
                self._share(tie.columns, down, up, depends, (self.slopes.abs() > room).any(0))
        return low + down, high + up, (down < 0) | (up > 0)

    def are_alike_along(self, columns, weights, slopes):
        """By output, whether these are the slopes wherever one is beside the inputs. Of a part of
        a tie that is known only where each of its elements has been in each place."""
        if any(tie.turns() > self._turns and set(tie.columns) & set(columns) != set(tie.columns)
               and set(tie.columns) & set(columns) for tie in self._ties):
            return torch.zeros_like(slopes, dtype=torch.bool)
        along = self.slopes[:, :, columns] @ weights
        size = (self.slopes[:, :, columns].abs() @ weights.abs()).amax(0)
        return (along - slopes).abs().amax(0) <= _OTHER * size + self._floor[:, columns].sum(1)

    def _share(self, group, down, up, depends, seen):
        """Of so many that not each has been everywhere: what holds of one may hold of all that the
        output depends on, be it that no single one of them shows it."""
        hidden = ~depends[:, group].any(1, keepdim=True)
        takes_part = depends[:, group] | seen[:, group] | hidden
        for apart, most in ((down, torch.amin), (up, torch.amax)):
            apart[:, group] = torch.where(takes_part, most(apart[:, group], 1, keepdim=True),
                                          apart[:, group])

    def _directions(self):
        """Rows of moves, and the opposites of each."""
        generator, rows = torch.Generator().manual_seed(9), []
        for turn in range(self._turns):
            ordered = [tie.orders(turn) for tie in self._ties]
            for way in range(2):
                row = 2 * torch.rand(len(self._sizes), generator=generator, dtype=torch.float64) - 1
                for tie, orders in zip(self._ties, ordered):
                    count = len(tie.columns)
                    # As far from each other, none of them 0 or the opposite of another
                    row[tie.columns] = (2.0 * orders[way].double() + 1.5 - count) / count
                rows.append(row * self._sizes)
        return torch.stack([sign * row for row in rows for sign in (1, -1)])

    # -- jumps

    def _are_jumps(self, far, near):
        """Of outputs at moves, and at a quarter of each."""
        far, near = ((x - self._base).abs() for x in (far, near))
        return (near > _JUMPS * far) & (far > 64 * self._noise) & far.isfinite()

    def _where_it_jumps(self, rows):
        """By output and input: of the outputs that jump, at which elements. Where that shows at no
        single one, at those that are equally large."""
        jumps = torch.zeros(len(rows), len(self._sizes), dtype=torch.bool)
        moves = self._apart * torch.cat([torch.diag(self._sizes), torch.diag(-self._sizes)])
        values = self._values(torch.cat([moves, moves / 4])).reshape(2, 2, len(self._sizes), -1)
        jumps |= self._are_jumps(*values).any(0).T
        hidden = rows & ~jumps.any(1)
        if bool(hidden.any()):
            tied = [c for tie in self._ties for c in tie.columns]
            jumps[hidden.nonzero(), torch.tensor(tied or list(range(len(self._sizes))))] = True
        return jumps
