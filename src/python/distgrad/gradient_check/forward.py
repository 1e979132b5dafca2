"""Measures the derivative of the forward over all ranks, from rank 0 through a session. The right
backward is its transpose.

First all coordinates are moved by 1/64 of their size, and random superpositions of them. If the
single moves add up to these, the forward is affine, and its derivative is known to rounding. Else
central differences with three step sizes are extrapolated, and their changes show the error.
Smaller steps follow where they disagree; where the slopes of both sides stay apart is a kink.
"""

from dataclasses import dataclass, field, replace
from typing import Optional

import torch

from .nearby_slopes import OTHER, QUIET, NearbySlopes

_FIRST = 2.0**-6
_FIRST_NARROW = 8.0
_SUPERPOSITIONS = 4
# The largest step of differences is this part of a coordinate's size. It is no power of two, as
# sin(2^n pi x), by which positions are encoded, would seem constant.
_SMOOTH = 0.0037
_QUICK = 2.0**-17  # This single step is enough if combinations confirm its slopes.
# These steps are tried where a larger one may cross a kink, or does not resolve a wave.
_NEARER = (2.0**-16, 2.0**-24, 2.0**-30)
_NOISE_STEPS = (2.0**-6, 2.0**-11, 2.0**-16)
_REFUTES = 4  # Slopes that differ by so many times their errors are not the same.
_CURVE_STEPS = (2.0**-21, 2.0**-26)
_FALLS = 64  # A smaller step shows so many times less of a curve.
_MAY_BE_A_CURVE = 1e-10  # Noise that is more, relative to the outputs, may be a fast wave.
# These steps resolve a curve that larger ones take for noise.
_FINE_STEPS = (2.0**-26, 2.0**-34, 2.0**-42)
_STEEP = 16  # Noise does not hide a slope that is so many times what was found, error included.
_BENT = 0.1  # The slopes of a line differ by less than this part.
_NEAR_PLACES = 2.0**-12  # Slopes of curves are alike at places this far from each other.
_ROUGH = 1e-5  # More relative noise of the outputs than this means half precision inside.
_GOOD = 1e-8  # An error of this part of the largest derivative is small enough.
_KNOWN = 1e-4  # A derivative with a larger error than this counts as unknown.
_OTHER_INSIDE = 1e-2  # A curve's slopes differ by less than this part of an output's largest.
_KINK = 1e-4  # At a kink the slopes of both sides differ by more than this, relative to them.


@dataclass
class Derivative:
    """Holds matrix [output coordinate, input coordinate], the error of its elements, and by output
    coordinate whether it is affine. low and high are the slopes of both sides of a kink. open marks
    elements that are unknown. least is what roundings of the outputs hide at best."""

    matrix: torch.Tensor
    error: torch.Tensor
    affine: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    open: torch.Tensor
    evaluations: int = 0
    # The function is smooth along these combinations of input coordinates with kinks:
    # (coordinates, their shares, slopes by output coordinate, errors).
    together: list = field(default_factory=list)
    hulls: list = field(default_factory=list)  # Each Hull bounds the slopes of several inputs.
    sums: list = field(default_factory=list)  # NearbySlopes.sums() returned these.
    hidden: Optional[torch.Tensor] = None  # It marks elements whose kinks inside cancel out.
    jumps: Optional[torch.Tensor] = None  # It marks elements at which the function jumps.
    repeats: bool = True  # It says whether two runs gave the same.
    noise: float = 0.0  # This is the outputs' noise, relative to them.
    least: Optional[torch.Tensor] = None

    def kinks(self):
        return (self.high > self.low).any(0)


class Measurement:
    """Measures a Derivative. sizes are those of the input's coordinates; spans are slices of the
    output's coordinates, by tensor. groups lists input coordinates of the same element on several
    ranks, alike the output's. of_ranks has each rank's coordinates, ties the Ties."""

    def __init__(self, move, sizes, spans, groups, alike, of_ranks, ties, eps):
        self._move, self._sizes, self._spans = move, sizes, spans
        self._alike = alike
        self._groups, self._of_ranks, self._ties, self._eps = groups, of_ranks, ties, eps
        self._count = len(sizes)
        self._depends = torch.tensor(False)
        self._evaluations = 0
        self._known_noise = None  # _noise_and_share() keeps its result here.
        self._nearby = None  # _look_nearby() keeps its NearbySlopes here.

    def run(self):
        found = self._affine(self._eps)
        least = found.error
        if found.repeats and not bool(found.affine.all()):
            noise, relative = self._noise_and_share()
            # Differences would tell little about a function that is affine but for roundings.
            rough = self._affine(relative) if relative > _ROUGH else found
            found = (rough if bool(rough.affine.all())
                     else self._by_differences(found.affine, noise, relative))
            if relative > _MAY_BE_A_CURVE and self._is_a_curve(found):
                found.open = torch.ones_like(found.open)
            else:
                found.noise = relative
        found.least = least
        found.evaluations = self._evaluations
        return found

    def keeps_something(self):
        """Returns whether the inputs as given give something else than first, after runs at others:
        what is detached may have been held as a constant meanwhile."""
        first, *_, last = self._move(torch.stack([share * self._step for share in (0, 1, 0.5, 0)]),
                                     None)
        return not (self._is_base(first) and self._is_base(last))

    # -- affine?

    def _affine(self, eps):
        # Large steps lose nothing if all is linear; small ones lose much in a narrow dtype.
        step = self._sizes * (_FIRST if eps < 1e-12 else _FIRST_NARROW)
        # In float64 shares are no dyadic fractions, as roundings to a narrower dtype inside would
        # leave these exact and stay unseen.
        mixes = _superpositions(step, dyadic=eps > 1e-12)
        values = self._values(torch.cat([self._zeros(2), torch.diag(step), mixes]))
        (base,
         again), moved, mixed = values[:2], values[2:2 + self._count], values[2 + self._count:]
        self._base, size = base, self._size_of(values)
        matrix = ((moved - base) / step[:, None]).T
        room = 64 * eps * (size + (mixes.abs() + self._sizes) @ matrix.abs().T)
        affine = ((mixed - base - mixes @ matrix.T).abs() <= room).all(0) & matrix.isfinite().all(1)
        # An output that is 0 everywhere has no size that its error is relative to.
        error = (4 * eps * (size[:, None] / step[None])).masked_fill((size == 0)[:, None], eps**2)
        self._step, self._least = step, error
        # An output that small steps changed does depend, even if large steps round by more.
        self._depends = self._depends | self._is_changed(matrix)
        self._same = 64 * eps * size
        return Derivative(matrix, error, affine, matrix, matrix,
                          torch.zeros_like(matrix, dtype=torch.bool), repeats=self._is_base(again))

    def _is_base(self, again):
        base = self._base
        same = ((base - again).abs() <= self._same) | (base.isnan() & again.isnan()) | (
            base == again)
        return bool(same.all())

    def _zeros(self, count):
        return torch.zeros(count, self._count, dtype=torch.float64)

    def _is_a_curve(self, found):
        """Returns whether steps far below the noise follow lines, much steeper than what was found
        or of other slopes nearby: then it is no noise, but a curve that larger steps do not
        resolve."""
        along = torch.tensor([0.0, -1, 1, 2], dtype=torch.float64)
        places = torch.cat([torch.zeros(1, self._count, dtype=torch.float64),
                            _NEAR_PLACES * _superpositions(self._sizes, dyadic=False)[:2]])
        room = _STEEP * (found.matrix.abs() + found.error) @ self._sizes
        for step in _FINE_STEPS:
            moves = torch.outer(along, self._signs() * self._sizes * step)
            values = self._values((places[:, None] + moves).flatten(0, 1)).unflatten(
                0, (len(places), len(along)))
            slopes = (values[:, 1:] - values[:, :1]) / (along[1:] * step)[None, :, None]
            first = slopes[:, 0]
            is_line = ((slopes - first[:, None]).abs() <= _BENT * first.abs()[:, None]).all(1)
            is_line &= first.abs() * step > 2.0**-46 * self._base.abs()  # It shows in the digits.
            is_steep = (is_line & (first.abs() > room)).any(0)
            low, high = first.amin(0), first.amax(0)
            turns = is_line.all(0) & (high - low > 4 * _BENT * torch.maximum(-low, high))
            if bool((is_steep | turns).any()):
                return True
        return False

    # -- differences

    def _noise_and_share(self):
        """Returns the noise by output coordinate, and the largest relative to its output."""
        if self._known_noise is None:
            noise, size, share = self._noise()
            share = min(1.0, max(share, self._eps))
            self._known_noise = torch.maximum(noise, self._eps * size), share
        return self._known_noise

    def _by_differences(self, affine, noise, relative):
        self._look_below()
        groups = _independent(self._depends)
        slopes = self._quick(groups, noise) if relative < QUIET else None
        if slopes is None:
            first = min(0.5, max(_SMOOTH, relative**0.2))
            slopes = self._slopes(groups, first, noise)
            adds_up, rough = self._sums(slopes, first, noise)
            if not adds_up:
                slopes = self._slopes([[c] for c in range(self._count)], first, noise)
                _, rough = self._sums(slopes, first, noise)
            slopes.is_rough = rough
        kink, unknown = slopes.kinks(), slopes.is_unsure(_KNOWN)
        unknown &= ~kink
        error = torch.where(kink, slopes.floor, slopes.error)
        low = torch.where(kink, torch.minimum(slopes.below, slopes.above), slopes.value)
        high = torch.where(kink, torch.maximum(slopes.below, slopes.above), slopes.value)
        found = Derivative(slopes.value, error, affine, low, high, unknown)
        if relative < _ROUGH and (slopes.is_rough or bool((kink | unknown).any())):
            self._look_nearby(found, noise, relative)
        return found

    def _look_nearby(self, found, noise, relative):
        self._nearby = self._beside(noise, relative)
        self._nearby.look()
        found.jumps = self._nearby.jumps
        found.open = found.open | found.jumps
        self._widen(found, self._nearby)
        self._tie(found, self._nearby)

    def _beside(self, noise, relative):
        return NearbySlopes(self._values, self._base, self._sizes, self._ties, noise, relative)

    def _widen(self, found, nearby):
        """Widens what is right at kinks to all slopes nearby, whose mean also replaces differences
        at jumps, as these are no derivative."""
        found.low, found.high, others = nearby.widened(found.low, found.high, self._depends)
        between = nearby.slopes.nan_to_num(nan=float("nan"), posinf=0, neginf=0).nanmean(0)
        elsewhere = others | found.open
        found.matrix = torch.where(elsewhere, between.nan_to_num(), found.matrix)
        found.error = found.error.masked_fill(elsewhere, 0.0)
        found.low = torch.where(found.open, found.matrix, found.low)
        found.high = torch.where(found.open, found.matrix, found.high)

    def _tie(self, found, nearby):
        kinks = found.high > found.low
        found.together = nearby.together(self._candidates(kinks.any(0)))
        found.hulls = nearby.hulls(kinks, self._of_ranks)
        found.sums = nearby.sums(self._spans, self._alike)

    # -- kinks and ties of what is made inside

    def stirred(self, found, gradient):
        """Returns this Derivative, widened by the slopes that there are with values inside moved
        apart, or None if these are no others. Where the function itself is smooth and the measured
        gradient [input, output] is among these slopes, kinks inside cancel out; torch's own
        gradient may be the same there, so these elements become open."""
        noise, relative = self._noise_and_share()
        if relative >= _ROUGH:
            return None
        nearby = self._nearby
        if nearby is None:
            nearby, mixes = self._beside(noise, relative), _superpositions(self._sizes)[::2]
            if not nearby.stirs(mixes, mixes @ found.matrix.T):
                return None
            nearby.look()
        stirred = nearby.stir()
        if stirred is None:
            return None
        smooth, known = (found.high <= found.low) & ~found.open, found
        found = replace(known)
        self._widen(found, nearby)
        self._open_hidden(found, known, smooth, gradient.T, stirred)
        found.evaluations = self._evaluations
        self._tie(found, nearby)
        return found

    @staticmethod
    def _open_hidden(found, known, smooth, gradient, stirred):
        """Opens elements whose kinks inside cancel out, if slopes differ more than a curve's do."""
        size = torch.maximum(found.low.abs(), found.high.abs()).amax(1, keepdim=True)
        room = _OTHER_INSIDE * size
        outside = (gradient < known.low - room) | (gradient > known.high + room)
        inside = (gradient > found.low - room) & (gradient < found.high + room)
        width = found.high - found.low
        unsettled = (_still_grow(stirred, room).any(1, keepdim=True) & ~inside
                     & (gradient > found.low - width) & (gradient < found.high + width))
        found.hidden = outside & (smooth & inside | unsettled) & (width > room)
        found.open = found.open | found.hidden
        for name in ("matrix", "low", "high", "error"):
            setattr(found, name, torch.where(smooth & ~found.hidden, getattr(known, name),
                                             getattr(found, name)))
        # With values inside moved apart, slopes are a little off as well.
        found.error = torch.where(found.high > found.low, torch.maximum(
            found.error, OTHER * size), found.error)
        for name in ("low", "high"):
            setattr(found, name, torch.where(found.hidden, found.matrix, getattr(found, name)))

    def _look_below(self):
        """Adds dependences on moves down, as at a minimum or a cap moves up may change nothing."""
        below = self._values(-torch.diag(self._step))
        slopes = ((self._base - below) / self._step[:, None]).T
        self._depends |= self._is_changed(slopes)

    def _is_changed(self, slopes):
        """Returns where outputs depend on inputs, given slopes by large steps. The roundings of
        half precision would hide that; there whatever changes depends."""
        return (slopes.abs() > (0 if self._eps > _ROUGH else 16 * self._least)
                ) | ~slopes.isfinite()

    def _quick(self, groups, noise):
        """Returns slopes by one step, or None if slopes along random combinations, by three steps,
        are not their sums. The combinations show kinks, and how far a column may be off."""
        one = self._stencil(groups, (_QUICK,))[0]
        slopes = _Slopes.single(self._base, one, noise)
        mixes = _superpositions(self._sizes)[:_SUPERPOSITIONS // 2]
        along = self._along(mixes, _SMOOTH, noise)
        off = (along.value - slopes.value @ mixes.T).abs()
        # Columns are off by truncation: a few such errors do not cancel in every combination.
        slopes.error = (slopes.floor + (4 * off.amax(1) + along.error.amax(1))[:, None]
                        / self._sizes.expand_as(slopes.value))
        return (None if bool(along.is_unsure(_GOOD).any()) or bool(slopes.is_unsure(_GOOD).any())
                else slopes)

    def _along(self, mixes, first, noise, nearer=()):
        """Returns the slopes along combinations of all moves, by steps `nearer` where unsure."""

        def stencil(shares):
            values = self._values(
                torch.cat([sign * share * mixes for share in shares for sign in (1, -1)]))
            h = torch.ones(len(mixes), dtype=torch.float64)
            return [(share * h, *pair) for share, pair in
                    zip(shares, values.reshape(len(shares), 2, len(mixes), -1))]

        slopes = _Slopes.extrapolated(self._base, stencil((first, first / 2, first / 4)), noise)
        for near in nearer:
            if bool(slopes.is_unsure(_GOOD).any()):
                other = _Slopes.pair(self._base, stencil((near, near / 4)), noise)
                slopes.take_better(other, list(range(len(mixes))))
        return slopes

    def _slopes(self, groups, first, noise):
        """Returns the slopes of all columns. Those of a group are moved together, as no output
        depends on two of them."""
        slopes = _Slopes.extrapolated(self._base,
                                      self._stencil(groups, (first, first / 2, first / 4)), noise)
        columns = slopes.is_unsure(_GOOD).any(0).nonzero().flatten().tolist()
        for nearer in _NEARER if columns else ():
            stencil = self._stencil([[c] for c in columns], (nearer, nearer / 4))
            slopes.take_better(_Slopes.pair(self._base, stencil, noise), columns)
            columns = [c for c in columns if bool(slopes.is_unsure(_GOOD)[:, c].any())]
            if not columns:
                break
        return slopes

    def _sums(self, slopes, first, noise):
        """Returns whether slopes along random combinations of the columns without kinks are the
        columns' sums, and whether those of all columns are not: equal values that change places
        only if moved together show no kink one by one."""
        every = torch.ones(self._count, dtype=torch.bool)
        sure = ~slopes.is_unsure(_KNOWN).any(0)
        off, unsure = self._off_along(slopes, sure, first, noise)
        adds_up, rough = not bool((off & ~unsure).any()), bool((off | unsure).any())
        if adds_up and not bool(sure.all()):
            off, unsure = self._off_along(slopes, every, first, noise)
            rough = bool((off | unsure).any())
        return adds_up, rough

    def _off_along(self, slopes, columns, first, noise):
        """Returns where slopes along random combinations of these columns are not the columns'
        sums, and where they are unknown."""
        mixes = _superpositions(self._sizes * columns)[:_SUPERPOSITIONS // 2]
        # The roundings of a narrow dtype pass for slopes if steps are small.
        quiet = self._noise_and_share()[1] < _GOOD
        along = self._along(mixes, first, noise, _NEARER if quiet else ())
        expected = slopes.value[:, columns] @ mixes[:, columns].T
        room = along.error + slopes.error[:, columns] @ mixes[:, columns].abs().T
        largest = along.value.abs().nan_to_num().amax() if along.value.numel() else 0.0
        off = (along.value - expected).abs() > 4 * room + _GOOD * largest
        return off, along.is_unsure(_KNOWN)

    def _noise(self):
        """Returns by output coordinate how far values are off a smooth curve, and their size; and
        the largest ratio of both. It takes sixth differences along one direction, to one side of
        the inputs, which may have a kink or a jump. Steps are ninths, which no dtype holds exactly,
        of three sizes, as roundings may cancel out at one. Smaller ones follow while they show much
        less, as noise does not depend on the step, and a curve does."""
        nines, found, shares = [], [], []
        for steps in (_NOISE_STEPS, *zip(_CURVE_STEPS)):
            if shares:
                before, last = (_finite(x).max() for x in shares[-2:])
                if last < QUIET or last * _FALLS > before:
                    break
            for nine in self._nines(steps):
                nines.append(nine)
                found.append(_sixth_differences(nine))
                shares.append(found[-1] / self._size_of(nine).clamp_min(1e-300))
        noise = self._by_span(_finite(torch.stack(found).amin(0)))
        share = float(_finite(torch.stack(shares).amin(0)).max())
        return noise, self._size_of(torch.cat([self._base[None], *nines])), share

    def _nines(self, steps):
        """Returns [step, move, output]: the outputs at nine moves in each step."""
        moves = torch.cat([torch.outer(torch.arange(1.0, 10.0, dtype=torch.float64) / 9,
                                       self._signs() * self._sizes * step) for step in steps])
        return self._values(moves).reshape(len(steps), 9, -1)

    def _signs(self):
        """Returns a sign of each coordinate, the same ones each time."""
        generator = torch.Generator().manual_seed(5)
        return torch.randint(0, 2, (self._count,), generator=generator) * 2.0 - 1

    def _stencil(self, groups, steps):
        """Returns for each step (step by column, values above, values below), the latter as
        [column, output], with the groups' columns in their order."""
        columns = [c for group in groups for c in group]
        place = [i for i, group in enumerate(groups) for _ in group]
        moves = []
        for step in steps:
            for sign in (1, -1):
                move = torch.zeros(len(groups), self._count, dtype=torch.float64)
                move[place, columns] = sign * step * self._sizes[columns]
                moves.append(move)
        values = self._values(torch.cat(moves)).reshape(len(steps), 2, len(groups), -1)[:, :, place]
        if len(groups) < len(columns):
            values = torch.where(self._depends[:, columns].T, values, self._base)
        order = (torch.tensor(columns).argsort() if len(columns) == self._count
                 else torch.arange(len(columns)))
        h = self._sizes[columns][order]
        return [(step * h, values[i, 0][order], values[i, 1][order]) for i, step in enumerate(steps)
               ]

    def _candidates(self, columns):
        """Returns (columns, shares) of elements with kinks that may share one slope: the same one
        on several ranks, all of them, or those of a tie."""
        even = [(group, torch.ones(len(group), dtype=torch.float64))
                for group in [*self._groups, list(range(self._count))]]
        groups = {}
        for group, shares in [*even, *((tie.columns, tie.signs) for tie in self._ties)]:
            kept = [(c, share) for c, share in zip(group, shares.tolist()) if bool(columns[c])]
            if len(kept) > 1:
                groups[tuple(kept)] = ([c for c, _ in kept], torch.tensor(
                    [share for _, share in kept], dtype=torch.float64))
        return list(groups.values())

    # -- what the outputs are measured by

    def _values(self, moves, perturbation=None):
        self._evaluations += len(moves)
        return self._move(moves, perturbation)

    def _size_of(self, values):
        """Returns, by output coordinate, the largest value in its tensor."""
        return self._by_span(values.abs().nan_to_num(posinf=0).amax(0))

    def _by_span(self, x):
        result = x.clone()
        for span in self._spans:
            if span.stop > span.start:
                result[span] = x[span].max()
        return result


class _Slopes:
    """Holds slopes [output, column], and what is known of their error and of both sides."""

    def __init__(self, value, error, floor, below, above, gap_far, gap_near):
        self.value, self.error, self.floor = value, error, floor
        self.below, self.above, self._gap_far, self._gap_near = below, above, gap_far, gap_near
        self.is_rough = False  # It is true if they are known not to be a smooth function's.

    @classmethod
    def extrapolated(cls, base, stencil, noise):
        first, second, third = (_central(*s) for s in stencil)
        rough, fine = (4 * second - first) / 3, (4 * third - second) / 3
        floor = 4 * noise / stencil[2][0][:, None]
        return cls._of(fine + (fine - rough) / 15, (fine - rough).abs() + floor, floor, base,
                       stencil[0], stencil[2])

    @classmethod
    def pair(cls, base, stencil, noise):
        far, near = (_central(*s) for s in stencil)
        floor = 4 * noise / stencil[1][0][:, None]
        return cls._of((16 * near - far) / 15, 4 * (near - far).abs() + floor, floor, base,
                       *stencil)

    @classmethod
    def single(cls, base, stencil, noise):
        """Returns slopes of one step, of which neither kinks nor an error above the floor is
        known."""
        h, above, below = stencil
        slopes = cls._of(_central(*stencil), (4 * noise / h[:, None]), 4 * noise / h[:, None], base,
                         stencil, stencil)
        slopes._gap_far = torch.zeros_like(slopes._gap_far)
        return slopes

    @classmethod
    def _of(cls, value, error, floor, base, far, near):
        sides = [((above - base) / h[:, None], (base - below) / h[:, None])
                 for h, above, below in (far, near)]
        gaps = [above - below for above, below in sides]
        above, below = sides[1]
        return cls(*(x.T for x in (value, error, floor.expand_as(value), below, above, *gaps)))

    def kinks(self):
        """Returns where the slopes of both sides do not come together as the step shrinks."""
        apart = self._gap_near.abs()
        sides = self.below.abs() + self.above.abs()
        stays = (apart > 0.5 * self._gap_far.abs()) & (apart < 2 * self._gap_far.abs())
        return stays & (apart > _KINK * sides + 16 * self.floor) & sides.isfinite()

    def is_unsure(self, share):
        largest = self.value.abs().nan_to_num(posinf=0).amax()
        off = torch.where(self.error.isfinite(), self.error,
                          torch.full_like(self.error, float("inf")))
        return (off > share * largest + 2 * self.floor) | self.kinks() | ~self.value.isfinite()

    def take_better(self, other, columns):
        """Takes slopes of smaller steps where their error is less, or where they refute those that
        there are: the differences of three large steps may agree by chance."""
        better = torch.zeros_like(self.value, dtype=torch.bool)
        own = self.error[:, columns]
        is_other = (other.value - self.value[:, columns]).abs() > _REFUTES * (own + other.error)
        here = (other.error < own) | is_other | ~own.isfinite() | self.kinks()[:, columns]
        better[:, columns] = here & other.value.isfinite()
        for name in ("value", "error", "floor", "below", "above", "_gap_far", "_gap_near"):
            wide = getattr(self, name).clone()
            wide[:, columns] = getattr(other, name)
            setattr(self, name, torch.where(better, wide, getattr(self, name)))


def _sixth_differences(nine):
    """Returns how far outputs at nine evenly spaced moves are off a smooth curve, infinite where
    hardly any changes: the moves are within one rounding of a narrow dtype."""
    binomial = torch.tensor([1.0, -6, 15, -20, 15, -6, 1], dtype=torch.float64)
    off = (nine.unfold(0, 7, 1) @ binomial).abs().amax(0) / 924**0.5
    changes = (nine.diff(dim=0) != 0).sum(0) >= 5
    return off.masked_fill(~changes, float("inf"))


def _finite(x):
    """Replaces by 0 what is not finite."""
    return x.nan_to_num(0.0, 0.0, 0.0)


def _still_grow(slopes, room):
    """Returns where the last quarter of points exceeds all before, so that more would go on."""
    before = slopes[:-(len(slopes) // 4)]
    low = before.nan_to_num(nan=float("inf")).amin(0)
    high = before.nan_to_num(nan=-float("inf")).amax(0)
    return ((slopes < low - room) | (slopes > high + room)).any(0)


def _central(h, above, below):
    return (above - below) / (2 * h[:, None])


def _independent(depends):
    """Returns groups of columns of which no two have a True in the same row."""
    groups = []
    for c in range(depends.shape[1]):
        for taken, group in groups:
            if not bool((taken & depends[:, c]).any()):
                taken |= depends[:, c]
                group.append(c)
                break
        else:
            groups.append((depends[:, c].clone(), [c]))
    return [group for _, group in groups]


def _superpositions(step, dyadic=True):
    """Returns random combinations of all moves, half of them the opposites of the others."""
    generator = torch.Generator().manual_seed(3)
    shape = (_SUPERPOSITIONS // 2, len(step))
    sign = 2.0 * torch.randint(0, 2, shape, generator=generator) - 1
    size = torch.rand(shape, generator=generator, dtype=torch.float64)
    half = sign * (0.5 + ((size * 3).floor() / 4 if dyadic else size / 2)) * step
    return torch.cat([half, -half])
