"""Measures the derivative near inputs at which a function is not smooth.

When several values tie for the median, moving one of them alone does not show its derivative. So
all elements are moved apart a little, to points where the function is smooth, and its derivative is
measured there: all that lies between those derivatives is right at the inputs. Equal values change
places from point to point, so that each comes first, last and everywhere between. If the backward
seems wrong, values that the function computes inside are moved apart, too.
"""

from dataclasses import dataclass

import torch

_APART = 2.0**-20  # Elements are moved apart by this part of their size; some go further in stir().
_BETWEEN = 0.1
QUIET = 1e-13  # Outputs with more relative noise than this tell little.
_NOISY = 0.35  # Elements are moved apart by the outputs' noise to this power, if that is more.
STEPS = 64  # The steps of differences there are so many times smaller than that distance.
_MOST_POINTS, _MOST_RUNS = 48, 4096
_FEW_TURNS, _SHUFFLED, _FEW_POINTS = 2, 3, 6
_EPS = 2.0**-50
_MOST_STIRRED, _FEW_STIRRED = 2048, 4  # runs, points
OTHER = 1e-3  # Slopes that differ by this, relative to both, are different ones.
_JUMPS = 0.8  # At a jump a quarter of a move changes more than this part of what the move does.


@dataclass
class Tie:
    """Holds input coordinates whose elements are equally large, and their signs. places [element,
    digit] has the input, the rank and the indices of each."""

    columns: list
    signs: torch.Tensor
    places: torch.Tensor

    def orders(self, turn):
        """Returns two permutations: one turns each index, the other the elements of each tensor. A
        reduction may go along one dimension, over the ranks, or over all."""
        return [_turned(digits, turn) for digits in self._digits()]

    def turns(self):
        """Returns how many turns bring each element to each place."""
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
    """Describes all slopes of one output near the inputs, at these input coordinates: they are
    `point` plus combinations of the rows of `ways`, and off by at most `floor`."""

    output: int
    columns: torch.Tensor
    point: torch.Tensor
    ways: torch.Tensor
    floor: float

    def off(self, gradient):
        """Returns the part of these coordinates' gradient that no such slope explains."""
        off = gradient - self.point
        return off - self.ways.T @ (self.ways @ off)


class NearbySlopes:
    """Measures slopes near the inputs. values(moves, perturbation) returns the outputs, base has
    them at the inputs, and noise is theirs by output coordinate."""

    def __init__(self, values, base, sizes, ties, noise, relative):
        self._values, self._base, self._sizes, self._ties = values, base, sizes, ties
        self._noise, self._apart = noise, max(_APART, relative**_NOISY)
        self._relative, self._is_quiet = relative, relative < QUIET
        needed = max([1, *(tie.turns() for tie in ties)])
        most = min(_MOST_POINTS // 4, max(1, _MOST_RUNS // (4 * len(sizes) + 4)))
        # A tie with too many elements for that gets a few turns; with noise, only one.
        few = _FEW_TURNS if self._is_quiet else 1
        self._turns = needed if few <= needed <= most else few
        self.slopes = None  # [point, output, input]
        self._floor = torch.zeros(1, 1)  # [output, input]
        self.jumps = None  # [output, input]

    def look(self):
        points = self._apart * self._directions(self._turns)
        self.slopes, rows = self._slopes_at(points, self._apart / STEPS)
        self.jumps = self._where_it_jumps(rows.any(0))
        # Slopes beyond a jump are those of another function.
        self.slopes[rows] = float("nan")

    def stir(self):
        """Also looks at points where values inside are moved apart, and the inputs by less. Returns
        the slopes there, or None if the function does not run so."""
        found = []
        count = min(_MOST_POINTS // 2, max(4, _MOST_STIRRED // (len(self._sizes) + 1)))
        moves = self._apart / STEPS * self._directions(count // 4)[:count]
        # A step must not reach the next kink, and kinks are as close together as these moves.
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
        """Returns whether the slopes along these moves change if values inside are moved apart."""
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
        """Returns slopes [point, output, input], and [point, output] whether the output jumps on
        the way to the point. perturbation is (how far apart, turn)."""
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
        # Slopes say nothing about the inputs if the step crosses another kink, or if a curve bends
        # more than kinks do.
        is_known = self._is_quiet or perturbation is not None
        is_other = is_known & (off > _BETWEEN * size + 16 * 8 * noise)
        slopes = (moved / h).transpose(1, 2).masked_fill(is_other[:, :, None], float("nan"))
        return slopes, self._are_jumps(here[:, 0], *(here for here, _ in nearer))

    def _noise_of(self, values):
        """Returns the noise of these values, which moves inside may make much larger than the
        outputs are at the inputs."""
        share = _EPS if self._is_quiet else self._relative
        return torch.maximum(self._noise, share * values.abs().nan_to_num(posinf=0).max())

    def widened(self, low, high, depends):
        """Returns (low, high, which elements changed), widened to the slopes nearby."""
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
        """Returns for each (columns, their shares) these two, the slope by output as the columns
        move together, NaN if it differs between points, and by how much it may be off."""
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
        """Returns (numbers of outputs, their signs in a sum, the sum's slope by input, by how much
        it may be off) for the outputs of each slice in spans and for pairs from the lists in alike,
        which may be one function on several ranks. The slope is NaN unless it is the same at all
        points while the outputs' own slopes differ."""
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
        """Returns False if the columns are only a part of a tie whose elements have not all been in
        each place, as nothing is known of such a part."""
        return not any(set(tie.columns) & set(columns) and not set(tie.columns) <= set(columns)
                       for tie in self._uncovered())

    def _uncovered(self):
        return [tie for tie in self._ties if tie.turns() > self._turns]

    def hulls(self, columns_of, blocks):
        """Returns a Hull for each output, of the inputs that columns_of marks, or, if these are too
        many, Hulls of each block of inputs."""
        found = []
        taking_part = columns_of.sum(1).gt(1) if self._is_quiet else torch.zeros(0)
        for b in taking_part.nonzero().flatten().tolist():
            of_all = self._hull(b, columns_of[b].nonzero().flatten())
            parts = [] if of_all else [self._hull(b, block[columns_of[b, block]])
                                       for block in blocks]
            found += [hull for hull in (of_all, *parts) if hull]
        return found

    def _hull(self, b, columns):
        """Returns a Hull, or None if there are too few points to know all ways in which slopes
        differ, as where an element with a kink has one slope at all of them."""
        slopes, uncovered = self.slopes[:, b, columns], {c for tie in self._uncovered()
                                                         for c in tie.columns}
        slopes = slopes[slopes.isfinite().all(1)]
        if len(columns) < 2 or len(slopes) < _FEW_POINTS or uncovered & set(columns.tolist()):
            return None
        floor = OTHER * float(slopes.abs().max()) + float(self._floor[b, columns].max())
        if bool((slopes.amax(0) - slopes.amin(0) <= floor).any()):
            return None
        point, ways = _span_of(slopes, floor)
        before = _span_of(slopes[:-(len(slopes) // 4)], floor)[1]
        is_settled = len(ways) == len(before) <= len(slopes) - 4
        return Hull(b, columns, point, ways, floor) if is_settled else None

    def _share(self, group, down, up, depends, seen):
        """Gives what one element of a tie shows to all that the output depends on, if not each of
        them has been in each place. If no element shows a dependence, all get it."""
        hidden = ~depends[:, group].any(1, keepdim=True)
        takes_part = depends[:, group] | seen[:, group] | hidden
        for apart, most in ((down, torch.amin), (up, torch.amax)):
            apart[:, group] = torch.where(takes_part, most(apart[:, group], 1, keepdim=True),
                                          apart[:, group])

    def _directions(self, turns):
        """Returns rows of moves, and the opposite of each. Each tie is turned by itself, and the
        last rows shuffle it: else ties that change together by chance would seem connected."""
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
                # Moves are evenly spaced, and none is 0 or the opposite of another.
                row[tie.columns] = sign * (2.0 * order.double() + 1.5 - count) / count
            rows.append(row * self._sizes)
        return torch.stack([sign * row for row in rows for sign in (1, -1)])

    # -- jumps

    def _are_jumps(self, *moved):
        """Returns which outputs jump, given them at moves, at a quarter of these, and at a quarter
        of that, as a slope and a bend may cancel out at one."""
        moved = [(x - self._base).abs() for x in moved]
        stays = [near > _JUMPS * far for far, near in zip(moved, moved[1:])]
        return torch.stack([*stays, moved[-1] > 64 * self._noise, moved[0].isfinite()]).all(0)

    def _where_it_jumps(self, rows):
        """Returns [output, input]: at which elements the outputs in `rows` jump. If no single one
        shows it, all equally large elements count."""
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
    """Returns the points' mean, and the orthogonal directions in which they differ from it."""
    point = points.mean(0)
    _, sizes, ways = torch.linalg.svd(points - point, full_matrices=False)
    return point, ways[sizes > floor * len(points)**0.5]
