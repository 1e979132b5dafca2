"""The outputs of modules: what backward brings to each, and the loss with one of them moved.

An output that several ranks hold with the same bits is one variable with copies, as parameters are.
"""

import contextlib
import math
import time

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..words import ranks_text
from .measuring import dot, number, real
from .variables import digest, local_of, plain

_MOST_BYTES = 1 << 28  # of cotangents that one rank keeps
_SEEDS = (51, 52)
_LEAST_S = 5  # for looking, whatever is left of the time


class Watch:
    """Hooks on the modules' outputs while step() runs. act(key, tensor): what is handed on in its
    place, or None; key: (module's name, how often it was called before, which of its tensors)."""

    def __init__(self, model, act):
        self._modules = {plain(name): module for name, module in model.named_modules()
                         if not name or plain(name)}
        self._act, self._calls, self._handles = act, {}, []

    def __enter__(self):
        for name, module in self._modules.items():
            self._handles.append(module.register_forward_hook(self._hook(name)))
        return self

    def __exit__(self, *_):
        for handle in self._handles:
            handle.remove()

    def _hook(self, name):
        def gave(_module, _inputs, output):
            again = torch._C._current_graph_task_id() != -1  # a checkpoint's second forward
            call = self._calls.get((name, again), 0)
            self._calls[name, again] = call + 1
            leaves, spec = tree_flatten(output)
            changed = False
            for index, x in enumerate(leaves):
                if not _is_watched(x):
                    continue
                other = self._act((name, call, index), x)
                if other is not None:
                    leaves[index], changed = other, True
            return tree_unflatten(leaves, spec) if changed else None

        return gave


class Place:
    """An output. groups: [(ranks that hold it with the same values, ...)]."""

    def __init__(self, key, groups):
        self.key, self.groups, self.base = key, groups, None
        self.ratios = []  # by direction: (counting each group once, counting each rank), or None
        self.state = "not asked"  # or "right", "shares", "wrong", "not decided"

    @property
    def name(self):
        module, call, _ = self.key
        return (module or "the model") + (f" (call {call + 1})" if call else "")

    def is_copied(self):
        return any(len(group) > 1 for group in self.groups)


class Outputs:
    """Of a model whose gradients were found wrong. On all ranks alike."""

    def __init__(self, runs, measuring, seconds):
        self._runs, self._measuring = runs, measuring
        self._end = time.monotonic() + max(seconds, _LEAST_S)
        self._sizes, self._cotangents, self._kept = {}, {}, 0

    def places(self):
        """All, in the order of backward, with their states."""
        found = self._look()
        self._listen()
        for place in found:
            if any(self._runs.gather(time.monotonic() > self._end)):
                break
            self._ask(place)
        _judge(found, self._usual_factors())
        return found

    def _usual_factors(self):
        """What backward says over what is measured, at any place: each rank's backward is of its
        own loss, of which the declared one may be the mean."""
        losses = {loss for loss in self._runs.losses if loss is not None}
        return (1, len(losses)) if self._runs.objective == "mean" else (1,)

    # -- what there is

    def _look(self):
        seen = {}

        def act(key, x):
            if x.requires_grad or torch._C._current_graph_task_id() == -1:
                local = local_of(x.detach())
                seen.setdefault(key, (digest(local), tuple(local.shape)))
                self._sizes[key] = float(real(local).double().square().mean().sqrt())

        with Watch(self._runs.model, act):
            self._runs.run()
        every = self._runs.gather(seen)
        order = list(dict.fromkeys(key for row in every for key in row))
        found = []
        for key in reversed(order):
            groups = {}
            for rank, row in enumerate(every):
                if key in row:
                    groups.setdefault(row[key], []).append(rank)
            found.append(Place(key, [tuple(g) for g in groups.values()]))
        return found

    def _listen(self):
        def act(key, x):
            if x.requires_grad:
                x.register_hook(lambda g: self._came(key, g))

        with Watch(self._runs.model, act):
            self._runs.run()

    def _came(self, key, gradient):
        with contextlib.suppress(RuntimeError):
            value = local_of(gradient.detach())
            self._kept += value.numel() * value.element_size()
            if self._kept <= _MOST_BYTES:
                before = self._cotangents.get(key)
                self._cotangents[key] = value.clone() if before is None else before + value

    # -- one of them

    def _ask(self, place):
        has = any(self._runs.gather(place.key in self._cotangents))
        if not has:
            return
        for seed in _SEEDS:
            place.ratios.append(self._ratio(place, seed))

    def _ratio(self, place, seed):
        step = self._measuring.step
        mine = next((g for g in place.groups if self._runs.rank in g), None)
        losses = [self._moved(place.key, mine, seed, sign * step) for sign in (1, -1)]
        measured = (losses[0] - losses[1]) / (2 * step)
        said = 0.0
        if mine is not None and place.key in self._cotangents:
            cotangent = self._cotangents[place.key]
            said = dot(cotangent, self._direction(place.key, mine, seed, cotangent))
        every = self._runs.gather(said)
        resolution = self._measuring.noise / step + 1e-6 * sum(map(abs, every))
        once = sum(sum(every[r] for r in g) / len(g) for g in place.groups)
        if abs(measured) < 100 * resolution:
            return None
        return once / measured, sum(every) / measured

    def _moved(self, key, group, seed, step):
        def act(other, x):
            if other != key or group is None:
                return None
            local = local_of(x.detach())
            move = (step * self._direction(key, group, seed, local)).to(local.dtype)
            if hasattr(x, "placements") and hasattr(x, "device_mesh"):
                from torch.distributed.tensor import DTensor

                move = DTensor.from_local(move, x.device_mesh, x.placements, run_check=False,
                                          shape=x.shape, stride=x.stride())
            return x + move

        with Watch(self._runs.model, act):
            return self._runs.run()

    def _direction(self, key, group, seed, like):
        generator = torch.Generator().manual_seed(number(f"{key} {group}", seed))
        wide = torch.complex128 if like.is_complex() else torch.float64
        size = self._sizes.get(key, 0.0) or 0.1
        move = torch.randn(like.shape, generator=generator, dtype=wide, device="cpu")
        return move.to(like.device) * size


def _judge(places, usual):
    """Their states: the factor between what backward says and what is measured is everywhere that
    of the first place, next to the loss, where that is a usual one."""
    known = [p for p in places if p.ratios and None not in p.ratios]
    base = next((x for p in known[:1] for x in _numbers(p)
                 if x is not None and any(_same(x, factor) for factor in usual)), None)
    for place in places:
        if not place.ratios:
            continue
        if None in place.ratios:
            place.state = "not decided"
            continue
        once, each = _numbers(place)
        if base is None:
            place.state = "not decided"
        elif once is not None and _same(once, base):
            place.state = "right"
        elif each is not None and _same(each, base):
            place.state = "shares" if place.is_copied() else "right"
        else:
            place.state = "wrong"
        place.base = base


def _numbers(place):
    """(counting each group of copies once, counting each rank), None where two directions do not
    agree."""
    found = []
    for values in zip(*place.ratios):
        same = max(values) - min(values) <= 1e-2 * max(map(abs, values))
        found.append(sum(values) / len(values) if same else None)
    return found


def _same(a, b):
    return math.isfinite(a) and abs(a - b) <= 1e-2 * max(abs(a), abs(b))


def told(places):
    """Sentences on where backward departs."""
    asked = [p for p in places if p.state in ("right", "shares", "wrong")]
    if not asked:
        return []
    wrong = next((i for i, p in enumerate(asked) if p.state == "wrong"), None)
    if wrong is not None and wrong > 0:
        place, before = asked[wrong], asked[wrong - 1]
        once, each = _numbers(place)
        text = (f"In the order of backward, the cotangent is right at the output of {before.name},"
                f" and wrong at that of {place.name}")
        factor = once if once is not None else each
        if factor is not None:
            text += f", where it is {factor / place.base:.4g} times what it is to be"
        return [text + "."]
    last = max((i for i, p in enumerate(asked) if p.state == "right"), default=-1)
    shares = next((i for i, p in enumerate(asked) if i > last and p.state == "shares"), None)
    if shares is not None:
        place = asked[shares]
        group = max(place.groups, key=len)
        text = (f"The output of {place.name} is the same on {ranks_text(group)}, and each rank has"
                " its own share of the cotangent there; their sum is right.")
        if shares:
            text += (f" Nothing adds them up on the way back to {place.name}. At the output of"
                     f" {asked[shares - 1].name}, the next module, the cotangent is right.")
        return [text]
    if wrong is None:
        where = ("cotangent is right at the one output" if len(asked) == 1
                 else f"cotangents are right at all {len(asked)} outputs")
        return [f"The {where} of modules that could be measured: the mistake lies between there and"
                " p.grad, in backward or after it."]
    return []


def _is_watched(x):
    return (isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
            and x.dim() > 0 and x.numel() and not isinstance(x, torch.nn.Parameter))
