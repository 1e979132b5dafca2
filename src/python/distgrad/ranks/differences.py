"""The truth of a program of which nothing but its ranks' forward run is known: finite differences of that, in float64.

All ranks move the same element of the same leaf, run forward, and gather their losses, so that all decide alike. Where two
step sizes do not agree, or the slopes of both sides differ, the loss has a kink or jump, and the element is undecided. What
the code takes out of autograd (cuts.py) is held fixed in a second pass: that is the derivative the user means.
"""

import contextlib

import torch

from . import exchange
from .cuts import Cuts
from .rounding import RUNS, Rounding, Spread, bound_of
from .runner import InvalidAt
from .values import held_of, is_local, leaf_of

# Step sizes, relative to the element: pairs of which the second is a quarter of the first. A pair is taken where both give
# the same slope, which they do unless a kink or jump lies between; then the next, smaller one.
_STEPS = (2.0**-14, 2.0**-20, 2.0**-26)
_AGREES = 1e-4
_KINK = 1e-4  # by how much the slopes of both sides differ, relative to them
_NOISE = 64 * 2.0**-53  # of a loss, relative to it
MOST_ELEMENTS = 2048


def measure(case, rows):
    """Fills in the case's result; `rows`: the weights of the losses, by objective."""
    case.dtype = torch.float64
    if case.rank == 0:  # what is wrong with an expression is told by one
        case.result["measured"] = _NOTHING(case)
    try:
        measured = _Measurement(case, rows).run()
    except InvalidAt as error:
        measured = {"invalid": {"pointer": error.pointer, "message": str(error), "caret": ""}}
    case.result["gradients"] = [None] * len(case.leaves)
    case.result["steps"] = [case.writer.tensor(value) for value in case.told]
    if case.rank == 0:
        case.result["measured"].update(measured)
    else:
        case.result.pop("measured", None)


def _NOTHING(case):
    none = case.writer.tensor(torch.zeros(0))
    return {"losses": none, "loss_bounds": none, "steps": [], "cotangents": [], "gradients": [], "bounds": [],
            "exact": False, "bound_notes": [], "undecided": [], "forward_only": "", "single_loss_bound": 0.0,
            "single_gradients": [], "single_bounds": [], "file_truth": []}


class _Measurement:
    def __init__(self, case, rows):
        self._case = case
        self._rows = torch.tensor(rows, dtype=torch.float64)
        self._world = case.groups[""]
        self._items = [item for item in case.program["inputs"] if item.get("requires_grad", True)]
        self._leaves = {item["name"]: case.value_of(item, leaf_of).detach().to(torch.float64)
                        for item in case.program["inputs"]}
        self._shapes = {item["name"]: exchange.all_gather_shapes(self._world, self._leaves[item["name"]])
                        for item in self._items}
        self._move = None  # (item's name, rank or None, element, by how much)

    def run(self):
        losses = self._losses()
        cuts = Cuts()
        again = self._losses(cuts.recording)
        steps = [exchange.all_gather_uneven(self._world, value) for value in self._case.told]
        held_again = again
        if self._everywhere(cuts.any()):
            held_again = self._losses(cuts.holding)
        undecided = self._why_nothing_is_known(losses, again)
        elements = [(item, part, element) for item in self._items for part, shape in enumerate(self._parts(item))
                    for element in range(int(torch.Size(shape).numel()))]
        if len(elements) > MOST_ELEMENTS:
            raise InvalidAt("", f"the inputs have {len(elements)} elements; finite differences are made of at most"
                            f" {MOST_ELEMENTS}: give the call a \"simulate\", or smaller inputs")
        if undecided:
            slopes = [_Slope.unknown(losses) for _ in elements]
        else:
            slopes = [self._slope(e, losses) for e in elements]
        reply = self._reply(losses, steps, elements, slopes)
        if not undecided and self._everywhere(cuts.any()):
            self._hold(cuts, losses, elements, reply, held_again, undecided)
        reply["undecided"] = undecided
        return reply

    # -- forward

    def _losses(self, watched=contextlib.nullcontext):
        """By rank; on every rank the same. `watched` makes what forward runs under."""
        self._case.make_leaves(self._value)
        with watched():
            loss, _ = self._case.forward()
        shapes = exchange.all_gather_shapes(self._world, loss)
        for rank, shape in enumerate(shapes):
            if torch.Size(shape).numel() != 1:
                raise InvalidAt(self._case.program["loss"]["pointer"],
                                f"the loss has {torch.Size(shape).numel()} elements (shape {list(shape)} on rank {rank});"
                                " it must have one: take .sum() or .mean()")
        return torch.cat(exchange.all_gather(self._world, loss.detach().reshape(1).to(torch.float64)))

    def _value(self, item):
        leaf = self._leaves[item["name"]].clone()
        if self._move and self._move[0] == item["name"]:
            _, rank, element, by = self._move
            if rank is None or rank == self._case.rank:
                leaf.view(-1)[element] += by
        held = held_of(self._case.program, item, leaf, self._case.rank)
        return held.detach().clone(memory_format=torch.contiguous_format)

    def _moved(self, item, part, element, by, watched):
        self._move = (item["name"], part if is_local(item) else None, element, by)
        try:
            return self._losses(watched)
        finally:
            self._move = None

    # -- slopes

    def _parts(self, item):
        """The shapes of the leaves: by rank, or of the one."""
        shapes = self._shapes[item["name"]]
        return shapes if is_local(item) else shapes[:1]

    def _scale(self, item, part, element):
        """The element's size; the tensor's where it is 0. The same on all ranks."""
        leaf = self._leaves[item["name"]]
        mine = torch.zeros(2, dtype=torch.float64)
        if leaf.numel() and (not is_local(item) or part == self._case.rank):
            finite = leaf.nan_to_num(posinf=0, neginf=0)
            mine[0], mine[1] = finite.reshape(-1)[element].abs(), finite.square().mean().sqrt()
        both = torch.stack(exchange.all_gather(self._world, mine)).amax(0)
        return max(float(both[0]), float(both[1])) or 1.0

    def _slope(self, place, base, watched=contextlib.nullcontext):
        item, part, element = place
        scale = self._scale(item, part, element)
        weights = self._rows[0]
        found = None
        for step in _STEPS:
            h = scale * step
            found = _Slope(base, h, *(self._moved(item, part, element, by, watched) for by in (h, -h, h / 4, -h / 4)))
            if found.agrees(weights):
                break
        found.look_for_kink(weights)
        return found

    def _reply(self, losses, steps, elements, slopes):
        case, writer = self._case, self._case.writer
        by_rank = torch.stack([s.value for s in slopes]) if slopes else torch.zeros(0, len(losses))
        errors = torch.stack([s.error for s in slopes]) if slopes else torch.zeros(0, len(losses))
        rows = [_weighted(by_rank, row) for row in self._rows]
        gradient_bounds, loss_bounds, step_bounds, decided = self._rounding(losses, steps, rows[0])
        bounds = _weighted(errors, self._rows[0].abs()) + gradient_bounds
        undecided = [(place, slope.why) for place, slope in zip(elements, slopes) if slope.why]
        undecided += [(place, "a rounding before it decides its gradient: a branch, a tie or a cancellation")
                      for place, is_decided in zip(elements, decided.tolist()) if is_decided]
        names = [s["name"] for s in case.program["steps"] if "expr" not in s]
        return {
            "losses": writer.tensor(losses),
            "loss_bounds": writer.tensor(loss_bounds),
            "steps": [{"step": name, "by_rank": [writer.tensor(x) for x in values],
                       "bound": [writer.tensor(x) for x in bound]}
                      for name, values, bound in zip(names, steps, step_bounds)],
            "gradients": [self._by_input(row) for row in rows],
            "bounds": self._by_input(bounds),
            "bound_notes": [f"{item['name']}: finite differences in float64" for item in self._items],
            "undecided_elements": [{"input": item["name"], "part": part, "element": element, "why": why}
                                   for (item, part, element), why in undecided],
        }

    def _by_input(self, flat):
        """One value an element, in the order of the elements, as the leaves are shaped."""
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

    def _hold(self, cuts, losses, elements, reply, held_again, undecided):
        parted = self._everywhere(cuts.parted or not torch.equal(held_again, losses))
        if not parted:
            slopes = [self._slope(e, losses, cuts.holding) for e in elements]
            parted = self._everywhere(cuts.parted)
        texts = self._gathered(cuts.texts())
        unknown = self._gathered(cuts.unknown)
        if unknown:
            undecided.append(f"{unknown[0]} is too large to tell whether its backward is the derivative of its forward")
        if parted:
            undecided.append("what the code takes out of autograd cannot be held fixed, as it does not run alike each time")
        elif texts:
            by_rank = torch.stack([s.value for s in slopes])
            reply["held"] = self._by_input(_weighted(by_rank, self._rows[0]))
            reply["cuts"] = texts
            reply["undecided_elements"] += [
                {"input": item["name"], "part": part, "element": element, "why": slope.why}
                for (item, part, element), slope in zip(elements, slopes) if slope.why]

    def _why_nothing_is_known(self, losses, again):
        same = (losses == again) | (losses.isnan() & again.isnan())
        if bool(same.all()):
            return []
        rank = int((~same).nonzero()[0])
        return [f"two runs of the forward differ (the loss on rank {rank}: {losses[rank].item():.9g}, then"
                f" {again[rank].item():.9g}): it is random, or keeps something from run to run"]

    # -- rounding

    def _rounding(self, losses, steps, gradient):
        """Bounds of the gradient's elements, of the losses and of the steps; and where rounding decides the gradient."""
        dtype = self._case.program["dtype"]
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
            apart = self._on_leaves([torch.where(x.isfinite() & y.isfinite(), (x - y).abs(), torch.zeros_like(x))
                                     for x, y in zip(here, plain)])
            gradient_spread = torch.maximum(gradient_spread, apart)
        roundings = len(losses) + len(self._case.program["steps"]) + 1
        bounds, decided = bound_of(gradient_spread, gradient, dtype, roundings)
        forward = [bound_of(s, x, dtype, roundings)[0] for s, x in zip(spread.raw(), flat)]
        by_step, at = [], 1
        for values in steps:
            by_step.append(forward[at : at + len(values)])
            at += len(values)
        return bounds, forward[0], by_step, decided

    def _backward_under(self, mode):
        """The ranks' own gradients (zeros where missing), losses and steps of a run in which roundings are made."""
        case = self._case
        case.make_leaves(self._value)
        if mode:
            with mode:
                loss, reached = case.forward()
                case.backward(loss, reached)
        else:
            loss, reached = case.forward()
            case.backward(loss, reached)
        gradients = [torch.zeros_like(x) if g is None else g for g, (_, x) in zip(case.gradients(), case.leaves)]
        losses = torch.cat(exchange.all_gather(self._world, loss.detach().reshape(1)))
        return gradients, losses, [exchange.all_gather_uneven(self._world, value) for value in case.told]

    def _on_leaves(self, apart):
        """What the ranks' copies and pieces differ by, as a bound for the leaf's elements: summed."""
        flat = []
        for item, x in zip(self._items, apart):
            if is_local(item):
                flat += [part.reshape(-1) for part in exchange.all_gather_uneven(self._world, x)]
                continue
            leaf = torch.zeros_like(self._leaves[item["name"]]).requires_grad_()
            held = held_of(self._case.program, item, leaf, self._case.rank)
            (mine,) = torch.autograd.grad((held * x.to(torch.float64)).sum(), leaf)
            flat.append(exchange.all_reduce(self._world, mine, "sum").reshape(-1))
        return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.float64)

    # -- among the ranks

    def _everywhere(self, flag):
        """Whether it is so on some rank."""
        mine = torch.tensor([1.0 if flag else 0.0], dtype=torch.float64)
        return bool(exchange.all_reduce(self._world, mine, "sum").item())

    def _gathered(self, texts):
        import torch.distributed as dist

        lists = [None] * self._world.size
        dist.all_gather_object(lists, list(texts), group=self._world.process_group)
        return list(dict.fromkeys(text for some in lists for text in some))


class _Slope:
    """The slopes of all ranks' losses in one element, from the losses at +h, -h, +h/4 and -h/4."""

    def __init__(self, base, h, up, down, up_near, down_near):
        self._h = h
        self._base = base
        self._far, self._near = (up - down) / (2 * h), (up_near - down_near) / (h / 2)
        self._gaps = (up - 2 * base + down) / h, (up_near - 2 * base + down_near) / (h / 4)
        self._sides = (base - down_near) / (h / 4), (up_near - base) / (h / 4)
        self._noise = _NOISE * torch.stack([base, up, down]).abs().nan_to_num(posinf=0).amax(0) / (h / 4)
        self.value = (16 * self._near - self._far) / 15
        self.error = 4 * (self._near - self._far).abs() + self._noise
        self.why = ""

    @classmethod
    def unknown(cls, base):
        nothing = torch.full_like(base, float("nan"))
        return cls(nothing, 1.0, nothing, nothing, nothing, nothing)

    def agrees(self, weights):
        apart = _weighted((self._near - self._far)[None], weights).abs()
        size = _weighted(self._near[None], weights).abs()
        return bool(apart <= _AGREES * size + 8 * _weighted(self._noise[None], weights.abs()))

    def look_for_kink(self, weights):
        far, near = (abs(float(_weighted(g[None], weights))) for g in self._gaps)
        below, above = (float(_weighted(s[None], weights)) for s in self._sides)
        noise = float(_weighted(self._noise[None], weights.abs()))
        if not all(map(_is_finite, (far, near, below, above))):
            self.why = "the loss is not finite beside this value"
        elif not self.agrees(weights) and near > 2 * far:
            self.why = "the loss jumps at this value"
        elif near > 0.5 * far and near > _KINK * (abs(below) + abs(above)) + 8 * noise:
            self.why = f"the loss has a kink at this value: its slope is {below:.4g} below and {above:.4g} above"
        elif not self.agrees(weights):
            self.why = "finite differences with different steps do not agree on the slope at this value"
        self.error = self.error.nan_to_num(nan=0, posinf=0)


def _is_finite(x):
    return x - x == 0


def _weighted(by_rank, weights):
    """Sums over the ranks' losses, those of weight 0 left out: they may be infinite."""
    return torch.where(weights != 0, by_rank * weights, torch.zeros_like(by_rank)).sum(-1)
