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
from .findings import ROUGHLY, Finding, Judgement, kind_of, overlap, same_number
from .known_gradients import CONFIRMED_BY, HOLDERS, KnownGradients
from .outputs import Watch
from .roots import is_in_backward
from .variables import digest, local_of, may_be_pieces

_ROUNDS = 4  # Pieces that are too small to be seen are moved without the others so many times.
_ALONE = 8  # So few pieces are measured one by one rather than by halves.
_SEEDS = (11, 12, 13)
_ACROSS_SEEDS = (14, 15, 16, 17)
_ACROSS_SIZES = (1, 4)  # These are sizes of moves, relative to the usual one.
_ALIKE = 1e-3  # Copies' gradients that differ by less, relatively, differ by rounding.
_CLEAR = 3  # A common factor differs from 1 by so many times the error of ratios.
_LIKELY = 4  # Rounding moves gradients by so many times less than the room that they get.
BLIND = 0.1  # Errors of this part of a gradient, or more, are noted if they would not be seen.
_KINK = "the loss has a kink here"
_UNLIKE = 0.5  # Copies' gradients that differ by this part of their norm do not by rounding,
_NOT_SMALL = 1 / 8  # unless they are so much smaller than the others'.
_MOST_SUPPOSED = 1 << 25  # Ranks send each other gradients of at most so many elements.


class Unclear(Exception):
    """Says that gradients are not clearly right in the dtype in which they were measured."""


class Rough(Exception):
    """Says that a step in float64 has something inside with fewer digits."""


class Judge:
    """Judges on all ranks alike, as each decision is made from what all ranks know."""

    def __init__(self, measuring, alternatives, seconds, may_ask_wider=False):
        """Takes alternatives(), which returns other gradients that may be right as {words: {name:
        tensor or None}} once something is wrong, and how many seconds to look for a mistake. With
        may_ask_wider it raises Unclear before it looks for one."""
        self._may_ask_wider = may_ask_wider
        self._is_smooth = False  # Whether the loss is known not to change by steps.
        self._measuring = measuring
        self._end = time.monotonic() + seconds
        self._found = Judgement()
        self._known = KnownGradients(measuring, alternatives)
        self._factors = []  # Groups of pieces are off by these.

    def judge(self):
        keys = list(self._measuring.pieces)
        first = self._measuring.measure(keys, _SEEDS[0])
        apart = [key for key in keys if _differs(first.said[key])]
        keys = [key for key in keys if key not in apart or not self._is_ambiguous(key)]
        apart = [key for key in apart if key in keys]
        together = [key for key in keys if key not in apart]
        if apart:
            self._check_smooth(first)
        self._measuring.shared = frozenset(
            key for key in together if len(self._measuring.pieces[key].holders) > 1)
        self._measuring.find_noise(together, first)
        if apart:
            self._ask_wider()
            told = self._by_known_gradients(keys, is_wrong=False)
            apart, together = ([key for key in part if key not in told]
                               for part in (apart, together))
        self._groups(together)
        for key in apart:
            self._copies(key)
        if self._blind():
            self._ask_wider()
        self._found.join({key: math.prod(p.shape) for key, p in self._measuring.pieces.items()})
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
            found = (self._measuring.measure(keys, _SEEDS[0]) if self._may_ask_wider
                     else self._measure(keys, _SEEDS[0]))
            if found is None:
                return self._undecide(keys)
            if not found.agrees():
                self._ask_wider()
                self._check_smooth(found)
                return self._wrong(keys, found)
            unseen = found.unseen()
            self._note_blind(found, unseen)
            if len(unseen) == len(keys) and found.kinks:
                return self._at_kinks(keys)
            again = found.unseen(2 / BLIND) if self._measuring.dtype == torch.float64 else unseen
            if len(again) == len(keys) or not again:
                break
            keys = again
        if unseen:
            self._ask_wider()
        if again:
            self._small(again)
        if self._measuring.dtype == torch.float32:
            self._across(every)

    def _ask_wider(self):
        if self._may_ask_wider:
            raise Unclear

    def _check_smooth(self, found):
        """Raises Rough, before the first mistake is said."""
        if not self._is_smooth and self._measuring.is_rough(found):
            raise Rough
        self._is_smooth = True

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

    def _blind(self):
        found = self._found
        told = {*found.undecided, *found.too_small, *(n for f in found.findings for n in f.names)}
        return [key for key in self._measuring.pieces
                if found.blind.get(self._name(key), 0.0) >= BLIND and self._name(key) not in told]

    def _half_of(self, far, keys, seed, size, alike=True):
        """Returns the measurement of half of the move `far`, which has this size. Its resolution is
        the noise, their difference, and rounding of gradients."""
        measuring = self._measuring
        near = measuring.measure(keys, seed, size=size / 2, alike=alike)
        near.resolution = 2 * measuring.noise / (size * measuring.step) + abs(
            far.measured - near.measured) + near.rounding
        return near

    def _across(self, keys):
        """Finds what is wrong across the gradients' own directions, along which curvature hides it
        in float32. Returns whether there is anything."""
        if not any(self._is_wrong_across(keys, size) for size in _ACROSS_SIZES):
            return False
        self._ask_wider()
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

    def _small(self, keys):
        """Moves pieces further that cannot be seen with a move of the usual size."""
        size = 64 if self._measuring.dtype == torch.float64 else 8
        near = self._half_of(self._measuring.measure(keys, _SEEDS[2], size=size), keys, _SEEDS[2],
                             size)
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
        are zero. What is not used changes no bit of the loss in any dtype."""
        if self._measuring.dtype == torch.float64:
            return
        said = self._measuring.measure(keys, _SEEDS[2], size=8).said
        unused = [key for key in keys if not any(s.size for s in said[key].values())]
        if unused and not self._measuring.measure(unused, _SEEDS[2], size=8).measured:
            keys = [key for key in keys if key not in unused]
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
            gradients = self._divided_by(factor)
            if self._supposed(gradients).agree(keys):
                return self._scaled(self._confirmed(keys, gradients), factor, found)
        if len(keys) == 1 or (factor := self._common_factor(keys, found)) is None:
            return []
        if factor and not self._measuring.is_short():  # Else few pieces are seen one by one.
            self._factors.append(factor)
            keys = self._confirmed(keys, self._divided_by(factor))
        return self._scaled(keys, factor, found)

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
        """Adds that p.grad of these pieces is so many times the derivative. Returns them."""
        for key in keys:
            holders = self._measuring.pieces[key].holders
            self._add(Finding(kind_of([factor]), [self._name(key)],
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
        known = None if factor is not None else self._known.derivative_of([key], True)
        if known is not None and self._compare_with_known(key, known):
            return None
        if factor is None and found.ratio() is None and not any(map(self._is_resolved,
                                                                    (found, again))):
            beside = "kinks of the loss" if found.kinks > found.resolution / 2 else "rounding"
            return self._undecide([key], "along the directions that were tried, it differs from the"
                                  f" derivative by too little to be sure beside {beside}")
        if factor is not None or all(s.size == 0 for s in found.said[key].values()):
            factor = factor or 0.0
            return self._add(Finding(kind_of([factor]), [self._name(key)],
                                     {rank: factor for rank in said}, keys=[key], said=said,
                                     right=known.words if known else self._right(key),
                                     assumed=self._assumed_of(key, factor)))
        self._add(Finding("other", [self._name(key)], {}, keys=[key], said=said,
                          right=known.words if known else "", between=between or (),
                          is_no_multiple=(between is None and is_multiple is not None
                                          and not self._measuring.is_short())))
        return None

    def _compare_with_known(self, key, known):
        """Adds a finding if p.grad is clearly off, along all directions, and known.words name what
        is the derivative. Returns whether it did."""
        return all(_is_off(m) and abs(value) > m.resolution
                   for m, value in zip(known.measurements, known.says(key))) and self._compare(
                       key, known)

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
            if off > CONFIRMED_BY * room + 0.01 * abs(m.total()):
                return False
            size = max(said.size for said in m.said[key].values()) / math.sqrt(n)
            is_fine = is_fine and off <= room + 0.01 * abs(m.total()) and room <= ROUGHLY * size
        return is_fine or None

    def _resolved(self, key, seed, alike=False):
        """Measures one piece, moved as far as gives the loss's derivative most exactly."""
        best = self._measuring.measure([key], seed, alike=alike)
        most = 1 / self._measuring.weight(key)  # Large gradients have made the usual move small.
        for size in (1, 4, 16, *(s for s in (most / 16, most) if s > 16)):
            if best.ratio() is not None:
                break
            far = self._measuring.measure([key], seed, size=size, alike=alike)
            near = _likely(self._half_of(far, [key], seed, size, alike=alike))
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
        known = self._known.derivative_of([key], is_wrong)
        return known.words if known else ""

    def _by_known_gradients(self, keys, is_wrong=True):
        """Compares each piece with a sum of what the ranks have, if there is one that is the
        derivative of all of these together. Returns the pieces that it decides."""
        known = self._known.derivative_of(keys, is_wrong)
        if known is None:
            return set()
        unseen = [key for key in keys if any(
            abs(value) < 4 * m.resolution for m, value in zip(known.measurements, known.says(key)))]
        told = set(keys).difference(unseen)
        if sum(math.prod(self._measuring.pieces[key].shape) for key in unseen) <= _MOST_SUPPOSED:
            told |= set(self._confirmed(unseen, self._known.gradients_of(known.words, unseen)))
        for key in keys:
            if key in told:
                self._compare(key, known)
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

    def _compare(self, key, known):
        """Adds a finding if p.grad is not what known.words name. Returns whether it did."""
        measuring, piece = self._measuring, self._measuring.pieces[key]
        error, tiny = measuring.errors_beside_known(key)
        rounding = 8 * error
        factors, are_right, between = {}, True, ()
        for rank in piece.holders:
            # (p.grad's value, the known one, how far rounding may take both apart) by direction
            rows = [(own, value, tiny * m.said[key][rank].size)
                    for own, value, m in zip(known.own(key, rank), known.says(key),
                                             known.measurements)]
            are_right = are_right and all(
                abs(own - value) <= max(measuring.room(), rounding) * abs(value) + apart
                for own, value, apart in rows)
            ratios = [own / value for own, value, _ in rows]
            most = max(map(abs, ratios))
            slack = max(max(1e-4, rounding) * most, *(2 * apart / abs(v) for _, v, apart in rows))
            spread = max(ratios) - min(ratios)
            if slack >= spread > ROUGHLY * most:
                between = (min(ratios), max(ratios))
            elif slack >= spread:
                weights = [(value / (apart or 1.0))**2 for _, value, apart in rows]
                factor = sum(map(operator.mul, ratios, weights)) / sum(weights)
                factors[rank] = float(f"{factor:.3g}") if measuring.is_short() else factor
        if not are_right:
            self._tell(key, known, factors, between)
        return not are_right

    def _tell(self, key, known, factors, between):
        piece, said = self._measuring.pieces[key], known.measurements[0].said[key]
        words, instead = (_of(piece.holders, text)
                          for text in (known.words, known.what_p_grad_is(key)))
        alike = not _differs(said)
        kind = kind_of(factors.values()) if factors and alike else "other"
        self._add(Finding(kind, [piece.name], factors, words, keys=[key],
                          between=() if factors else between, instead=instead,
                          is_no_multiple=not between and not self._measuring.is_short(),
                          said=known.measurements[0].values(key),
                          assumed=self._assumed_of(key, next(iter(factors.values()), 0.0))
                          if alike else self._assumption(piece)))

    # -- findings

    def _undecide(self, keys, why="finite differences give no steady derivative here"):
        for key in keys:
            self._found.undecided[self._name(key)] = why

    def _add(self, finding):
        self._found.findings.append(finding)

    def _name(self, key):
        return self._measuring.pieces[key].name

class _Supposed(Judge):
    """Judges gradients that are supposed to be right, and that all holders of a piece have."""

    def __init__(self, measuring, end):
        super().__init__(measuring, dict, 0.0)
        self._end, self._doubtful, self._is_smooth = end, set(), True

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

    def _undecide(self, keys, why=""):
        self._doubtful.update(keys)

    def _nothing_seen(self, keys):
        self._doubtful.update(keys)


def _of(holders, text):
    """Returns a text on all pieces' holders for these ones. A sum over one rank is that rank's."""
    if len(holders) > 1:
        return text.replace(HOLDERS, ranks_text(holders))
    return re.sub(rf"the (sum|mean) of (.*) over {HOLDERS}", r"\2", text)


def _is_off(found):
    """Returns whether the gradients are off by clearly more than the measurement may be."""
    return abs(found.measured - found.total()) > CONFIRMED_BY * found.resolution


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


def _between(*measurements):
    """Returns the least and the largest factor of p.grad over the derivative that all of these
    directions allow, () if one of them says nothing, or None if no factor is possible."""
    found = float("-inf"), float("inf")
    for m in measurements:
        if abs(m.measured) <= 2 * (m.resolution - m.rounding):
            return ()
        ends = [(m.total() + sign * m.rounding) / (m.measured + other * (m.resolution - m.rounding))
                for sign in (1, -1) for other in (1, -1)]
        found = found and overlap(found, (min(ends), max(ends)))
    return found


def _slack(*measurements):
    """Returns by how much the measurements' ratios may be off, relatively."""
    return sum(2 * m.resolution / abs(m.measured) for m in measurements)
