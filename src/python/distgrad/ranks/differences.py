"""Measures the truth of a program of which only the ranks' forward run is known: by finite
differences of that, in float64.

All ranks move the same element of the same leaf, run forward, and gather their losses, so all
decide alike. If two step sizes do not agree, or the slopes of both sides differ, the loss has a
kink or jump, and the element is undecided. A second pass holds fixed what the code takes out of
autograd (cuts.py), since that is the derivative the user means. Casts to narrower dtypes
(narrowing.py) are left out. If they cannot be, the steps are as large as the noise requires.
"""

import contextlib
import math

import torch

from . import hooks
from .collectives.exchange import gathered, gathered_shapes, gathered_uneven, summed
from .cuts import Cuts
from .narrowing import Narrowing
from .program import InvalidAt, is_local
from .rounding import RUNS, Rounding, Spread, bound_of, roundoff, unmoved
from .slopes import LARGE_STEPS, STEPS, Slope, weighted

_OF_OWN = 1e-6  # of the largest element: the error allowed to the ranks' own gradients
_SEEN = 1e-8  # of the largest element: the error of differences along a direction

_ROOM = 8  # a few samples do not show the largest rounding
_NOISY = 1e-3  # likewise: differences with a larger error tell nothing
FEW_ELEMENTS = 64  # if there are no more, each is measured by itself
# If a direction does not confirm the gradient, at most so many elements are measured: all, or a
# random choice.
MOST_ELEMENTS = 256
DIRECTIONS = 4


def measure(case, rows):
    """Fills in the case's result. `rows` holds the weights of the losses, by objective. All ranks
    must call it."""
    case.dtype = torch.float64
    try:
        measured = _Measurement(case, rows).run()
    except InvalidAt as error:
        return report_invalid(case, error)
    _report(case, measured)


def report_invalid(case, error):
    """Fills in the case's result if all ranks raised this InvalidAt."""
    _report(case, {"invalid": {"pointer": error.pointer, "message": str(error),
                               "caret": error.caret}})


def _report(case, measured):
    wanted = [item for item in case.what["inputs"] if item.get("requires_grad", True)]
    steps = case.reported or [torch.zeros(0) for s in case.what["steps"] if "expr" not in s]
    case.result["gradients"] = [None] * len(wanted)
    case.result["steps"] = [case.writer.tensor(value) for value in steps]
    if case.rank == 0:  # one rank reports
        case.result["measured"] = measured
    else:
        case.result.pop("measured", None)


class _Measurement:
    def __init__(self, case, rows):
        self._case = case
        self._rows = torch.tensor(rows, dtype=torch.float64)
        self._world = case.groups[""]
        self._items = [item for item in case.what["inputs"] if item.get("requires_grad", True)]
        self._leaves = {item["name"]: case.program.leaf(item["name"], case.rank).to(torch.float64)
                        for item in case.what["inputs"]}
        # Maps an input's name to its parts' absolute values.
        self._sizes = {item["name"]: [x.abs().nan_to_num(nan=0, posinf=0)
                                      for x in gathered_uneven(self._leaves[item["name"]])]
                       for item in self._items}
        # Holds (item, part, element) of every element of the leaves.
        self._elements = [(item, part, element) for item in self._items
                          for part, shape in enumerate(self._parts(item))
                          for element in range(int(torch.Size(shape).numel()))]
        self._loss_is_checked = False
        self._move = None  # maps an input's name to what is added to this rank's leaf
        self._narrowing = Narrowing()
        self._is_widened = case.what.get("is_widened", False)
        self._dtype = case.what["dtype"]  # whose roundings the ranks' own results have
        self._in_wide = contextlib.nullcontext  # makes the context of every run
        self._is_right = False  # the ranks' own backward, as far as that is known
        self._noise = None  # of the losses, by rank, if casts that are not left out add it
        self._roundings = None  # of the losses in float64, which are larger where values cancel

    def run(self):
        losses = self._leave_out_casts(self._losses(self._narrowing.watching))
        if self._noise is None:
            # Beside the values, which may lie where the loss jumps.
            self._roundings = _ROOM * self._measured_noise(losses, roundoff("float64"), 2.0**-10)
        cuts = Cuts()
        again = self._losses(cuts.recording)
        steps = [gathered_uneven(value) for value in self._case.reported]
        undecided = self._why_nothing_is_known(losses, again)
        if undecided:
            unknown = torch.full((len(self._rows), len(self._elements)), float("nan"),
                                 dtype=torch.float64)
            reply = self._reply(losses, steps, unknown,
                                torch.zeros(len(self._elements)), [])
        elif (own := self._confirmed(losses)) is not None:
            self._is_right = True
            reply = self._reply(losses, steps, own,
                                _SEEN * own[0].abs().amax() * torch.ones(len(self._elements)), [])
        else:
            reply = self._by_element(cuts, losses, steps, undecided)
        reply["undecided"] = undecided
        reply["is_right_in_float64"] = self._is_right
        if self._narrowing.casts:
            reply["casts"] = self._narrowing.casts
        return reply

    def _leave_out_casts(self, losses):
        """Returns the losses as if nothing were cast to a narrower dtype, or `losses` if that
        cannot be done."""
        casts = self._gathered(self._narrowing.casts)
        dtypes = self._gathered(self._narrowing.dtypes)
        self._narrowing.casts, self._narrowing.dtypes = casts, dtypes
        if not casts:
            return losses
        narrowest = self._narrowing.narrowest(self._dtype)
        if not self._is_widened:  # else the ranks leave the casts out, too
            self._dtype = narrowest
        unit, failed, wide = roundoff(narrowest), False, losses
        self._in_wide = self._narrowing.widening
        try:
            wide = self._losses()
        # The code may ask for the dtype, or a kernel may need one. All ranks run alike, so all
        # fail.
        except Exception:
            failed = True
        close = (wide - losses).abs() <= 64 * unit * losses.abs().max()
        if self._everywhere(failed) or not bool((close | ~losses.isfinite()).all()):
            self._in_wide, wide, lost = contextlib.nullcontext, losses, casts
        else:
            lost = self._narrowing.lost = self._gathered(self._narrowing.lost)
        if lost:
            self._narrowing.lost = lost
            if self._is_widened:
                raise InvalidAt("", f"{lost[0]} cannot be widened")
            self._noise = self._measured_noise(wide, unit)
        return wide

    def _measured_noise(self, losses, unit, beside=0.0):
        """Returns, by rank, how far a loss lies off a line through losses so near that only
        rounding tells them apart."""
        noise, scales = unit * losses.abs(), self._scales()
        for direction in range(DIRECTIONS):
            along = self._direction(direction, scales)
            middle = self._moved_along(along, beside) if beside else losses
            for by in (2 * unit, 8 * unit, 32 * unit):
                apart = (self._moved_along(along, beside + by) +
                         self._moved_along(along, beside - by) - 2 * middle).abs()
                noise = torch.maximum(noise, apart)
        return noise.nan_to_num(nan=0, posinf=0)

    def _by_element(self, cuts, losses, steps, undecided):
        elements = self._elements
        chosen, own = range(len(elements)), None
        if len(elements) > MOST_ELEMENTS:
            chosen, own = self._sample(len(elements)), self._own_gradients()
        slopes = {i: self._slope(elements[i], losses) for i in chosen}
        if self._noise is None and not any(s.why or s.is_seen(self._rows[0])
                                           for s in slopes.values()):
            self._noise = self._roundings  # larger steps may show more
            slopes = {i: self._slope(elements[i], losses) for i in chosen}
        self._leave_out_noise(slopes)
        values, errors = self._filled(slopes, own, len(elements))
        whys = [(elements[i], slope.why) for i, slope in slopes.items() if slope.why]
        reply = self._reply(losses, steps, values, errors, whys)
        if own is not None:
            reply["bound_notes"].append(
                f"{len(chosen)} of {len(elements)} elements, chosen at random")
            undecided += self._why_sample_says_nothing(slopes, own)
        meant = slopes
        if self._everywhere(cuts.any()):
            meant = self._hold(cuts, losses, slopes, own, reply, undecided)
        if self._everywhere(hooks.any_registered()) and self._leave_out_hooks(meant, reply):
            self._is_right = True
        elif self._dtype != "float64" and self._is_plain():
            self._is_right = self._are(own if own is not None else self._own_gradients(), meant)
        return reply

    def _are(self, own, slopes):
        """Returns whether the ranks' gradients are the slopes of the objective, of all elements."""
        slack = _OF_OWN * float(own[0].abs().nan_to_num(posinf=0).amax())
        return all(s.why or abs(float(weighted(s.value, self._rows[0]) - own[0][i])) <= slack +
                   float(weighted(s.error, self._rows[0].abs())) for i, s in slopes.items())

    def _leave_out_noise(self, slopes):
        """Marks elements as unknown if their differences have so few digits that a mistake could
        hide in them."""
        weights = self._rows[0]
        largest = max((abs(float(weighted(s.value, weights))) for s in slopes.values()
                       if not s.why), default=0.0)
        for slope in slopes.values():
            if not slope.why and float(weighted(slope.error, weights.abs())) > _NOISY * largest > 0:
                slope.why = "finite differences are too noisy at this value"
                if self._narrowing.lost:
                    slope.why += f": it is rounded to {', '.join(self._narrowing.lost[:3])}"
                slope.error = 1e-7 * slope.value.abs()

    def _sample(self, count):
        shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(1))
        return shuffled[:MOST_ELEMENTS].sort().values.tolist()

    def _filled(self, slopes, own, count):
        """Returns the gradients of each objective and the errors of the first. Elements that were
        not chosen have an infinite error."""
        values = torch.zeros(len(self._rows), count,
                             dtype=torch.float64) if own is None else own.clone()
        errors = torch.full((count,), float("inf") if own is not None else 0.0, dtype=torch.float64)
        for i, slope in slopes.items():
            values[:, i] = torch.stack([weighted(slope.value, row) for row in self._rows])
            errors[i] = weighted(slope.error, self._rows[0].abs())
        return values, errors

    def _why_sample_says_nothing(self, slopes, own):
        for i, slope in slopes.items():
            if abs(float(weighted(slope.value, self._rows[0]) -
                         own[0][i])) > _OF_OWN * float(own[0].abs().amax()):
                return []
        return ["along a random direction the slope is not that of the gradient, but none of the"
                " elements that were looked at shows where"]

    # -- all elements at once

    def _confirmed(self, losses):
        """Returns the gradients that the ranks' own backward gives if finite differences along
        random directions confirm them for every objective. Returns None if they do not, or if there
        are so few elements that each can be measured."""
        if len(self._elements) <= FEW_ELEMENTS or not self._is_plain() or self._noise is not None:
            return None
        own = self._own_gradients()
        scales = self._scales()
        for direction in range(DIRECTIONS):
            along = self._direction(direction, scales)
            for step in STEPS:
                moves = [self._moved_along(along, by * step) for by in (1, -1, 0.25, -0.25)]
                slope = Slope(losses, step, *moves, noise=self._roundings)
                if slope.agrees(self._rows[0]):
                    break
            slope.look_for_kink(self._rows[0])
            flat = torch.cat([x.reshape(-1) for _, parts in along for x in parts])
            for row, gradient in zip(self._rows, own):
                apart = abs(float(weighted(slope.value, row) - gradient @ flat))
                allowed = float(weighted(slope.error,
                                         row.abs())) + 1e-7 * float((gradient * flat).norm())
                if slope.why or not apart <= allowed:
                    return None
        return own

    def _scales(self):
        """Returns, by input, the largest root mean square of its leaves, or 1 if that is 0. All
        ranks get the same."""
        sizes = [[float(x.square().mean().sqrt()) for x in self._sizes[item["name"]] if x.numel()]
                 for item in self._items]
        return [max(of_item, default=0.0) or 1.0 for of_item in sizes]

    def _direction(self, seed, scales):
        """Returns, by input and part, random numbers of both signs and of the size of the input's
        elements."""
        generator = torch.Generator().manual_seed(1 + seed)

        def direction(shape, scale):
            size = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
            sign = 2.0 * torch.randint(0, 2, shape, generator=generator) - 1
            return scale * size * sign

        return [(item, [direction(shape, scale) for shape in self._parts(item)])
                for item, scale in zip(self._items, scales)]

    def _moved_along(self, along, by):
        self._move = {item["name"]: by * parts[self._case.rank if is_local(item) else 0]
                      for item, parts in along}
        try:
            return self._losses()
        finally:
            self._move = None

    def _own_gradients(self):
        """Returns, by objective, the gradients of the leaves that the ranks' backward gives, in the
        order of the elements."""
        rows = []
        for row in self._rows.tolist():
            self._case.make_leaves(self._held())
            with self._in_wide():
                loss, reached = self._case.forward()
                self._case.backward(loss, reached, row[self._case.rank])
            grads = [torch.zeros_like(x) if x.grad is None else x.grad
                     for _, x in self._case.leaves]
            rows.append(self._on_leaves(grads))
        return torch.stack(rows)

    # -- forward

    def _losses(self, watched=contextlib.nullcontext):
        """Returns the losses by rank, the same on every rank. `watched` makes the context of the
        forward."""
        self._case.make_leaves(self._held())
        with self._in_wide(), watched():
            loss, _ = self._case.forward()
        if not self._loss_is_checked:
            self._check_shape_of(loss)
        return torch.cat(gathered(loss.detach().reshape(1).to(torch.float64)))

    def _check_shape_of(self, loss):
        for rank, shape in enumerate(gathered_shapes(loss)):
            if torch.Size(shape).numel() != 1:
                raise InvalidAt(self._case.what["loss"]["pointer"],
                                f"the loss has {torch.Size(shape).numel()} elements (shape"
                                f" {list(shape)} on rank {rank}); it must have one: take .sum() or"
                                " .mean()")
        self._loss_is_checked = True

    def _held(self):
        """Returns what this rank holds of every input, some moved."""
        values = []
        for name, leaf in self._leaves.items():
            moved = leaf + self._move[name] if self._move and name in self._move else leaf
            values.append(self._case.program.held(name, moved, self._case.rank)
                          .clone(memory_format=torch.contiguous_format))
        return values

    def _moved(self, item, part, element, by, watched):
        if not is_local(item) or part == self._case.rank:
            move = torch.zeros_like(self._leaves[item["name"]])
            move.view(-1)[element] = by
            self._move = {item["name"]: move}
        try:
            return self._losses(watched)
        finally:
            self._move = None

    # -- slopes

    def _parts(self, item):
        """Returns the shapes of the leaves, one per rank for a local input, else one."""
        shapes = [tuple(x.shape) for x in self._sizes[item["name"]]]
        return shapes if is_local(item) else shapes[:1]

    def _scale(self, item, part, element):
        """Returns the element's size, the tensor's if that is larger, or 1 if all are 0. All ranks
        get the same."""
        values = self._sizes[item["name"]][part]
        return max(float(values.view(-1)[element]), float(values.square().mean().sqrt())) or 1.0

    def _slope(self, place, base, watched=contextlib.nullcontext):
        item, part, element = place
        scale = self._scale(item, part, element)
        weights = self._rows[0]
        found = []
        for step in STEPS if self._noise is None else LARGE_STEPS:
            h = 2.0 ** round(math.log2(scale * step))  # so that moving rounds nothing
            moved = (self._moved(item, part, element, by, watched) for by in (h, -h, h / 4, -h / 4))
            noise = self._roundings if self._noise is None else self._noise
            found.append(Slope(base, h, *moved, noise=noise, size=scale))
            if self._noise is None and found[-1].agrees(weights):
                break
        best = (found[-1] if self._noise is None
                else min(found, key=lambda s: float(weighted(s.error, weights.abs()))))
        best.look_for_kink(weights)
        return best

    def _reply(self, losses, steps, rows, errors, whys):
        """Returns the reply's keys. `rows` holds the gradients by objective, `errors` those of the
        first, `whys` the places whose slope is unknown, with the reason."""
        case, writer = self._case, self._case.writer
        gradient_bounds, loss_bounds, step_bounds, decided = self._rounding(losses, steps, rows[0])
        undecided = whys + [(self._elements[i],
                             "a rounding before it decides its gradient: a branch, a tie or a"
                             " cancellation") for i in decided.nonzero().flatten().tolist()]
        names = [s["name"] for s in case.what["steps"] if "expr" not in s]
        return {
            "losses": writer.tensor(losses),
            "loss_bounds": writer.tensor(loss_bounds),
            "steps": [{"step": name, "by_rank": [writer.tensor(x) for x in values],
                       "bound": [writer.tensor(x) for x in bound]}
                      for name, values, bound in zip(names, steps, step_bounds)],
            "gradients": [self._by_input(row) for row in rows],
            "bounds": self._by_input(errors + gradient_bounds),
            "bound_notes": [f"{item['name']}: finite differences in float64"
                            for item in self._items],
            "undecided_elements": [_undecided(place, why) for place, why in undecided],
        }

    def _by_input(self, flat):
        """Writes one value per element, in the order of the elements, in the leaves' shapes."""
        at, result = 0, []
        for item in self._items:
            parts = []
            for shape in self._parts(item):
                count = int(torch.Size(shape).numel())
                parts.append(self._case.writer.tensor(flat[at : at + count].reshape(shape)))
                at += count
            result.append({"input": item["name"], "parts": parts})
        return result

    # -- what is taken out of autograd

    def _hold(self, cuts, losses, plain, own, reply, undecided):
        """Returns the slopes that the user means."""
        held_again = self._losses(cuts.holding)
        elements, slopes = self._elements, {}
        if not self._everywhere(cuts.parted or not torch.equal(held_again, losses)):
            slopes = {i: self._slope(elements[i], losses, cuts.holding) for i in plain}
        texts, unknown = self._gathered(cuts.texts()), self._gathered(cuts.unknown)
        if unknown:
            undecided.append(f"{unknown[0]} is too large to tell whether its backward is the"
                             " derivative of its forward")
        if self._everywhere(cuts.parted or not torch.equal(held_again, losses)):
            undecided.append("what the code takes out of autograd cannot be held fixed, as it does"
                             " not run alike each time")
        elif texts:
            values, _ = self._filled(slopes, own, len(elements))
            reply["held"] = self._by_input(values[0])
            reply["cuts"] = texts
            known = {(e["input"], e["part"], e["element"]) for e in reply["undecided_elements"]}
            reply["undecided_elements"] += [e for i, slope in slopes.items() if slope.why
                                            and (e := _undecided(elements[i], slope.why))
                                            and (e["input"], e["part"], e["element"]) not in known]
            return slopes
        return plain

    def _leave_out_hooks(self, slopes, reply):
        """Counts the result of hooks that change a gradient as meant, if the ranks' backward
        without them gives the measured slopes. Returns whether it does."""
        if not self._is_plain():
            return False
        with hooks.noting() as noted:
            with_hooks = self._own_gradients()[0]
        communicating = self._gathered(noted.communicating)
        changing = [text for text in self._gathered(noted.changing) if text not in communicating]
        if not changing:
            return False
        with hooks.leaving_out(changing):
            without = self._own_gradients()[0]
        if not self._are(without[None], slopes):
            return False
        reply["held"] = self._by_input(with_hooks)
        reply["cuts"] = reply.get("cuts", []) + [f"a hook: {text}" for text in changing]
        return True

    def _is_plain(self):
        """Returns whether the leaves' gradients can be put together from what the ranks hold."""
        return all(axis["kind"] != "invariant" for item in self._items for axis in item["layout"])

    def _why_nothing_is_known(self, losses, again):
        same = (losses == again) | (losses.isnan() & again.isnan())
        if bool(same.all()):
            infinite = [rank for rank, loss in enumerate(losses.tolist()) if not math.isfinite(loss)
                        and bool((self._rows[:, rank] != 0).any())]
            return [f"the loss is {losses[rank].item()} on rank {rank}: differences of it show no"
                    " gradient" for rank in infinite[:1]]
        rank = int((~same).nonzero()[0])
        return [f"two runs of the forward differ (the loss on rank {rank}:"
                f" {losses[rank].item():.9g}, then {again[rank].item():.9g}): it is random, or"
                " keeps something from run to run"]

    # -- rounding

    def _rounding(self, losses, steps, gradient):
        """Returns the bounds of the gradient's elements, of the losses and of the steps, and where
        rounding decides the gradient."""
        dtype = self._dtype
        flat = [losses, *(x for values in steps for x in values)]
        spread, gradient_spread = Spread(flat), torch.zeros_like(gradient)
        plain = None
        for run in range(RUNS + 1 if dtype != "float64" else 0):
            mode = Rounding(dtype, run * 1024 + self._case.rank) if run else None
            here, losses_again, steps_again = self._backward_under(mode)
            if plain is None:
                plain = here
                continue
            spread.add([losses_again, *(x for values in steps_again for x in values)])
            apart = self._on_leaves([torch.where(x.isfinite() & y.isfinite(), (x - y).abs(),
                                                 torch.zeros_like(x)) for x, y in zip(here, plain)])
            gradient_spread = torch.maximum(gradient_spread, apart)
        roundings = unmoved(self._case.what)
        sizes = [sum(torch.Size(shape).numel() for shape in self._parts(item))
                 for item in self._items] or [0]
        bounds, decided = map(torch.cat, zip(*(
            bound_of(s, x, dtype, roundings)
            for s, x in zip(gradient_spread.split(sizes), gradient.split(sizes)))))
        forward = [bound_of(s, x, dtype, roundings)[0] for s, x in zip(spread.raw(), flat)]
        by_step, at = [], 1
        for values in steps:
            by_step.append(forward[at : at + len(values)])
            at += len(values)
        return bounds, forward[0], by_step, decided

    def _backward_under(self, mode):
        """Returns the ranks' own gradients (zeros where missing), losses and steps of a run under
        `mode`, which adds roundings."""
        case = self._case
        case.make_leaves(self._held())
        with self._in_wide(), mode or contextlib.nullcontext():
            loss, reached = case.forward()
            case.backward(loss, reached)
        gradients = [torch.zeros_like(x) if g is None else g
                     for g, (_, x) in zip(case.gradients(), case.leaves)]
        losses = torch.cat(gathered(loss.detach().reshape(1)))
        return gradients, losses, [gathered_uneven(value) for value in case.reported]

    def _on_leaves(self, apart):
        """Sums over the ranks what their copies and pieces contribute to each element of the
        leaves."""
        flat = []
        for item, x in zip(self._items, apart):
            if is_local(item):
                flat += [part.reshape(-1) for part in gathered_uneven(x)]
                continue
            leaf = torch.zeros_like(self._leaves[item["name"]]).requires_grad_()
            held = self._case.program.held(item["name"], leaf, self._case.rank)
            (mine,) = torch.autograd.grad((held * x.to(torch.float64)).sum(), leaf)
            flat.append(summed(mine).reshape(-1))
        return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.float64)

    # -- among the ranks

    def _everywhere(self, flag):
        """Returns whether the flag is true on some rank. Communicates."""
        mine = torch.tensor([1.0 if flag else 0.0], dtype=torch.float64)
        return bool(summed(mine).item())

    def _gathered(self, texts):
        import torch.distributed as dist

        lists = [None] * self._world.size
        dist.all_gather_object(lists, list(texts), group=self._world.process_group)
        return list(dict.fromkeys(text for some in lists for text in some))


def _undecided(place, why):
    item, part, element = place
    return {"input": item["name"], "part": part, "element": element, "why": why}
