"""Where the ranks' run leaves the single run's: in forward, in the loss, in backward, or behind it."""

import dataclasses

from ..words import ranks_text
from .joined import backward_of, joined

_SAME = 0.05  # factors


@dataclasses.dataclass
class Departure:
    """stage: "forward", "loss", "weights" (of the ranks' losses), "term" (another one of the loss), "backward", "after" backward, or "unknown". `module`: whose output, or output's gradient, is the
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
    data: list = dataclasses.field(default_factory=list)  # what is odd about the data that the ranks compute with
    parted: bool = False  # whether each part of the data is computed once
    losses: dict = dataclasses.field(default_factory=dict)


class Finder:
    def __init__(self, single, ranks, wrong, factor=None):
        """`single`, `ranks`: traces; `wrong`: the wrong parameters' names, in model order; `factor`: that all of them are wrong by."""
        self._factor = factor
        self._single, self._ranks, self._wrong = single, ranks, wrong
        self.all = joined(single["outputs"], [trace["outputs"] for trace in ranks])
        self._known = [one for one in self.all if one.pieces]
        self._factors = {}
        self._data = self._leave_out_other_passes()
        self._positions = {}  # of the modules' last outputs
        for one in self._known:
            self._positions[one.name] = max(one.position, self._positions.get(one.name, -1))

    def departure(self):
        found = self._forward() or self._backward() or self._after()
        found.compared = len({one.name for one in self._known})
        found.losses = self._losses()
        found.data, found.parted = self._looked_at_data()
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

    def _leave_out_other_passes(self):
        """Passes over data that the single run does not have, beside others that it has: they say nothing of where forward departs."""
        if not self._known:
            return []
        calls = {}
        for piece in [p for one in self._known if one.name == self._known[0].name for p in one.pieces]:
            calls.setdefault(piece.rank, {}).setdefault(piece.record["call"], []).append(piece.place is not None)
        other = {(rank, call) for rank, found in calls.items() for call, right in found.items()
                 if not any(right) and any(map(all, found.values()))}
        if not other or not self._is_covered({one.position: [p for p in one.pieces if p.key not in other]
                                              for one in self._known if one.name == self._known[0].name}):
            return []
        for one in self._known:
            one.pieces = [p for p in one.pieces if p.key not in other]
        self._known = [one for one in self._known if one.pieces]
        passes = ", ".join(sorted({f"pass {call + 1} of {len(calls[rank])}" for rank, call in other}))
        return [f"{passes}{self._on(sorted({rank for rank, _ in other}))} is over data that the single run does not have;"
                " if it is not to count, its gradients are left over (zero_grad)"]

    def _on(self, ranks):
        return " on every rank" if len(ranks) == len(self._ranks) else f" on {ranks_text(ranks)}"

    def _is_covered(self, pieces):
        """Whether all of the outputs, by position, are in the pieces."""
        return all(found and all(p.place is not None for p in found)
                   and not bool((_counts(found, self.all[position].truth["value"]) == 0).any()) for position, found in pieces.items())

    def _looked_at_data(self):
        """(texts, whether each part is computed once), of the first module of which each rank has a part."""
        first = next((one for one in self._known if one.is_equal and not any(p.group for p in one.pieces)), None)
        if first is None or first.truth["value"].dim() < 1:
            return self._data, False
        if len([o for o in self._known if o.name == first.name and o.truth["index"] == first.truth["index"]]) > 1:
            return self._data, False
        whole, texts = first.truth["value"], list(self._data)
        counts = _counts(first.pieces, whole)
        rows = counts.flatten(1) if whole.dim() > 1 else counts[:, None]
        if bool((counts == 0).any()):
            none = _runs((rows == 0).any(1).nonzero().flatten().tolist())
            texts.append(f"{first.name}: rows {none} of {len(whole)} are computed by no rank")
        for rank in range(len(self._ranks)):
            own = [p for p in first.pieces if p.rank == rank]
            if len(own) > 1 and bool((_counts(own, whole) > 1).any()):
                texts.append(f"{first.name}: rank {rank} computes the same rows in several passes")
                break
        if bool((counts > 0).all()) and int(counts.max()) != int(counts.min()):
            many = _runs((rows > counts.min()).any(1).nonzero().flatten().tolist())
            texts.append(f"{first.name}: rows {many} of {len(whole)} are computed more often than the others")
        return texts, bool((counts == 1).all())

    # -- backward

    def _backward(self):
        reference, after = None, None  # factors, and the output they are of
        for one in reversed(self._known):
            state = backward_of(one)
            if state.kind == "unknown":
                continue
            how, ranks = _difference(state, reference)
            if how and self._has_wrong_upstream(one):
                after, calls = self._behind(one, after, ranks[0] if ranks else one.pieces[0].rank, state.kind == "missing")
                stage = "backward" if after is not None else "loss"
                return Departure(stage, one.name, after.name if after else "", how, ranks, calls, factors=_by_rank(reference))
            reference, after = state, one
        self._factors = _by_rank(reference)  # of what runs first
        if after is None:
            return Departure("unknown", how="of no module are gradients known in both runs")
        return None

    def _has_wrong_upstream(self, one):
        """Whether a wrong gradient goes through there; as far as it is known where the parameters are used."""
        owners = [owner for name in self._wrong if (owner := _position_of(name, self._positions)) is not None]
        return not owners or min(owners) <= one.position

    def _behind(self, one, after, rank, is_cut):
        """(the first output that is computed from this one, and has calls between both; those calls). Where the graph `is_cut` the
        first of all."""
        if after is None:
            return None, self._between(one, None, rank)
        consumers = self._consumers(one) or [after]
        for consumer in consumers:
            if (calls := self._between(one, consumer, rank)) or is_cut:
                return consumer, calls
        return consumers[0], []

    def _consumers(self, one):
        """What both runs have of what is computed from it, in order."""
        at = {known.position: known for known in self._known if known.is_equal}
        waiting, seen = list(one.truth.get("consumers", ())), set()
        while waiting:
            position = waiting.pop()
            if position not in seen:
                seen.add(position)
                if position not in at:
                    waiting += self._single["outputs"][position].get("consumers", ())
        return [at[position] for position in sorted(seen) if position in at]

    def _after(self):
        """All modules are right."""
        rank = 0
        events = self._ranks[rank]["events"]
        ends = [i for i, event in enumerate(events) if event["kind"] == "loss"]
        behind = events[ends[-1] + 1:] if ends else []
        calls = _named([e for e in behind if e["kind"] in ("communication", "function")])
        hooks = _named([e for e in events if e["kind"] == "communication" and e["phase"] == "backward"])
        factors = self._factors
        if self._is_there_from_the_loss(factors):
            last = next(one for one in reversed(self._known) if backward_of(one).kind != "unknown")
            how = f"has {next(iter(factors.values())):.4g} times its gradient"
            return Departure("loss", last.name, "", how, (), self._between(last, None, rank), factors=factors)
        stage = "after" if not factors or _are_alike(factors.values()) else "weights"
        return Departure(stage, calls=calls + [c for c in hooks if c not in calls], factors=factors)

    def _is_there_from_the_loss(self, factors):
        """Whether the factor that all gradients are wrong by is that of the last module's, where the ranks do not share the data: what
        comes after backward has no part in it."""
        if self._factor is None or not factors or self._looked_at_data()[1]:
            return False
        return abs(self._factor - 1) > _SAME and all(abs(f / self._factor - 1) <= _SAME for f in factors.values())

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
        if found.stage not in ("backward", "forward", "loss"):
            return
        at = max((one.position for one in self._known if one.name == found.module), default=-1)
        for name in self._wrong:
            owner = _position_of(name, self._positions)
            is_upstream = found.stage != "backward" or (owner is not None and owner <= at)
            if owner is None and found.stage == "backward":
                continue  # its module was not watched
            (found.upstream if is_upstream else found.others).append(name)


def _counts(pieces, whole):
    """Of each element of the whole, how many of the pieces it is in."""
    return sum(piece.place.mask(whole) for piece in pieces)


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
    if state.kind == "shares" and (reference is None or reference.kind == "own"):
        return "has a share of its gradient on each rank, whose sum is right", ()
    if reference is not None and state.kind == reference.kind:
        now, then = _by_rank(state), _by_rank(reference)
        ratios = {rank: now[rank] / then[rank] for rank in now if rank in then}
        if not ratios and _are_alike(now.values()) and _are_alike(then.values()):  # stages of a pipeline
            ratio = next(iter(now.values())) / next(iter(then.values()))
            ratios = dict.fromkeys(now, ratio)
        far = {rank: ratio for rank, ratio in ratios.items() if abs(ratio - 1) > _SAME}
        if far:
            values = list(far.values())
            alike = len(far) == len(ratios) and _are_alike(values)
            many = f"{values[0]:.4g}" if alike else ", ".join(f"{v:.4g}" for v in values)
            return f"has {many} times the gradient that it should have by what comes behind it", () if alike else tuple(far)
    return "", ()


def _are_alike(values):
    return max(values) - min(values) <= _SAME * max(map(abs, values))


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
