"""Where the ranks' run leaves the single run's: in forward, in the loss, in backward, or behind it."""

import dataclasses

from .joined import backward_of, joined

_SAME = 0.05  # factors


@dataclasses.dataclass
class Departure:
    """stage: "forward", "loss", "backward", "after" backward, or "unknown". `module`: whose output, or output's gradient, is the
    first that is wrong; `before`: the last that is right; `calls`: what communicates, and the Functions, between both."""

    stage: str
    module: str = ""
    before: str = ""
    how: str = ""
    ranks: tuple = ()
    calls: list = dataclasses.field(default_factory=list)
    upstream: list = dataclasses.field(default_factory=list)  # wrong parameters whose gradient goes through there
    others: list = dataclasses.field(default_factory=list)  # wrong ones elsewhere
    compared: int = 0  # modules
    factors: dict = dataclasses.field(default_factory=dict)  # by rank: how many times the single run's its backward is
    uncovered: str = ""
    losses: dict = dataclasses.field(default_factory=dict)


class Finder:
    def __init__(self, single, ranks, wrong):
        """`single`, `ranks`: traces; `wrong`: the wrong parameters' names, in model order."""
        self._single, self._ranks, self._wrong = single, ranks, wrong
        self.all = joined(single["outputs"], [trace["outputs"] for trace in ranks])
        self._known = [one for one in self.all if one.pieces]

    def departure(self):
        found = self._forward() or self._backward() or self._after()
        found.compared = len({one.name for one in self._known})
        found.losses = self._losses()
        found.uncovered = self._uncovered()
        self._place_parameters(found)
        return found

    # -- forward

    def _forward(self):
        if not self._known:
            return Departure("unknown", how="no module has the same name in both runs")
        equal = [i for i, one in enumerate(self._known) if one.is_equal]
        last = equal[-1] if equal else -1
        if last + 1 == len(self._known):
            return None
        first = self._known[last + 1]
        ranks = tuple(sorted({p.rank for p in first.pieces if p.place is None}))
        before = self._known[last] if equal else None
        if before is not None and before.position > first.position:
            return None
        calls = self._between(before, first, ranks[0] if ranks else 0)
        return Departure("forward", first.name, before.name if before else "", "output", ranks, calls)

    def _uncovered(self):
        """Rows of the truth that no rank computes, as where all have the same data."""
        for one in self._known:
            if not one.is_equal or any(piece.group for piece in one.pieces):
                continue
            calls = [other for other in self._known if other.name == one.name and other.truth["index"] == one.truth["index"]]
            if len(calls) > 1:
                return ""
            mask = sum(piece.place.mask(one.truth["value"]) for piece in one.pieces)
            if bool((mask == 0).any()):
                rows = (mask == 0).flatten(1).any(1).nonzero().flatten().tolist() if mask.dim() > 1 else []
                return f"{one.name}: " + (f"rows {_runs(rows)} of {len(mask)}" if rows else "a part") + " are computed by no rank"
            return ""
        return ""

    # -- backward

    def _backward(self):
        reference, after = None, None  # factors, and the output they are of
        for one in reversed(self._known):
            state = backward_of(one)
            if state.kind == "unknown":
                continue
            how, ranks = _difference(state, reference)
            if how:
                calls = self._between(one, after, ranks[0] if ranks else one.pieces[0].rank)
                stage = "backward" if after is not None else "loss"
                return Departure(stage, one.name, after.name if after else "", how, ranks, calls, factors=_by_rank(reference))
            reference, after = state, one
        self._factors = _by_rank(reference)
        if after is None:
            return Departure("unknown", how="of no module are gradients known in both runs")
        return None

    def _after(self):
        """All modules are right."""
        rank = 0
        events = self._ranks[rank]["events"]
        ends = [i for i, event in enumerate(events) if event["kind"] == "loss"]
        behind = events[ends[-1] + 1:] if ends else []
        calls = _named([e for e in behind if e["kind"] in ("communication", "function")])
        hooks = _named([e for e in events if e["kind"] == "communication" and e["phase"] == "backward"])
        return Departure("after", calls=calls + [c for c in hooks if c not in calls], factors=self._factors)

    # -- what lies there

    def _between(self, before, after, rank):
        """The calls of one rank between two outputs; of the first one's end or of the beginning, to the loss."""
        events = self._ranks[rank]["events"]
        begin = max((p.record["event"] for p in before.pieces if p.rank == rank), default=0) if before else 0
        losses = [i for i, e in enumerate(events) if e["kind"] == "loss" and i >= begin]
        end = losses[0] if losses else len(events)
        if after is not None:
            end = max((p.record["event"] for p in after.pieces if p.rank == rank), default=end)
        return _named([e for e in events[begin:end] if e["phase"] == "forward" and e["kind"] in ("communication", "function")])

    def _losses(self):
        values = [e["value"] for e in self._single["events"] if e["kind"] == "loss"]
        theirs = [[e["value"] for e in trace["events"] if e["kind"] == "loss" and e["value"] is not None] for trace in self._ranks]
        if not values or None in values or not any(theirs):
            return {}
        return {"single": sum(values), "ranks": [sum(x) for x in theirs]}

    # -- parameters

    def _place_parameters(self, found):
        positions = {}
        for one in self._known:
            positions[one.name] = max(one.position, positions.get(one.name, -1))
        if found.stage not in ("backward", "forward", "loss"):
            return
        at = max((one.position for one in self._known if one.name == found.module), default=-1)
        for name in self._wrong:
            owner = _position_of(name, positions)
            is_upstream = found.stage != "backward" or (owner is not None and owner <= at)
            if owner is None and found.stage == "backward":
                continue  # its module was not watched
            (found.upstream if is_upstream else found.others).append(name)


def _position_of(parameter, positions):
    parts = parameter.split(".")[:-1]
    while parts:
        if ".".join(parts) in positions:
            return positions[".".join(parts)]
        parts.pop()
    return None


def _difference(state, reference):
    """(in words what is wrong with these gradients, the ranks): against those of what runs later."""
    if state.kind == "missing":
        return "has no gradient", state.ranks
    if state.kind == "wrong":
        return "has another gradient", state.ranks
    if reference is None:
        return "", ()
    if state.kind == "shares" and reference.kind == "own":
        return "has a share of its gradient on each rank, whose sum is right", ()
    if state.kind == reference.kind:
        now, then = _by_rank(state), _by_rank(reference)
        ratios = {rank: now[rank] / then[rank] for rank in now if rank in then}
        far = {rank: ratio for rank, ratio in ratios.items() if abs(ratio - 1) > _SAME}
        if far:
            values = list(far.values())
            alike = len(far) == len(ratios) and max(values) - min(values) <= _SAME * abs(values[0])
            many = f"{values[0]:.4g}" if alike else ", ".join(f"{v:.4g}" for v in values)
            return f"has {many} times the gradient that it should have by what comes behind it", () if alike else tuple(far)
    return "", ()


def _by_rank(state):
    """The mean of a rank's factors; of shares there is one for all."""
    if state is None:
        return {}
    found = {}
    for key, factor in state.factors.items():
        found.setdefault(key[0] if state.kind == "own" else -1, []).append(factor)
    return {rank: sum(factors) / len(factors) for rank, factors in found.items()}


def _named(events):
    """ "Gather in model.py:12 (allgather)", each once with how often."""
    places, counts = {}, {}
    for event in events:
        names = places.setdefault(event["place"], {"function": [], "communication": []})[event["kind"]]
        if event["what"] not in names:
            names.append(event["what"])
        counts[event["place"]] = counts.get(event["place"], 0) + (event["kind"] == "communication")
    texts = []
    for place, names in places.items():
        functions, exchanges = names["function"], names["communication"]
        what = ", ".join(functions or exchanges) + f" in {place}" + (f" ({', '.join(exchanges)})" if functions and exchanges else "")
        texts.append(what + (f", {counts[place]} times" if counts[place] > 1 else ""))
    return texts


def _runs(numbers):
    """ "0-3, 8" """
    texts, i = [], 0
    while i < len(numbers):
        j = i
        while j + 1 < len(numbers) and numbers[j + 1] == numbers[j] + 1:
            j += 1
        texts.append(str(numbers[i]) if i == j else f"{numbers[i]}-{numbers[j]}")
        i = j + 1
    return ", ".join(texts[:6]) + (", ..." if len(texts) > 6 else "")
