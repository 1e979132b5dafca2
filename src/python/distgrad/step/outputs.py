"""Compares what backward brings to modules' outputs with how the loss changes if one is moved.

An output that several ranks hold with the same bits is one variable with copies, as parameters are.
"""

import contextlib
import dataclasses
import math
import time
import weakref
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..ranks.narrowing import placed_as
from ..words import ranks_text, some
from .calls import measured
from .holding import not_held
from .measuring import dot, number, real
from .module_names import output_name
from .roots import is_asking, is_in_backward
from .running import without_count
from .variables import digest, has_shares, local_of, plain

_MOST_BYTES = 1 << 28  # One rank keeps no more bytes of cotangents than this.
_MOST_ALIGNED = 1 << 20  # Ranks send each other cotangents of at most so many elements.
# Each is (seed, whether the output is also moved along its cotangent). That gives the best signal,
# but alone it does not prove a factor. The last is asked only if the others do not decide.
_DIRECTIONS = ((51, True), (52, False), (53, True))
_CONFIRMING = 54, False  # A factor is told if this direction has it, too.
# A ratio that is off by more, relatively, gets all directions, even if rounding may explain it.
_CLOSE = 2e-3
_FINE = 1e-4  # In float64 a ratio may be off by this, relatively, and by so many times what the
_WIDTHS = 20  # slopes on both sides are apart, as kinks and curvature make them.
_FEW = 8  # Up to so many ranks' outputs of one name are moved one by one.
_LEAST_S = 5  # Looking may take so long, whatever is left of the time.


class Watch:
    """Hooks the modules' outputs while step() runs. act(key, tensor) returns what is handed on in
    place of the tensor, or None; key is (module's name, number of its earlier calls, which of its
    tensors). Without a model it hooks whatever modules are called; instead of names these have
    numbers in the order of their first calls, which `modules` maps to them. A tensor that a module
    hands on from one inside it is seen once: outside, it has the cotangent of its uses inside. With
    hands_on it is seen again, unless nothing else was seen since."""

    def __init__(self, model, act, hands_on=False):
        self._hands_on = hands_on
        self._is_open = model is None
        self.modules = {} if model is None else {
            plain(name): module for name, module in model.named_modules()
            if not name or plain(name)}
        self._act, self._calls, self._handles, self._numbers = act, {}, [], {}
        self._seen = {}  # {id of a tensor: (a weak reference to it, its version)}

    def __enter__(self):
        if self._is_open:
            self._handles.append(torch.nn.modules.module.register_module_forward_hook(self._any))
        for name, module in self.modules.items():
            self._handles.append(module.register_forward_hook(
                lambda module, _, output, name=name: self._gave(name, output)))
        return self

    def __exit__(self, *_):
        for handle in self._handles:
            handle.remove()

    def _any(self, module, _, output):
        number = self._numbers.setdefault(id(module), len(self._numbers))
        self.modules[number] = module  # It stays alive, or another module could get its id.
        return self._gave(number, output)

    def _gave(self, name, output):
        again = is_in_backward()  # Checkpointing runs forward a second time, in backward.
        call = self._calls.get((name, again), 0)
        self._calls[name, again] = call + 1
        leaves, spec = tree_flatten(output)
        changed = False
        for index, x in enumerate(leaves):
            if not _is_watched(x):
                continue
            seen, version = self._seen.get(id(x), (lambda: None, 0))
            if x is seen() and _version(x) == version:
                continue
            with not_held():
                other = self._act((name, call, index), x)
            if other is not None:
                leaves[index], changed = other, True
            x = leaves[index]
            if self._hands_on:
                self._seen.clear()
            self._seen[id(x)] = weakref.ref(x), _version(x)
        return tree_unflatten(leaves, spec) if changed else None


@dataclasses.dataclass
class Precision:
    """Says how exact moves of outputs measure. step is a move's size relative to the output; noise
    is the loss's; slack is the relative error of a factor. is_whole says that backward begins at
    the loss itself, without a scale that is taken out later; is_fine that all is in float64."""

    step: float
    noise: float
    slack: float = 1e-2
    is_whole: bool = False
    is_fine: bool = False


class Ratio(NamedTuple):
    """Holds what copies say over what is measured along one direction. It counts each group of
    copies once for each loss that its ranks have, then each rank, then each group once. slack is
    how far it may be off by kinks and curvature, relatively, if that is known."""

    once: float
    each: float
    whole: float
    slack: float = math.inf


class Place:
    """Holds an output; each tuple in groups has ranks that hold it with the same values."""

    def __init__(self, key, groups):
        self.key, self.groups, self.base = key, groups, None
        self.ratios = []  # A Ratio by direction, or None if the loss was not seen to change.
        # The cotangent is wrong on these ranks (if empty: on all, or not known), by this factor.
        self.off, self.off_factor = (), None
        self.is_all = True  # Whether it is known to be right on all other ranks.
        self.slack = 0.0  # The ratios may be off by this, relatively.
        self.state = "not asked"  # judge() sets "right", "shares", "wrong" or "not decided".
        self.counted = None  # This one of the ratios tells the factor, if that is known.
        self.is_as_parameters = False  # Parameters, and not the loss, show that it is right.
        self.followers = None  # These keys' outputs change if this one does, if that is known.

    @property
    def name(self):
        return output_name(*self.key)

    def to_dict(self, slack):
        module, call, index = self.key
        return {"module": module, "call": call, "index": index, "state": self.state,
                "factor": self.factor(slack) if self.state == "wrong" else None,
                "copies": [list(g) for g in self.groups],
                "ratios": [list(r[:2]) if r else None for r in self.ratios]}

    def is_copied(self):
        return any(len(group) > 1 for group in self.groups)

    def known(self):
        """Returns the ratios of directions in which the loss was seen to change."""
        return [ratio for ratio in self.ratios if ratio is not None]

    def judge(self, base, slack, is_exact=False):
        """Sets the state, given the right ratio `base`, or None if that is not known. is_exact says
        that ratios may be held to the slack that each of them has of its own."""
        self.base, known = base, self.known()
        if base is None or not known or None in self.ratios[:1]:
            self.state = "wrong" if self._is_no_multiple(slack) else "not decided"
            return
        slacks = [min(slack, ratio.slack) if is_exact else slack for ratio in known]
        self.slack = max(slacks)
        once, each, whole = (all(_same(ratio[i], base, s) for ratio, s in zip(known, slacks))
                             for i in range(3))
        if once or each and not self.is_copied():
            # Along the cotangent alone, an error across it would not show.
            is_known = is_exact or self._is_close() or None not in self.ratios[1:2]
            self.state = "right" if is_known else "not decided"
        elif each:
            self.state = "shares"
        elif whole:  # So may be a wrong share on ranks with data of their own.
            self.state = "not decided"
        else:
            off = [r for r, s in zip(known, slacks) if not any(_same(x, base, s) for x in r[:3])]
            self.state = "wrong" if len(off) > 1 else "not decided"

    def _is_no_multiple(self, slack):
        """Returns whether directions have other ratios, so that none can be the right one."""
        known = self.known()
        return len(known) > 1 and not any(
            all(_same(a[i], b[i], 2 * slack) for a in known for b in known) for i in range(3))

    def has_ratios_of(self, other, slack):
        """Returns whether what both have is off alike along all directions that were asked."""
        return all(any(_same(a[i], b[i], slack) for i in (0, 1))
                   for a in self.known() for b in other.known())

    def wants_more(self):
        """Returns whether another direction may tell more, also about a ratio that is within the
        slack but not close."""
        if not self.known() or len(self.ratios) == len(_DIRECTIONS):
            return False
        if self.state == "right":
            return not self._is_close()
        return len(self.known()) < 2 or self.state == "not decided" and self.base is not None

    def _is_close(self):
        return any(all(_same(ratio[i], self.base, _CLOSE) for ratio in self.known())
                   for i in (0, 1))

    def factor(self, slack):
        """Returns the cotangent's factor over the right one, or None if there is none or it is not
        known."""
        if None in (*self.ratios[:2], self.counted, self.base) or len(self.ratios) < 2:
            return None
        values = [ratio[self.counted] for ratio in self.known()]
        if max(values) - min(values) > slack * max(map(abs, values)):
            return None
        return sum(values) / len(values) / self.base


class Outputs:
    """Measures outputs of a step whose gradients are wrong, on all ranks alike. names maps Watch's
    numbers to modules' names; needed has keys of outputs that should have a gradient; right has
    names of parameters whose gradients are right."""

    def __init__(self, runs, precision, seconds, names=None, needed=(), right=()):
        self._runs, self._precision, self._names = runs, precision, names
        self._needed, self._seconds = set(needed), max(seconds, _LEAST_S)
        self._right = set(right)

    def places(self):
        """Returns all Places in the order of backward, with their states."""
        self._end = time.monotonic() + self._seconds
        self._sizes, self._cotangents, self._kept, self._aligned = {}, {}, 0, {}
        self._still = None  # the loss without a move
        self._in_graph = set()  # keys of outputs that require a gradient
        every = self._look()
        had = self._runs.gather((set(self._cotangents), self._in_graph))
        found = [p for p in every if p.key in self._needed or any(p.key in row for row, _ in had)]
        self._ask_all(found)
        # No output of a term of the loss, or of a micro-batch, that is lost gets a cotangent.
        departs = departure(found)
        before = every[:every.index(departs[1])] if departs else every
        self._ask_all([p for p in before if p not in found and any(p.key in row for _, row in had)],
                      found)
        self._doubt(found := [p for p in every if p in found or p.state == "wrong"])
        return found

    def _ask_all(self, places, known=()):
        for i in self._order(places):
            if any(self._runs.gather(time.monotonic() > self._end)):
                break
            self._ask(places[i])
            self._judge([*known, *places])
            while places[i].wants_more():
                self._ask(places[i])
                self._judge([*known, *places])

    def told(self, places, wrong, off, is_unlike=False, follows="sum"):
        """Returns sentences on where backward departs from the right gradients of the parameters
        `wrong`, which are off by at most the part `off` of their norms. is_unlike says that forward
        is known to differ from the single run's; what `follows` backward is a "sum" over the ranks,
        a "mean" that should be one, or ""."""
        right, n = next((p for p in places if p.state == "right"), None), self._runs.team.size
        is_known = not any(p.is_as_parameters for p in places)
        are_shares = (follows and right and is_known and not departure(places) and n > 1
                      and (self._runs.objective in ("mean", "sum")
                           or self._runs.objective == "replicated" and not any(
                               p.is_copied() for p in places if p.state == "right"))
                      and _same(right.base, 1, self._precision.slack))
        if found := departure(places):
            self._find_ranks(found[1])
            self._confirm(found[1])
        # If a mean follows, the mistake came before: loss and cotangents are to be n times these.
        text = told(places, wrong, off, is_unlike or are_shares, self._precision.slack)
        if are_shares:
            text[0] += (" They are the loss's derivatives themselves, to be added up over the"
                        " ranks" + (follows == "mean") * (
                            f": a mean, as DDP takes, would need them {n} times as large") + ".")
        return text

    def calls(self, places):
        """Returns sentences on the user's functions behind the output at which backward departs, up
        to the next output or, if there are none, to the end; if all outputs are right, on those
        before the first one in forward."""
        asked = [p for p in places if p.state == "right"]
        if found := departure(places):
            _, place, before = found
            lines = measured(self._runs, self._watch, place.key, before and before.key)
            if lines or before is None:  # The next output may lie on another way to the loss.
                return lines
            return measured(self._runs, self._watch, place.key, None, f"called after {place.name}")
        return measured(self._runs, self._watch, None, asked[-1].key) if asked else []

    # -- what there is

    def _watch(self, act):
        """Returns a Watch that calls act(key, tensor) with the names that all ranks have."""
        return Watch(self._runs.model, lambda own, x: act(self._key_of(own), x))

    def _key_of(self, own):
        return own if self._names is None else self._keys.get(own, own)

    def _look(self):
        """Returns all Places; finds {key: digest of this rank's output}, too."""
        seen, self._keys = {}, {}

        def act(key, x):
            if x.requires_grad or not is_in_backward():
                local = local_of(x.detach())
                seen.setdefault(key, ((digest(local), tuple(local.shape)), time.time()))
                self._sizes[key] = float(real(local).double().square().mean().sqrt())
            if x.requires_grad:
                self._in_graph.add(key)
                x.register_hook(lambda g: self._came(key, g))

        with Watch(self._runs.model, act):
            self._runs.run()
        if self._names is not None:
            self._keys = {(n, call, i): (self._names.get(n, f"({n})"), call, i)
                          for n, call, i in seen}
            seen = {self._keys[own]: value for own, value in seen.items()}
            self._sizes = {self._keys[own]: size for own, size in self._sizes.items()}
            self._cotangents = {self._keys[own]: g for own, g in self._cotangents.items()}
            self._in_graph = {self._keys[own] for own in self._in_graph}
        self._digests = {key: bits for key, ((bits, _), _) in seen.items()}
        every = self._runs.gather(seen)
        found = []
        for key in reversed(_in_time(every)):
            groups = {}
            for rank, row in enumerate(every):
                if key in row:
                    groups.setdefault(row[key][0], []).append(rank)
            found.append(Place(key, [tuple(g) for g in groups.values()]))
        return found

    def _came(self, key, gradient):
        if gradient is None or is_asking():  # A Function may give no gradient, which is None here.
            return
        with contextlib.suppress(RuntimeError):
            value = local_of(gradient.detach())
            self._kept += value.numel() * value.element_size()
            if self._kept <= _MOST_BYTES:
                before = self._cotangents.get(key)
                self._cotangents[key] = value.clone() if before is None else before + value

    # -- in which order

    def _order(self, places):
        """Yields the places' numbers from the loss on, or by halves if there is no time for all."""
        runs = self._runs
        one = max(runs.gather(runs.seconds / max(runs.count, 1)))
        left = min(runs.gather(self._end - time.monotonic()))
        if 3 * one * len(places) <= left:
            yield from range(len(places))
            return
        asked = set()
        for i in range(len(places)):  # Bisection begins behind the first that can be decided.
            asked.add(i)
            yield i
            if places[i].state in ("right", "wrong", "shares"):
                break
        right, wrong = max(asked, default=0), len(places)
        while wrong - right > 1:
            middle = (right + wrong) // 2
            asked.add(middle)
            yield middle
            if places[middle].state in ("wrong", "shares"):
                wrong = middle
            else:
                right = middle
        yield from (i for i in range(wrong - 1, -1, -1) if i not in asked)

    # -- one of them

    def _ask(self, place):
        self._align(place)
        place.ratios.append(self._ratio(place, _DIRECTIONS[len(place.ratios)]))

    def _group_of(self, place):
        return next((g for g in place.groups if self._runs.rank in g), None)

    def _align(self, place):
        """Finds the cotangent along which the output is also moved: the sum of its copies'."""
        if place.key in self._aligned:
            return
        mine = self._cotangents.get(place.key)
        group = self._group_of(place)
        if place.is_copied():
            is_small = mine is not None and mine.numel() <= _MOST_ALIGNED
            every = self._runs.gather(mine.cpu() if is_small else None)
            parts = [every[r] for r in group or ()]
            is_known = parts and all(x is not None and x.shape == parts[0].shape for x in parts)
            mine = sum(parts) if is_known else None
        self._aligned[place.key] = mine

    def _doubt(self, places):
        """Takes back departures at outputs that parameters go into most of whose gradients are
        right: what they have is right there, as where a mean over the ranks follows, and so it is
        at outputs that have the same. Finds the followers of the others."""
        while found := departure(places):
            place = found[1]
            parameters, place.followers = self._around(place)
            # A mistake that only moves rows leaves the gradients of some biases right.
            if not parameters or 4 * len(parameters & self._right) < 3 * len(parameters):
                return
            for other in places:
                if other is place or other.state == place.state and other.has_ratios_of(
                        place, self._precision.slack):
                    other.state, other.is_as_parameters = "right", True

    def _around(self, place):
        """Returns names of parameters that go into this output on some rank, and the keys of
        outputs that change if it does."""
        leaves, changed = set(), set()
        move = self._mover(place.key, self._group_of(place), _DIRECTIONS[1], self._precision.step)

        def act(key, x):
            if key == place.key:
                leaves.update(_leaves(x))
            elif key in self._digests and digest(local_of(x.detach())) != self._digests[key]:
                changed.add(key)
            return move(key, x)

        with self._watch(act) as watch:
            self._runs.loss()
        names = {plain(f"{self._names.get(module, '') if self._names else module}.{name}")
                 for module, own in watch.modules.items()
                 for name, p in own.named_parameters(recurse=False) if id(p) in leaves}
        every = self._runs.gather((names, changed))
        return (set().union(*(row[0] for row in every)),
                frozenset().union(*(row[1] for row in every)))

    def _find_ranks(self, place):
        """Finds the ranks on which the cotangent is wrong, by moving each group's output alone."""
        if place.state != "wrong" or not 1 < len(place.groups) <= _FEW:
            return
        every = [Place(place.key, place.groups) for _ in place.groups]
        for group, alone in zip(place.groups, every):
            alone.ratios = [self._ratio(place, d, group) for d in _DIRECTIONS]
        bases, off, factors = [place.base] if place.base else self._usual_factors(), [], []
        for base in bases:
            for alone in every:
                alone.judge(base, self._precision.slack, self._precision.is_fine)
            if any(alone.state == "right" for alone in every):
                break
        for group, alone in zip(place.groups, every):
            if alone.state == "wrong":
                off += group
                alone.counted = 0 if len(group) == 1 else None
                factors.append(alone.factor(self._precision.slack))
        if 0 < len(off) < sum(map(len, place.groups)):
            is_one = None not in factors and _same(min(factors), max(factors),
                                                   self._precision.slack)
            place.off, place.off_factor = tuple(sorted(off)), factors[0] if is_one else None
            place.is_all = all(alone.state in ("right", "wrong") for alone in every)

    def _confirm(self, place):
        """Forgets a factor of the cotangent that another direction does not show."""
        if place.off or place.state != "wrong" or place.factor(self._precision.slack) is None:
            return
        place.ratios.append(self._ratio(place, _CONFIRMING))
        if place.ratios[-1] is None:
            place.counted = None

    def _ratio(self, place, direction, only=None):
        step = self._precision.step
        mine = self._group_of(place)
        if only is not None and mine != only:
            mine = None
        losses = [self._moved(place.key, mine, direction, sign * step) for sign in (1, -1)]
        measured = (losses[0] - losses[1]) / (2 * step)
        said = 0.0
        if mine is not None and place.key in self._cotangents:
            cotangent = self._cotangents[place.key]
            said = dot(cotangent, self._direction(place.key, mine, direction, cotangent))
        every = self._runs.gather(said)
        resolution = self._precision.noise / step + 1e-6 * sum(map(abs, every))
        own = [x if x is None else f"{without_count(x):.6g}" for x in self._runs.losses]
        alike = [[r for r in g if own[r] == loss] for g in place.groups
                 for loss in {own[r] for r in g}]
        once, whole = (sum(sum(every[r] for r in g) / len(g) for g in groups)
                       for groups in (alike, place.groups))
        if abs(measured) * self._precision.slack < resolution:
            return None
        return Ratio(once / measured, sum(every) / measured, whole / measured,
                     self._fine_slack(measured, losses, resolution))

    def _fine_slack(self, measured, losses, resolution):
        """Returns how far this ratio may be off, relatively, from the slopes on both sides."""
        if not self._precision.is_fine:
            return math.inf
        if self._still is None:
            self._still = self._runs.loss()
        width = abs(losses[0] + losses[1] - 2 * self._still) / self._precision.step
        return _FINE + (_WIDTHS * width + resolution) / abs(measured)

    def _moved(self, key, group, direction, step):
        with self._watch(self._mover(key, group, direction, step)):
            return self._runs.loss()

    def _mover(self, key, group, direction, step):
        """Returns Watch's act() that moves this output, if the rank is of a group that does."""
        def act(other, x):
            if other != key or group is None:
                return None
            local = local_of(x.detach())
            return x + placed_as(x, (step * self._direction(key, group, direction, local)).to(
                local.dtype))

        return act

    def _direction(self, key, group, direction, like):
        seed, is_along = direction
        generator = torch.Generator().manual_seed(number(f"{key} {group}", seed))
        wide = torch.complex128 if like.is_complex() else torch.float64
        size = self._sizes.get(key, 0.0) or 0.1
        move = torch.randn(like.shape, generator=generator, dtype=wide, device="cpu")
        along = self._aligned.get(key) if is_along else None
        if along is not None and along.shape == like.shape:
            scale = float(real(along).double().square().mean().sqrt())
            if scale > 0 and math.isfinite(scale):
                move += along.to("cpu", wide) / scale
        return move.to(like.device) * size

    # -- what that says

    def _usual_factors(self):
        """Returns the usual ratios of what backward says to what is measured: each rank's backward
        is of its own loss, and the declared loss may be these losses' mean."""
        losses = {loss for loss in self._runs.losses if loss is not None}
        return (1, len(losses)) if self._runs.objective == "mean" else (1,)

    def _judge(self, places):
        """Judges the places: the right ratio of what backward says to what is measured is that of
        the first place, next to the loss, if it is a usual one, or the one usual that places have
        along several directions."""
        slack, usual = self._precision.slack, self._usual_factors()
        first = next((p.known()[0] for p in places if p.known()), ())
        base = next((float(f) for x in first[:3] for f in usual if _same(x, f, slack)), None)
        if base is None:
            base = _only_usual(places, usual, slack)
        is_exact = self._precision.is_fine and base is not None
        if base is None and self._precision.is_whole and first:
            base = usual[-1]
        for place in places:
            if place.ratios:
                place.judge(base, slack, is_exact)
        ways = {p.state for p in places if p.is_copied()} & {"right", "shares"}
        for place in places:  # Of copies each may be to have the whole cotangent, or a share.
            is_one = all(_same(ratio[0], ratio[1], slack) for ratio in place.known())
            place.counted = 0 if is_one or ways == {"right"} else 1 if ways == {"shares"} else None


def _in_time(rows):
    """Returns all keys of {key: (what it was, when)} by rank, in the order of the times at which a
    rank had them first. That is the order on each rank, whatever the ranks' clocks say."""
    first = {}
    for row in rows:
        for key, (_, when) in row.items():
            first[key] = min(when, first.get(key, when))
    return sorted(first, key=first.get)


def _only_usual(places, usual, slack):
    """Returns the usual ratio that some places have along all of several directions, or None if
    there is none, or several."""
    found = {f for f in usual for place in places if len(place.known()) > 1 and all(
        _same(ratio.each, f, slack) and _same(ratio.once, f, slack) for ratio in place.known())}
    return float(found.pop()) if len(found) == 1 else None


def _same(a, b, slack):
    return math.isfinite(a) and abs(a - b) <= slack * max(abs(a), abs(b))


def departure(places):
    """Returns where backward departs: ("wrong" or "shares", place, the right place before it or
    None), or None if it does not."""
    asked = [p for p in places if p.state in ("right", "shares", "wrong")]
    wrong = next((i for i, p in enumerate(asked) if p.state == "wrong"), None)
    if wrong is not None:
        first = wrong  # Shares that were never added up make this wrong, so they are the mistake.
        while first and asked[first - 1].state == "shares":
            first -= 1
        kind = "wrong" if first == wrong else "shares"
        return kind, asked[first], _next(asked[first], asked[:first])
    last = max((i for i, p in enumerate(asked) if p.state == "right"), default=-1)
    shares = next((i for i, p in enumerate(asked) if i > last and p.state == "shares"), None)
    if shares is not None:
        return "shares", asked[shares], _next(asked[shares], asked[:shares])
    return None


def _next(place, before):
    """Returns the right one of the places before this one, in the order of backward, that this one
    goes into, or None."""
    return next((p for p in reversed(before)
                 if place.followers is None or p.key in place.followers), None)


def _leaves(x):
    """Returns ids of the leaves of a tensor's graph."""
    found, seen, left = set(), set(), [x.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        left += [other for other, _ in node.next_functions]
    return found


def as_data(places, slack=1e-2):
    """Returns a dict for each place, as in report.GradientsReport.places."""
    found = departure(places)
    return [{**place.to_dict(slack), "departs": bool(found) and place is found[1]}
            for place in places]


def told(places, wrong, off, is_unlike, slack):
    asked = [p for p in places if p.state in ("right", "shares", "wrong")]
    if not asked:
        return []
    found = departure(places)
    if found is None:
        where = ("cotangent is right at the one output" if len(asked) == 1
                 else f"cotangents are right at all {len(asked)} outputs")
        right = {p.key[0] for p in asked if p.state == "right"}
        modules = dict.fromkeys(name.rpartition(".")[0] for name in wrong)
        left = [name or "the model" for name in modules if name not in right]
        # A module that is called again may have outputs of which nothing is known.
        others = [name or "the model" for name in modules
                  if any(p.key[0] == name and p.state != "right" for p in places)]
        slack = max(p.slack for p in asked)
        if off <= 2 * slack:
            more = f", to {100 * slack:.1g}%: p.grad is off by too little to tell where"
        elif left:
            more = f"; those of module{'s' * (len(left) > 1)} {some(left, 4)} could not be"
        elif others:
            more = f"; others of module{'s' * (len(others) > 1)} {some(others, 4)} could not be"
        else:
            more = ("" if is_unlike else
                    ": the mistake lies between there and p.grad, in backward or after it")
        return [f"The {where} of modules that could be measured{more}."]
    kind, place, before = found
    if kind == "shares":
        group = max(place.groups, key=len)
        text = (f"The output of {place.name} is the same on {ranks_text(group)}; of the cotangents"
                " that arrive there the sum is right, and not each.")
        if before:
            text += f" At the output of {before.name}, the next module, the cotangent is right."
        return [text]
    factor = place.off_factor if place.off else place.factor(slack)
    factor = "wrong" if factor is None else f"{factor:.4g} times what it is to be"
    on = f", on {ranks_text(place.off)}" if place.off else ""
    on += "" if place.is_all else " at least"
    if before is None:
        return [f"Backward departs between the loss and the output of {place.name}, the first that"
                f" could be measured on the way back: the cotangent is {factor} there{on}."]
    return [f"Backward departs between the outputs of {before.name} and {place.name}: the cotangent"
            f" is right at the first, and {factor} at the second{on}."]


def _version(x):
    """Returns a number that changes if the tensor is written into."""
    return 0 if x.is_inference() else x._version


def _is_watched(x):
    return (isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
            and x.dim() > 0 and x.numel() and not x.is_meta
            and not isinstance(x, torch.nn.Parameter) and not has_shares(x))
