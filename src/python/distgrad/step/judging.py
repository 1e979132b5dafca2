"""Decides which parameters' gradients are wrong, by what factor, and what would be right.

The whole model is moved first. If gradients do not predict what the loss does, halves of the model
are moved, then each parameter alone. A wrong gradient that is not off by a factor is compared with
sums of what the ranks have: one that agrees with the measured derivative along several random
directions is the right gradient.
"""

import dataclasses
import math
import operator
import re
import time

import torch

from ..words import ranks_text
from .outputs import Watch
from .roots import is_in_backward
from .subgroups import partitions, subgroups
from .variables import digest, local_of, may_be_pieces

_ROUNDS = 4  # Pieces that are too small to be seen are moved without the others so many times.
_ALONE = 8  # So few pieces are measured one by one rather than by halves.
_SEEDS = (11, 12, 13)
_ACROSS_SEEDS = (14, 15, 16, 17)
_ACROSS_SIZES = (1, 4)  # These are sizes of moves, relative to the usual one.
_CONFIRMED_BY = 4  # An error counts if it is so many times the resolution, or another one's.
_ALIKE = 1e-3  # Copies' gradients that differ by less, relatively, differ by rounding.
_HOLDERS = "the ranks that hold it"
_CLEAR = 3  # A common factor differs from 1 by so many times the error of ratios.
_LIKELY = 4  # Rounding moves gradients by so many times less than the room that they get.
BLIND = 0.1  # Errors of this part of a gradient, or more, are noted if they would not be seen.
_FEW = 4  # So few parameters are each moved alone to see more.
_KINK = "the loss has a kink here"
_ROUGHLY = 0.05  # A factor that is known so well, relatively, may be that of other parameters.
_UNLIKE = 0.5  # Copies' gradients that differ by this part of their norm do not by rounding,
_NOT_SMALL = 1 / 8  # unless they are so much smaller than the others'.
_WHOLE = 1e-3  # In float32 a sum over all parameters may be off by this part.
_OWN = "p.grad itself"
_MOST_SUPPOSED = 1 << 25  # Ranks send each other gradients of at most so many elements.
_CONFIRMED = 3  # A sum of gradients must be right along so many directions to be called right.


@dataclasses.dataclass
class Finding:
    """Describes parameters that are wrong in the same way; kind is "factor", "zero" or "other".
    factors is {rank: p.grad over the derivative} of ranks where that is one number; right says in
    words what is the derivative instead, or is "" if that is not known."""

    kind: str
    names: list
    factors: dict = dataclasses.field(default_factory=dict)
    right: str = ""
    instead: str = ""  # It says in words what p.grad is, if that is known.
    assumed: str = ""  # It says what is taken for granted.
    said: dict = dataclasses.field(default_factory=dict)  # {rank: what its p.grad says}
    between: tuple = ()  # If there is a factor, it lies between these two numbers.
    is_no_multiple: bool = False  # Directions show that there is no factor.
    are_unlike: bool = False  # Copies have different gradients, and nothing else is known.
    held: str = ""  # It names lines; what they detach is a constant in the derivative.
    keys: list = dataclasses.field(default_factory=list)

    @property
    def factor(self):
        """Returns the factor if it is one number on all ranks that hold the piece, else None."""
        values = list(self.factors.values())
        close = values and self.factors.keys() >= self.said.keys() and all(
            same_number(v, values[0]) for v in values)
        return sum(values) / len(values) if close else None

    def told_right(self):
        """Returns `right`, but for a sum over ranks that have the same gradient: a factor tells
        that already, even if it is known roughly."""
        has_factor = self.factor is not None or self.between and are_same(self.said.values())
        return "" if has_factor and "of p.grad" in self.right else self.right

    def part(self, keep):
        """Returns this Finding of the pieces with keep(key) alone."""
        keys = list(filter(keep, self.keys))
        return dataclasses.replace(self, keys=keys,
                                   names=list(dict.fromkeys(map(_name_in, keys))))


@dataclasses.dataclass
class Judgement:
    findings: list = dataclasses.field(default_factory=list)
    undecided: dict = dataclasses.field(default_factory=dict)  # {name: why}
    too_small: list = dataclasses.field(default_factory=list)  # names
    is_suspicious: bool = False  # The gradients of some of these differ from what the loss does.
    not_asked: list = dataclasses.field(default_factory=list)  # names
    ambiguous: list = dataclasses.field(default_factory=list)  # names that are right as pieces only
    # {name: the relative size of an error that would not have been seen} is for right ones.
    blind: dict = dataclasses.field(default_factory=dict)


class Judge:
    """Judges on all ranks alike, as each decision is made from what all ranks know."""

    def __init__(self, measuring, alternatives, seconds):
        """Takes alternatives(), which returns other gradients that may be right as {words: {name:
        tensor or None}} once something is wrong, and how many seconds to look for a mistake."""
        self._measuring, self._alternatives = measuring, alternatives
        self._end = time.monotonic() + seconds
        self._found = Judgement()
        self._sums, self._partitions = None, {}
        self._factors = []  # Groups of pieces are off by these.
        self._made = {}  # {words for a gradient: (which of _sums, "sum", "mean" or the rank)}

    def judge(self):
        keys = list(self._measuring.pieces)
        first = self._measuring.measure(keys, _SEEDS[0])
        apart = [key for key in keys if _differs(first.said[key])]
        keys = [key for key in keys if key not in apart or not self._is_ambiguous(key)]
        apart = [key for key in apart if key in keys]
        together = [key for key in keys if key not in apart]
        self._measuring.shared = frozenset(
            key for key in together if len(self._measuring.pieces[key].holders) > 1)
        self._measuring.find_noise(together, first)
        if apart:
            told = self._by_known_gradients(keys, is_wrong=False)
            apart, together = ([key for key in part if key not in told]
                               for part in (apart, together))
        self._groups(together)
        for key in apart:
            self._copies(key)
        self._look_closer()
        self._join()
        return self._found

    # -- groups

    def _groups(self, keys):
        most = self._measuring.most_together()
        for i in range(0, len(keys), most):
            self._group(keys[i:i + most])

    def _group(self, keys):
        """Finds all that is wrong among these pieces, whose copies have the same gradients."""
        every = keys
        for _ in range(_ROUNDS):
            found = self._measure(keys, _SEEDS[0])
            if found is None:
                return self._rough(keys)
            if not found.agrees():
                return self._wrong(keys, found)
            unseen = found.unseen()
            self._note_blind(found, unseen)
            if len(unseen) == len(keys) and found.kinks:
                return self._at_kinks(keys)
            if len(unseen) == len(keys) or not unseen:
                break
            keys = unseen
        if unseen:
            self._small(unseen)
        if self._measuring.dtype == torch.float32:
            self._across(every)

    def _at_kinks(self, keys):
        if len(keys) == 1:
            return self._undecide(keys, _KINK)
        for part in self._parts(keys):
            self._group(part)
        return None

    def _note_blind(self, found, unseen):
        """Notes which error would not have been seen. It is twice the resolution, as what was
        measured may itself be off by that."""
        for key in found.said:
            if key not in unseen and found.of(key):
                name, share = self._name(key), 2 * found.resolution / abs(found.of(key))
                self._found.blind[name] = min(share, self._found.blind.get(name, math.inf))

    def _look_closer(self):
        """Moves parameters further, without the others, if they are right only as far as was seen,
        and that is not far: first all of them, then those still left, then each alone."""
        keys = self._blind()
        while keys and not self._is_late():
            for part in [[key] for key in keys] if len(keys) <= _FEW else [keys]:
                self._closer(part)
            before, keys = keys, self._blind()
            if len(keys) == len(before) or len(before) <= _FEW:
                return

    def _blind(self):
        found = self._found
        told = {*found.undecided, *found.too_small, *(n for f in found.findings for n in f.names)}
        return [key for key in self._measuring.pieces
                if found.blind.get(self._name(key), 0.0) >= BLIND and self._name(key) not in told]

    def _closer(self, keys):
        found = self._far(keys, _SEEDS[2])
        if found.agrees():
            return self._note_blind(found, [])
        again = self._far(keys, _SEEDS[1])
        if all(_is_off(m) and _is_off(self._measuring.with_kinks(m)) for m in (found, again)):
            return self._wrong(keys, found)
        return None

    def _far(self, keys, seed):
        near = self._half_of(self._measuring.measure(keys, seed, size=4), keys, seed, 4)
        near.resolution += near.rounding
        return near

    def _half_of(self, far, keys, seed, size, alike=True):
        """Returns the measurement of half of the move `far`, which has this size. Its resolution is
        the noise plus their difference, without rounding of gradients."""
        measuring = self._measuring
        near = measuring.measure(keys, seed, size=size / 2, alike=alike)
        near.resolution = 2 * measuring.noise / (size * measuring.step) + abs(
            far.measured - near.measured)
        return near

    def _across(self, keys):
        """Finds what is wrong across the gradients' own directions, along which curvature hides it
        in float32. Returns whether there is anything."""
        if not any(self._is_wrong_across(keys, size) for size in _ACROSS_SIZES):
            return False
        if len(keys) > 1:
            if not any([self._across(part) for part in self._parts(keys)]):
                self._found.not_asked += [self._name(key) for key in keys]
            return True
        found = self._measuring.measure(keys, _ACROSS_SEEDS[0], alike=None)
        self._add(Finding("other", [self._name(keys[0])], {}, keys=keys,
                          said=found.values(keys[0]), right=self._right(keys[0])))
        return True

    def _is_wrong_across(self, keys, size):
        """Returns whether gradients differ from what the loss does along two directions without
        kinks, also for half the move."""
        wrong = 0
        for seed in _ACROSS_SEEDS:
            far = self._measuring.measure(keys, seed, alike=None, size=size)
            if far.agrees():
                return False
            near = self._half_of(far, keys, seed, size, alike=None)
            if not _is_off(near):
                return False
            wrong += _is_off(self._measuring.with_kinks(near))
            if wrong == 2:
                return True
        return False

    def _rough(self, keys):
        """Handles pieces for which no direction gave a derivative."""
        if not self._measuring.coarsen():
            return self._undecide(keys)
        self._measuring.find_noise(keys, self._measuring.measure(keys, _SEEDS[0]))
        return self._groups(keys)

    def _small(self, keys):
        """Moves pieces further that cannot be seen with a move of the usual size."""
        near = self._half_of(self._measuring.measure(keys, _SEEDS[2], size=8), keys, _SEEDS[2], 8)
        if not near.agrees():
            near = self._measuring.with_kinks(near)
        unseen = near.unseen()
        if near.agrees():
            self._note_blind(near, unseen)
            if len(unseen) == len(keys):
                return self._at_kinks(keys) if near.kinks else self._nothing_seen(keys)
            return self._small(unseen) if unseen else None
        if abs(near.measured - near.total()) < 10 * near.resolution:
            self._found.too_small += [self._name(key) for key in keys]
            self._found.is_suspicious = True
            return None
        return self._wrong(keys, near)

    def _nothing_seen(self, keys):
        """Handles pieces about which neither gradients nor the loss say anything. In float64 both
        are zero: the piece is not used, or its gradient is zero on paper."""
        if self._measuring.dtype != torch.float64:
            self._found.too_small += [self._name(key) for key in keys]

    def _measure(self, keys, seed, alike=True):
        """Returns a measurement, confirmed by half the step if it says that something is wrong, or
        None if no direction gives one, as at kinks."""
        at_kinks = None
        for attempt in range(3):
            found = self._measuring.measure(keys, seed + 1000 * attempt, alike=alike)
            if found.agrees():
                return found
            half = self._measuring.measure(keys, seed + 1000 * attempt, alike=alike, size=0.5)
            change = abs(half.measured - found.measured)
            if half.agrees():
                return half
            half = self._measuring.with_kinks(half)
            if half.agrees():
                at_kinks = at_kinks or half
                continue
            if change <= found.resolution + half.resolution + 0.01 * abs(half.measured
                                                                         - half.total()):
                half.resolution = max(half.resolution, change)
                return half
        return at_kinks

    def _wrong(self, keys, found):
        told = self._by_factors(keys, found)
        if not told and len(keys) == 1:
            return self._one(keys[0], found)
        if told := told or self._by_known_gradients(keys):
            rest = [key for key in keys if key not in told]
            return self._group(rest) if rest else None
        if self._is_late():
            self._found.not_asked += [self._name(key) for key in keys]
            return None
        for part in self._parts(keys):
            self._group(part)
        return None

    def _by_factors(self, keys, found):
        """Tells pieces that are off by a factor that others are off by, or by a common one. Returns
        them."""
        for factor in self._factors:
            if self._supposed(self._divided_by(factor)).agree(keys):
                return self._scaled(keys, factor, found)
        if len(keys) > 1 and (factor := self._common_factor(keys, found)) is not None:
            if factor and not self._measuring.is_short():
                self._factors.append(factor)
            return self._scaled(keys, factor, found)
        return []

    def _parts(self, keys):
        """Splits pieces by their holders, as each rank may have its own factor, or in halves."""
        by_holders = {}
        for key in keys:
            by_holders.setdefault(self._measuring.pieces[key].holders, []).append(key)
        if len(by_holders) > 1:
            return list(by_holders.values())
        half = len(keys) // 2
        return [[key] for key in keys] if len(keys) <= _ALONE else [keys[:half], keys[half:]]

    def _common_factor(self, keys, found):
        """Returns the factor by which all of these are wrong, or None. Other directions must show
        it, and halves of the pieces: a few wrong pieces among many right ones show one factor for
        all as well, but not in both halves of every split."""
        found = _likely(found)
        for seed in _SEEDS[1:]:
            again = _likely(self._measuring.measure(keys, seed, alike=False))
            if _common(found, again) is None:
                return None
        if abs(again.ratio() - 1) <= _CLEAR * _slack(found, again):
            return None
        for bit in range((len(keys) - 1).bit_length()):
            for value in (0, 1):
                part = self._measuring.measure(
                    [key for i, key in enumerate(keys) if i >> bit & 1 == value], _SEEDS[1])
                is_wrong = abs(part.total() - part.measured) > 10 * part.resolution
                off = abs(part.total() - again.ratio() * part.measured)
                if not is_wrong or off > max(0.01 * abs(part.total()),
                                             abs(again.ratio()) * part.resolution):
                    return None
        return again.ratio()

    def _is_late(self):
        """Returns, alike on all ranks, whether time is over on one, as clocks differ."""
        return any(self._measuring.runs.gather(time.monotonic() > self._end))

    def _scaled(self, keys, factor, found):
        """Returns those pieces of which p.grad is this many times the derivative."""
        if factor in self._factors:  # In short dtypes few pieces are seen one by one.
            keys = self._confirmed(keys, self._divided_by(factor))
        for key in keys:
            holders = self._measuring.pieces[key].holders
            self._add(Finding(_kind_of([factor]), [self._name(key)],
                              {rank: factor for rank in holders}, keys=[key],
                              said=found.values(key), assumed=self._assumed_of(key, factor)))
        return keys

    def _divided_by(self, factor):
        return {name: None if g is None else g / factor
                for name, g in self._measuring.gradients.items()}

    def _one(self, key, found):
        """Judges a wrong piece of which all copies say the same."""
        if found.ratio() is None:
            found = self._resolved(key, _SEEDS[0])
        again = self._resolved(key, _SEEDS[1])
        if again.agrees():  # The gradient is right along another direction.
            return self._undecide([key])
        found, again = map(self._measuring.with_kinks, (found, again))
        if found.agrees() or again.agrees():
            return self._undecide([key], _KINK)
        factor = _common(found, again)
        is_multiple = factor is None or self._is_multiple(key, factor)
        between = None if is_multiple is False else _between(found, again)
        factor = factor if is_multiple else None
        said = found.values(key)
        known = None if factor is not None else self._known_gradient([key], True)
        if known is not None and self._compare_with_known(key, *known):
            return None
        if factor is None and found.ratio() is None and not any(map(self._is_resolved,
                                                                    (found, again))):
            beside = "kinks of the loss" if found.kinks > found.resolution / 2 else "rounding"
            return self._undecide([key], "along the directions that were tried, it differs from the"
                                  f" derivative by too little to be sure beside {beside}")
        if factor is not None or all(s.size == 0 for s in found.said[key].values()):
            factor = factor or 0.0
            return self._add(Finding(_kind_of([factor]), [self._name(key)],
                                     {rank: factor for rank in said}, keys=[key], said=said,
                                     right=known[0] if known else self._right(key),
                                     assumed=self._assumed_of(key, factor)))
        self._add(Finding("other", [self._name(key)], {}, keys=[key], said=said,
                          right=known[0] if known else "", between=between or (),
                          is_no_multiple=(between is None and is_multiple is not None
                                          and not self._measuring.is_short())))
        return None

    def _compare_with_known(self, key, words, measurements, values, others):
        """Adds a finding if p.grad is clearly off, along all directions, and `words` name what is
        the derivative. Returns whether it did."""
        if not all(_is_off(m) and abs(v[key]) > m.resolution
                   for m, v in zip(measurements, values)):
            return False
        return self._compare(key, words, measurements, [v[key] for v in values], others)

    def _is_multiple(self, key, factor):
        """Returns whether p.grad is this multiple of the derivative across its own direction, too,
        where most of what is no multiple shows; None if that is not resolved in float32."""
        n = math.prod(self._measuring.pieces[key].shape)
        if self._measuring.dtype != torch.float32 or n == 1:
            return True
        is_fine = True
        for seed in (*_ACROSS_SEEDS[:2], _SEEDS[2]):
            m = self._resolved(key, seed, alike=None)
            off, room = abs(m.total() - factor * m.measured), abs(factor) * m.resolution
            # The factor may itself be off by what same_number() allows.
            if off > _CONFIRMED_BY * room + 0.01 * abs(m.total()):
                return False
            size = max(said.size for said in m.said[key].values()) / math.sqrt(n)
            is_fine = is_fine and off <= room + 0.01 * abs(m.total()) and room <= _ROUGHLY * size
        return is_fine or None

    def _resolved(self, key, seed, alike=False):
        """Measures one piece, moved as far as gives the loss's derivative most exactly."""
        best = self._measuring.measure([key], seed, alike=alike)
        most = 1 / self._measuring.weight(key)  # Large gradients have made the usual move small.
        for size in (1, 4, 16, *(s for s in (most / 16, most) if s > 16)):
            if best.ratio() is not None:
                break
            far = self._measuring.measure([key], seed, size=size, alike=alike)
            near = self._half_of(far, [key], seed, size, alike=alike)
            near.resolution += near.rounding
            near = _likely(near)
            if near.resolution < best.resolution:
                best = near
        return best

    @staticmethod
    def _is_resolved(found):
        room = (10 * (found.resolution - found.rounding - found.kinks) + 3 * found.rounding
                + found.kinks)
        return abs(found.measured - found.total()) > room

    # -- copies with gradients of their own

    def _copies(self, key):
        """Judges a piece whose holders have different gradients. If it is one variable, at most one
        of them is right."""
        piece = self._measuring.pieces[key]
        found = [self._measuring.measure([key], seed) for seed in _SEEDS]
        if all(abs(s.value - m.measured) <= m.resolution
               for m in found for s in m.said[key].values()):
            if not self._are_unlike(key, found):  # They differ by less than can be measured.
                return self._nothing_seen([key])
            return self._add(Finding("other", [piece.name], keys=[key], are_unlike=True,
                                     said=found[0].values(key), assumed=self._assumption(piece)))
        # One of many copies may be a multiple along a few directions by chance.
        found += [self._measuring.measure([key], seed) for seed in _ACROSS_SEEDS[:2]]
        factors, are_resolved = {}, all(abs(m.measured) > 100 * m.resolution for m in found)
        for rank in piece.holders if are_resolved else ():
            ratios = [m.said[key][rank].value / m.measured for m in found]
            if all(same_number(r, ratios[0]) for r in ratios):
                factors[rank] = sum(ratios) / len(ratios)
        self._add(Finding("other", [piece.name], factors, self._right(key, False), keys=[key],
                          said=found[0].values(key), assumed=self._assumption(piece),
                          is_no_multiple=are_resolved))

    def _are_unlike(self, key, measurements):
        """Returns whether the copies' gradients, as seen along random directions, differ by more
        than rounding could make them."""
        sizes = self._measuring.gradient_sizes()
        if sizes[key] < _NOT_SMALL * sorted(sizes.values())[len(sizes) // 2]:
            return False  # It may be 0 on paper.
        n, apart = math.prod(self._measuring.pieces[key].shape), 0.0
        for m in measurements:
            values, norms = m.values(key).values(), [s.size for s in m.said[key].values()]
            apart += n * ((max(values) - min(values)) / (max(norms) or 1.0))**2
        return apart > _UNLIKE**2 * len(measurements)

    def _is_ambiguous(self, key):
        """Returns whether gradients that differ are right if the piece, which may be several, is
        cut as others are, or a piece on each rank. Notes it then."""
        pieces = self._measuring.pieces
        piece = pieces[key]
        if not may_be_pieces(piece, pieces.values()) or self._is_copied(piece):
            return False
        whole, by_name = set(piece.holders), {}
        for other in pieces.values():
            if both := tuple(sorted(whole & set(other.holders))):
                by_name.setdefault(other.name, []).append(both)
        cuts = {tuple(cut) for cut in by_name.values()
                if len(cut) > 1 and set().union(*cut) == whole}
        cuts = [tuple((rank,) for rank in piece.holders), *sorted(cuts)]
        found = any(self._is_right_as_pieces(piece, cut) for cut in dict.fromkeys(cuts))
        if found:
            self._found.ambiguous.append(piece.name)
        return found

    def _is_copied(self, piece):
        """Returns whether nothing of the piece's module is cut, and its holders have copies of
        other parameters, too, more than the one that a pipeline's ends may share, or the module
        gives all of them the same."""
        module, runs, found = piece.name.rpartition(".")[0], self._measuring.runs, []
        if any(other.index > 0 and other.name.rpartition(".")[0] == module
               for other in self._measuring.pieces.values()):
            return False
        if len({other.name for other in self._measuring.pieces.values() if not other.is_constant
                and set(piece.holders) <= set(other.holders)}) > 1:
            return True

        def act(key, x):
            if key[0] == module and not is_in_backward():
                found.append(digest(local_of(x.detach())))

        with Watch(runs.model, act):
            runs.loss()
        every = runs.gather(found)
        return bool(every[piece.holders[0]]) and all(
            every[rank] == every[piece.holders[0]] for rank in piece.holders)

    def _is_right_as_pieces(self, piece, holders):
        cut = [dataclasses.replace(piece, index=1000 + ranks[0], holders=ranks)
               for ranks in holders]
        self._measuring.pieces.update({p.key: p for p in cut})
        found = self._measure([p.key for p in cut], _SEEDS[0])
        for p in cut:
            del self._measuring.pieces[p.key]
        return found is not None and found.agrees()

    def _assumed_of(self, key, factor):
        """Returns the assumption that these are copies, if p.grad of pieces would be off by this
        factor; else ""."""
        piece = self._measuring.pieces[key]
        n = len(piece.holders)
        return self._assumption(piece) if n > 1 and same_number(factor * n, 1.0) else ""

    def _assumption(self, piece):
        if piece.declared:
            return ""
        return f"its values are equal on {ranks_text(piece.holders)}"

    # -- what would be right

    def _right(self, key, is_wrong=True):
        """Returns words for a known gradient that is this piece's measured derivative along several
        directions, or ""."""
        known = self._known_gradient([key], is_wrong)
        return "" if known is None else known[0]

    def _by_known_gradients(self, keys, is_wrong=True):
        """Compares each piece with a sum of what the ranks have, if there is one that is the
        derivative of all of these together. Returns the pieces that it decides."""
        known = self._known_gradient(keys, is_wrong)
        if known is None:
            return set()
        words, measurements, values, others = known
        unseen = {key for m, v in zip(measurements, values) for key in keys
                  if abs(v[key]) < 4 * m.resolution}
        told = set(keys) - unseen
        unseen = [key for key in keys if key in unseen]
        if sum(math.prod(self._measuring.pieces[key].shape) for key in unseen) <= _MOST_SUPPOSED:
            told |= set(self._confirmed(unseen, self._gradients_of(words, unseen)))
        for key in keys:
            if key in told:
                self._compare(key, words, measurements, [v[key] for v in values], others)
        return told

    def _confirmed(self, keys, gradients):
        """Returns those of these pieces whose derivative is in gradients {name: tensor or None}, as
        moves along that show, too. Notes what would not be seen."""
        found, blind = self._supposed(gradients).confirmed(keys)
        for key in found:
            if (name := self._name(key)) in blind:
                self._found.blind[name] = min(blind[name], self._found.blind.get(name, math.inf))
        return found

    def _supposed(self, gradients):
        return _Supposed(self._measuring.with_gradients(gradients), self._end)

    def _gradients_of(self, words, keys):
        """Returns {name: the gradient that `words` name} of the pieces that this rank holds."""
        source, how = self._made[words]
        found, runs = {}, self._measuring.runs
        for key in keys:
            piece = self._measuring.pieces[key]
            is_asked = runs.rank in piece.holders and how in ("sum", "mean", runs.rank)
            mine = self._sums[source].get(piece.name) if is_asked else None
            every = [x for x in runs.gather(None if mine is None else mine.cpu()) if x is not None]
            if every and runs.rank in piece.holders:
                total = sum(every) / (len(piece.holders) if how == "mean" else 1)
                found[piece.name] = total.to(runs.parameters[piece.name].device)
        return found

    def _compare(self, key, words, measurements, values, others):
        """Adds a finding if p.grad is not what `words` name. Returns whether it did."""
        measuring = self._measuring
        piece, factors = measuring.pieces[key], {}
        error, tiny = measuring.errors_beside_known(key)
        rounding = 8 * error
        are_right, between = True, ()
        for rank in piece.holders:
            said = [dataclasses.replace(m.said[key][rank], value=other[_OWN][key, rank])
                    for m, other in zip(measurements, others)]
            are_right = are_right and all(
                abs(s.value - value) <= max(self._room(), rounding) * abs(value) + tiny * s.size
                for s, value in zip(said, values))
            ratios = [s.value / value for s, value in zip(said, values)]
            slack = max(max(1e-4, rounding) * max(map(abs, ratios)),
                        *(2 * tiny * s.size / abs(value) for s, value in zip(said, values)))
            spread = max(ratios) - min(ratios)
            if slack >= spread > _ROUGHLY * max(map(abs, ratios)):
                between = (min(ratios), max(ratios))
            elif slack >= spread:
                weights = [(value / (s.size or 1.0))**2 for s, value in zip(said, values)]
                factor = sum(map(operator.mul, ratios, weights)) / sum(weights)
                factors[rank] = float(f"{factor:.3g}") if measuring.is_short() else factor
        if are_right:
            return False
        words, instead = (_of(piece.holders, text) for text in
                          (words, self._what_it_is(key, measurements, others)))
        alike = not _differs(measurements[0].said[key])
        kind = _kind_of(factors.values()) if factors and alike else "other"
        self._add(Finding(kind, [piece.name], factors, words, keys=[key],
                          between=() if factors else between or (),
                          is_no_multiple=not between and not self._measuring.is_short(),
                          instead=instead, said=measurements[0].values(key),
                          assumed=self._assumed_of(key, next(iter(factors.values()), 0.0))
                          if alike else self._assumption(piece)))
        return True

    @staticmethod
    def _what_it_is(key, measurements, others):
        """Returns words for what all ranks have in p.grad of a piece, if it is another sum of what
        the ranks have; else ""."""
        for words in others[0]:
            if "p.grad" not in words and all(
                    mine and abs(mine - _of_rank(values[words], key, rank)) <= 1e-6 * max(
                        abs(mine), said.size / 10)
                    for m, values in zip(measurements, others)
                    for rank, said in m.said[key].items() for mine in [values[_OWN][key, rank]]):
                return words
        return ""

    def _known_gradient(self, keys, is_wrong):
        """Finds a sum of what the ranks have that is the derivative along several directions.
        Returns (its words, measurements, [{key: what it says}] for each, [{words: {key: what they
        say}}] of all that was tried), or None. is_wrong says that p.grad, as the copies' mean, is
        known to be wrong."""
        if self._sums is None:
            runs, self._sums = self._measuring.runs, self._alternatives()
            self._partitions = partitions(subgroups(runs), runs.team.size)
        candidates, measurements, every = None, [], []
        for seed in range(31, 31 + _CONFIRMED):
            # In float32 the last direction is across the gradients' own, as in _across().
            is_across = seed == 30 + _CONFIRMED and self._measuring.dtype == torch.float32
            alike = None if is_across else False
            found = self._measuring.measure(keys, seed, alike=alike)
            values = self._values_of(keys, seed, alike)
            totals = {words: sum(by_key.values()) for words, by_key in values.items()
                      if not isinstance(by_key, _ByRank)}
            scale = max([abs(found.measured), *map(abs, totals.values())], default=0.0)
            found.resolution += scale * (
                _WHOLE if self._measuring.dtype == torch.float32 else self._room())
            candidates = [words for words in (totals if candidates is None else candidates)
                          if abs(totals[words] - found.measured) <= found.resolution]
            if not candidates:
                return None
            measurements.append(found)
            every.append(values)
        if is_wrong:
            candidates = self._better(candidates, measurements, every)
        # If the loss was not seen to change, whatever is small would seem to be the derivative.
        if not candidates or not any(abs(m.measured) > _CONFIRMED_BY * m.resolution
                                     for m in measurements):
            return None
        return candidates[0], measurements, [values[candidates[0]] for values in every], every

    @staticmethod
    def _better(candidates, measurements, every):
        """Returns the candidates that are much nearer to what was measured than p.grad is. Their
        room is a share of the whole, of which only a small part may be wrong."""
        off = {words: sum(abs(sum(values[words].values()) - m.measured)
                          for m, values in zip(measurements, every)) for words in candidates}
        most = sum(abs(m.total() - m.measured) for m in measurements) / _CONFIRMED_BY
        return [words for words in candidates if off[words] <= most]

    def _room(self):
        return 1e-6 if self._measuring.dtype == torch.float64 else 1e-2

    def _values_of(self, keys, seed, alike):
        """Returns {words: {key: what that gradient says of the move}} for sums and means, over the
        ranks that hold a piece, of p.grad and of what backward brought, and for single ranks'."""
        mine = {words: self._measuring.dots(keys, seed, tensors, alike=alike)
                for words, tensors in (*self._sums.items(), (_OWN, self._measuring.gradients))}
        every = self._measuring.runs.gather(mine)
        pieces = [self._measuring.pieces[key] for key in keys]
        holders = {piece.holders for piece in pieces}
        whose = f"over {ranks_text(pieces[0].holders) if len(holders) == 1 else _HOLDERS}"
        self._made, found = {}, {_OWN: _ByRank({(p.key, rank): every[rank][_OWN][p.key]
                                                for p in pieces for rank in p.holders})}
        for words in self._sums:
            by_key = {p.key: [every[rank][words][p.key] for rank in p.holders] for p in pieces}
            sums = {key: sum(values) for key, values in by_key.items()}
            if all(len(p.holders) == 1 for p in pieces):
                found[words] = sums
                self._made[words] = words, "sum"
                continue
            found[f"the sum of {words} {whose}"] = sums
            found[f"the mean of {words} {whose}"] = {key: sums[key] / len(by_key[key])
                                                    for key in sums}
            self._made |= {f"the {how} of {words} {whose}": (words, how)
                           for how in ("sum", "mean")}
            for text, groups in self._partitions.items():
                for how in ("sum", "mean"):
                    found[f"the {how} of {words} over {text}"] = _ByRank({
                        (p.key, rank): sum(every[r][words][p.key] for r in ranks)
                        / (len(ranks) if how == "mean" else 1)
                        for p in pieces if len(p.holders) == len(groups)
                        for rank, ranks in groups.items()})
            for i, rank in enumerate(pieces[0].holders if len(holders) == 1 else ()):
                found[f"{words} on rank {rank}"] = {key: values[i]
                                                    for key, values in by_key.items()}
                self._made[f"{words} on rank {rank}"] = words, rank
        return found

    # -- findings

    def _undecide(self, keys, why="finite differences give no steady derivative here"):
        for key in keys:
            self._found.undecided[self._name(key)] = why

    def _add(self, finding):
        self._found.findings.append(finding)

    def _name(self, key):
        return self._measuring.pieces[key].name

    def _join(self):
        """Joins findings of pieces or parameters that are wrong alike. Those whose factor is known
        only roughly come last, to join others."""
        joined = []
        for finding in sorted(self._found.findings, key=lambda f: bool(f.between)):
            for other in joined:
                if _alike(finding, other):
                    other.names += [n for n in finding.names if n not in other.names]
                    other.keys += finding.keys
                    other.factors = {**other.factors, **finding.factors}
                    if other.instead != finding.instead:
                        other.instead = ""
                    if other.between:
                        other.between = _both(finding.between, other.between)
                    break
            else:
                joined.append(finding)
        self._found.findings = joined
        for finding in joined[:]:
            self._leave_to_others(finding)

    def _leave_to_others(self, finding):
        """Gives a piece of one element, which is a multiple whatever it is, to the finding that
        other pieces of its parameter are no multiple, if there is one."""
        if len(finding.keys) > 1 or math.prod(self._measuring.pieces[finding.keys[0]].shape) > 1:
            return
        for other in self._found.findings:
            if other is not finding and other.is_no_multiple and finding.names[0] in other.names:
                other.keys += finding.keys
                self._found.findings.remove(finding)
                return


class _Supposed(Judge):
    """Judges gradients that are supposed to be right, and that all holders of a piece have."""

    def __init__(self, measuring, end):
        super().__init__(measuring, dict, 0.0)
        self._end, self._doubtful = end, set()

    def agree(self, keys):
        """Returns whether they agree with what the loss does, and well enough to tell a factor."""
        found = self._measuring.measure(keys, _SEEDS[0])
        return found.agrees() and abs(found.measured) > 10 * found.resolution

    def confirmed(self, keys):
        """Returns (pieces that are right, {name: error that would not have been seen})."""
        self._groups(keys)
        found = self._found
        open_ = {*found.too_small, *found.undecided, *found.not_asked,
                 *(name for finding in found.findings for name in finding.names)}
        return ([key for key in keys if key not in self._doubtful
                 and self._name(key) not in open_], found.blind)

    def _wrong(self, keys, found):
        if len(keys) == 1 or self._is_late():
            self._doubtful.update(keys)
            return
        for part in self._parts(keys):
            self._group(part)

    def _rough(self, keys):
        self._doubtful.update(keys)

    def _nothing_seen(self, keys):
        self._doubtful.update(keys)


def with_constants(judgement, again, lines):
    """Returns (findings, keys of pieces that are right) of pieces that the Judgement finds wrong
    and that are judged `again` with what `lines` detach as constants. What rests on an assumption,
    a factor that is the same in both, and what is known to be right instead, is told as before."""
    open_ = {*again.undecided, *again.too_small, *again.not_asked, *again.ambiguous}
    factors = {key: f.factor for f in again.findings for key in f.keys}

    def is_the_same(finding):
        return finding.assumed or finding.factor is not None and all(
            factors.get(key) is not None and same_number(finding.factor, factors[key])
            for key in finding.keys)

    def is_right(key):
        return key not in factors and _name_in(key) not in open_

    kept = [f for f in judgement.findings if is_the_same(f)]
    changed = [f for f in judgement.findings if f not in kept]
    asked = {key for f in changed if not f.right for key in f.keys}
    kept += [f.part(lambda key, f=f: not is_right(key) and (f.right or key not in factors))
             for f in changed]
    kept += [dataclasses.replace(f.part(asked.__contains__), held=lines) for f in again.findings]
    return ([f for f in kept if f.keys],
            [key for f in changed for key in f.keys if is_right(key)])


def _name_in(key):
    return key.rpartition("/")[0]


def _of(holders, text):
    """Returns a text on all pieces' holders for these ones. A sum over one rank is that rank's."""
    if len(holders) > 1:
        return text.replace(_HOLDERS, ranks_text(holders))
    return re.sub(rf"the (sum|mean) of (.*) over {_HOLDERS}", rf"\2 on {ranks_text(holders)}", text)


def _is_off(found):
    """Returns whether the gradients are off by clearly more than the measurement may be."""
    return abs(found.measured - found.total()) > _CONFIRMED_BY * found.resolution


def _kind_of(factors):
    return "zero" if all(abs(factor) < 1e-6 for factor in factors) else "factor"


def same_number(a, b):
    return abs(a - b) <= 0.01 * max(abs(a), abs(b)) + 1e-9


def are_same(values):
    return all(same_number(value, other) for value in values for other in values)


def _alike(a, b):
    if a.between and b.between:
        return _both(a.between, b.between) is not None and a.assumed == b.assumed
    if a.between and b.factor is not None:
        low, high = a.between
        return low <= b.factor <= high and high - low <= _ROUGHLY * abs(b.factor)
    if (a.kind, a.told_right(), a.assumed) != (b.kind, b.told_right(), b.assumed):
        return False
    if a.instead != b.instead and (a.factor is None or b.factor is None):
        return False
    if a.is_no_multiple != b.is_no_multiple and not a.factors and not b.factors:
        return False
    both = a.factors.keys() & b.factors.keys()
    if a.factor is not None and b.factor is not None:
        return same_number(a.factor, b.factor)
    return (bool(a.factors) == bool(b.factors) and a.factors.keys() == b.factors.keys()
            and all(same_number(a.factors[r], b.factors[r]) for r in both))


class _ByRank(dict):
    """Holds {(key, rank): what a sum over this rank's group says}."""


def _of_rank(values, key, rank):
    return values.get((key, rank), math.nan) if isinstance(values, _ByRank) else values[key]


def _differs(said):
    """Returns whether copies' gradients differ by more than rounding."""
    values = list(said.values())
    size = max(s.size for s in values) if values else 0.0
    return len(values) > 1 and any(abs(s.value - values[0].value) > _ALIKE * max(
        abs(s.value), abs(values[0].value), 1e-3 * size) for s in values)


def _likely(m):
    """Returns the Measurement with as much room for rounding as it is likely to take."""
    rounding = m.rounding / _LIKELY
    return dataclasses.replace(m, resolution=m.resolution - m.rounding + rounding,
                               rounding=rounding)


def _common(first, second):
    """Returns the factor that both measurements, along different directions, show, or None."""
    ratios = [first.ratio(), second.ratio()]
    if None in ratios:
        return None
    slack = _slack(first, second)
    return ratios[1] if abs(ratios[0] - ratios[1]) <= slack * max(map(abs, ratios)) else None


def _both(a, b):
    """Returns the interval that two intervals share, or None."""
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low <= high else None


def _between(*measurements):
    """Returns the least and the largest factor of p.grad over the derivative that all of these
    directions allow, () if one of them says nothing, or None if no factor is possible."""
    found = float("-inf"), float("inf")
    for m in measurements:
        if abs(m.measured) <= 2 * (m.resolution - m.rounding):
            return ()
        ends = [(m.total() + sign * m.rounding) / (m.measured + other * (m.resolution - m.rounding))
                for sign in (1, -1) for other in (1, -1)]
        found = found and _both(found, (min(ends), max(ends)))
    return found


def _slack(*measurements):
    """Returns by how much the measurements' ratios may be off, relatively."""
    return sum(2 * m.resolution / abs(m.measured) for m in measurements)
