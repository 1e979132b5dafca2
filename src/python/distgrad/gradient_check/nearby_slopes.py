"""Where a function is not smooth at the inputs: what its derivative is just beside them.

Of equal values each may be the median, and none of them tells by moving alone. So all elements are
moved apart a little, where the function is smooth, and its derivative is measured there: what lies
between those derivatives is right at the inputs. Equal values change places from one such point to
the next, so that each of them comes first, and last, and everywhere between. Where the backward
seems wrong, what the function computes inside is moved apart, too.
"""

from dataclasses import dataclass

import torch

_APART = 2.0**-20  # of an element's size; with so many elements that stir, some go further
_BETWEEN = 0.1
QUIET = 1e-13  # of the outputs: with more noise than that little can be told
_NOISY = 0.35  # the power of the outputs' noise that they are moved apart by, where that is more
STEPS = 64  # of the differences there, in that distance
_MOST_POINTS, _MOST_RUNS = 48, 4096
_FEW_TURNS, _SHUFFLED, _FEW_POINTS = 2, 3, 6
_EPS = 2.0**-50
_MOST_STIRRED, _FEW_STIRRED = 2048, 4  # runs, points
OTHER = 1e-3  # by how much a slope is another one, relative to both
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


@dataclass
class Hull:
    """Of one output: at these input coordinates its slopes beside the inputs are `point` and
    combinations of the rows of `ways`, and nothing else. floor: by how much they may be off."""

    output: int
    columns: torch.Tensor
    point: torch.Tensor
    ways: torch.Tensor
    floor: float

    def off(self, gradient):
        """How far the gradient of these coordinates is from all that."""
        off = gradient - self.point
        return off - self.ways.T @ (self.ways @ off)


class NearbySlopes:
    """values(moves, perturbation): the outputs; base: at the inputs; noise: by output
    coordinate."""

    def __init__(self, values, base, sizes, ties, noise, relative):
        self._values, self._base, self._sizes, self._ties = values, base, sizes, ties
        self._noise, self._apart = noise, max(_APART, relative**_NOISY)
        self._relative, self._is_quiet = relative, relative < QUIET
        needed = max([1, *(tie.turns() for tie in ties)])
        most = min(_MOST_POINTS // 4, max(1, _MOST_RUNS // (4 * len(sizes) + 4)))
        # Of a tie that has too many for that a few tell as much; noise would only add up.
        few = _FEW_TURNS if self._is_quiet else 1
        self._turns = needed if few <= needed <= most else few
        self.slopes = None  # [point, output, input]
        self._floor = torch.zeros(1, 1)  # [output, input]
        self.jumps = None  # [output, input]

    def look(self):
        points = self._apart * self._directions(self._turns)
        self.slopes, rows = self._slopes_at(points, self._apart / STEPS)
        self.jumps = self._where_it_jumps(rows.any(0))
        # Beyond a jump it is another function.
        self.slopes[rows] = float("nan")

    def stir(self):
        """Looks also where what operators give inside is moved apart, by less, as those of many
        elements go far. The slopes there; None where that could not be."""
        found = []
        count = min(_MOST_POINTS // 2, max(4, _MOST_STIRRED // (len(self._sizes) + 1)))
        moves = self._apart / STEPS * self._directions(count // 4)[:count]
        # A step must not reach from one kink of the inputs to the next: these are as near as moves.
        step = self._apart / STEPS / (STEPS if self._is_quiet else 1)
        for i, point in enumerate(moves):
            slopes, rows = self._slopes_at(point[None], step, (self._apart, i))
            if slopes is None:
                return None
            slopes[rows] = float("nan")
            found.append(slopes)
        stirred = torch.cat(found)
        self.slopes = torch.cat([self.slopes, stirred])
        return stirred

    def stirs(self, along, slopes):
        """Whether the slopes along these moves are others where what operators give is moved
        apart."""
        step = self._apart / STEPS
        moves = torch.cat([torch.zeros_like(along[:1]), step * along])
        for i in range(_FEW_STIRRED):
            values = self._values(moves, (self._apart, i))
            if values is None:
                return False
            there = (values[1:] - values[0]) / step
            room = OTHER * slopes.abs().amax() + 8 * self._noise_of(values) / step
            off = (there - slopes).abs() > room
            if bool(off.any()):
                return True
        return False

    def _slopes_at(self, points, step, perturbation=None):
        """[point, output, input]; and [point, output] whether the output jumps on the way there.
        perturbation: (how far apart, turn)."""
        count = len(self._sizes)
        h = (step * self._sizes)[:, None]
        generator = torch.Generator().manual_seed(13)
        mix = torch.rand(count, generator=generator, dtype=torch.float64) - 0.5
        around = torch.cat([torch.zeros(1, count, dtype=torch.float64), torch.diag(h[:, 0]),
                            (h[:, 0] * mix)[None]])
        there = self._values((points[:, None] + around).reshape(-1, count), perturbation)
        if there is None:
            return None, None
        there = there.reshape(len(points), count + 2, -1)
        here, moved, mixed = there[:, :1], there[:, 1:-1] - there[:, :1], there[:, -1]
        noise = self._noise_of(there)
        self._floor = torch.maximum(self._floor, (8 * noise / h).T)
        parts = (4, 16) if perturbation is None else (16,)
        nearer = [self._values(torch.cat([points, points + h[:, 0] * mix]) / part,
                               perturbation and (perturbation[0] / part, perturbation[1])
                               ).reshape(2, len(points), -1) for part in parts]
        along, size = mixed - here[:, 0], (moved * mix[:, None]).abs().sum(1)
        off = torch.maximum((along - (moved * mix[:, None]).sum(1)).abs(),
                            (along - 16 * (nearer[-1][1] - nearer[-1][0])).abs())
        # Where a step goes over a second kink, or a curve bends more than kinks do, they tell
        # nothing of the inputs.
        is_known = self._is_quiet or perturbation is not None
        is_other = is_known & (off > _BETWEEN * size + 16 * 8 * noise)
        slopes = (moved / h).transpose(1, 2).masked_fill(is_other[:, :, None], float("nan"))
        return slopes, self._are_jumps(here[:, 0], *(here for here, _ in nearer))

    def _noise_of(self, values):
        """What is moved inside may be much larger than an output is at the inputs."""
        share = _EPS if self._is_quiet else self._relative
        return torch.maximum(self._noise, share * values.abs().nan_to_num(posinf=0).max())

    def widened(self, low, high, depends):
        """(low, high, which elements are others than before): what lies between the slopes, too,
        that there are nearby."""
        finite = self.slopes.isfinite()
        least = torch.where(finite, self.slopes, low).amin(0)
        most = torch.where(finite, self.slopes, high).amax(0)
        room = OTHER * torch.maximum(least.abs(), most.abs()) + self._floor
        down = torch.where(least < low - room, least - low, torch.zeros_like(low))
        up = torch.where(most > high + room, most - high, torch.zeros_like(high))
        for tie in self._uncovered():
            self._share(tie.columns, down, up, depends, (self.slopes.abs() > room).any(0))
        return low + down, high + up, (down < 0) | (up > 0)

    def together(self, groups):
        """Of (columns, their shares): (both, by output the slope as they move together, NaN where
        it is not the same all around, by how much it may be off)."""
        found = []
        for columns, shares in groups:
            along = self.slopes[:, :, columns] @ shares
            slopes = along.nanmean(0)
            off = (along - slopes).abs().nan_to_num(posinf=0).amax(0)
            room = (1 if self._is_quiet else 8) * self._floor[:, columns] @ shares.abs()
            size = (self.slopes[:, :, columns].abs() @ shares.abs()).nan_to_num(posinf=0).amax(0)
            known = ((off <= OTHER * size + room) & self._is_whole(columns)
                     & (along.isfinite().sum(0) >= _FEW_POINTS))
            found.append((columns, shares, slopes.masked_fill(~known, float("nan")), off + room))
        return found

    def sums(self, spans, alike):
        """Of outputs: (their numbers, the signs they are added up with, by input the slope of their
        sum, NaN where it is not the same all around though theirs are others, by how much it may be
        off). spans: slices; alike: lists of outputs that may be one function, on several ranks."""
        of_tensors = [(list(range(s.start, s.stop)), torch.ones(s.stop - s.start).double())
                      for s in spans] if self._is_quiet else []
        apart = [([group[0], other], torch.tensor([1.0, -1.0], dtype=torch.float64))
                 for group in alike for other in group[1:]]
        found, uncovered = [], [c for tie in self._uncovered() for c in tie.columns]
        for outputs, signs in of_tensors + apart:
            slopes = self.slopes[:, outputs]
            slopes = slopes[slopes.isfinite().flatten(1).all(1)]
            if slopes.shape[1] < 2 or len(slopes) < _FEW_POINTS:
                continue
            room = self._floor[outputs].sum(0)
            moves = (slopes.amax(0) - slopes.amin(0)).amax(0) > room + OTHER * slopes.abs().amax()
            total = torch.einsum("o,poi->pi", signs, slopes)
            off = (total - total.mean(0)).abs().amax(0)
            known = moves & (off <= OTHER * slopes.abs().sum(1).amax(0) + room)
            known[uncovered] = False
            found.append((outputs, signs, total.mean(0).masked_fill(~known, float("nan")),
                          off + room))
        return found

    def _is_whole(self, columns):
        """Of a part of a tie nothing is known where not each of its elements has been in each
        place."""
        return not any(set(tie.columns) & set(columns) and not set(tie.columns) <= set(columns)
                       for tie in self._uncovered())

    def _uncovered(self):
        return [tie for tie in self._ties if tie.turns() > self._turns]

    def hulls(self, columns_of, blocks):
        """Hulls, of what takes part by output and input; of each block of inputs where all are too
        many to tell."""
        found = []
        taking_part = columns_of.sum(1).gt(1) if self._is_quiet else torch.zeros(0)
        for b in taking_part.nonzero().flatten().tolist():
            of_all = self._hull(b, columns_of[b].nonzero().flatten())
            parts = [] if of_all else [self._hull(b, block[columns_of[b, block]])
                                       for block in blocks]
            found += [hull for hull in (of_all, *parts) if hull]
        return found

    def _hull(self, b, columns):
        """None where the points beside the inputs are not more than the ways that the slopes differ
        in."""
        slopes, uncovered = self.slopes[:, b, columns], {c for tie in self._uncovered()
                                                         for c in tie.columns}
        slopes = slopes[slopes.isfinite().all(1)]
        if len(columns) < 2 or len(slopes) < _FEW_POINTS or uncovered & set(columns.tolist()):
            return None
        floor = OTHER * float(slopes.abs().max()) + float(self._floor[b, columns].max())
        point, ways = _span_of(slopes, floor)
        before = _span_of(slopes[:-(len(slopes) // 4)], floor)[1]
        is_settled = len(ways) == len(before) <= len(slopes) - 4
        return Hull(b, columns, point, ways, floor) if is_settled else None

    def _share(self, group, down, up, depends, seen):
        """Of so many that not each has been everywhere: what holds of one may hold of all that the
        output depends on, be it that no single one of them shows it."""
        hidden = ~depends[:, group].any(1, keepdim=True)
        takes_part = depends[:, group] | seen[:, group] | hidden
        for apart, most in ((down, torch.amin), (up, torch.amax)):
            apart[:, group] = torch.where(takes_part, most(apart[:, group], 1, keepdim=True),
                                          apart[:, group])

    def _directions(self, turns):
        """Rows of moves, and the opposites of each. Each tie is turned by itself, and the last ones
        are in any order: else what ties change together by chance would seem to belong
        together."""
        generator, of_ties = (torch.Generator().manual_seed(seed) for seed in (9, 10))
        shifts, rows = torch.randint(0, 64 if self._is_quiet else 1, (len(self._ties),),
                                     generator=of_ties).tolist(), []
        for number in range(2 * turns + _SHUFFLED * self._is_quiet):
            row = 2 * torch.rand(len(self._sizes), generator=generator, dtype=torch.float64) - 1
            signs = 1 - 2 * torch.randint(0, 1 + self._is_quiet, (len(self._ties),),
                                          generator=of_ties)
            for tie, shift, sign in zip(self._ties, shifts, signs.tolist()):
                count = len(tie.columns)
                order = (tie.orders(number // 2 + shift)[number % 2] if number < 2 * turns else
                         torch.randperm(count, generator=of_ties))
                # As far from each other, none of them 0 or the opposite of another
                row[tie.columns] = sign * (2.0 * order.double() + 1.5 - count) / count
            rows.append(row * self._sizes)
        return torch.stack([sign * row for row in rows for sign in (1, -1)])

    # -- jumps

    def _are_jumps(self, *moved):
        """Of outputs at moves, at a quarter of each, and a quarter of that: a slope and a bend may
        cancel out at one."""
        moved = [(x - self._base).abs() for x in moved]
        stays = [near > _JUMPS * far for far, near in zip(moved, moved[1:])]
        return torch.stack([*stays, moved[-1] > 64 * self._noise, moved[0].isfinite()]).all(0)

    def _where_it_jumps(self, rows):
        """By output and input: of the outputs that jump, at which elements. Where that shows at no
        single one, at those that are equally large."""
        jumps = torch.zeros(len(rows), len(self._sizes), dtype=torch.bool)
        if not bool(rows.any()):
            return jumps
        moves = self._apart * torch.cat([torch.diag(self._sizes), torch.diag(-self._sizes)])
        values = self._values(torch.cat([moves, moves / 4, moves / 16]))
        jumps |= self._are_jumps(*values.reshape(3, 2, len(self._sizes), -1)).any(0).T
        hidden = rows & ~jumps.any(1)
        if bool(hidden.any()):
            tied = [c for tie in self._ties for c in tie.columns]
            jumps[hidden.nonzero(), torch.tensor(tied or list(range(len(self._sizes))))] = True
        return jumps


def _span_of(points, floor):
    """A point in the middle, and the orthogonal ways in which the others are from it."""
    point = points.mean(0)
    _, sizes, ways = torch.linalg.svd(points - point, full_matrices=False)
    return point, ways[sizes > floor * len(points)**0.5]
