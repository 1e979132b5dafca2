"""Where the ranks' run leaves the single run's: in forward, in the loss, in backward, or behind
it."""

import dataclasses

import torch

from ..words import ranks_text
from .arrivals import unreached, wrong_at_once
from .backward_search import BackwardSearch, are_alike, by_call, by_rank
from .cotangents import sentences, tokens_of
from .graph import Graph
from .joined import joined, value_factor
from .orders import pieces_in_another_order

_SAME = 0.05  # factors
_SAME_COUNT = 0.02  # of numbers of rows, that a bfloat16 can show
_JUMP = 8  # times the error of what it is computed from


@dataclasses.dataclass
class Departure:
    """stage: "forward", "loss", "weights" (of the ranks' losses), "term" (another one of the loss),
    "backward", "shares" (backward, or nobody adds them up behind it), "factor" (of the loss, or
    after backward), "parameters" (what backward gives to some is wrong), "after" backward, or
    "unknown". `module`: whose output, or output's gradient, is the first that is wrong; `before`:
    the last that is right; `calls`: what communicates, and the Functions, between both."""

    stage: str
    module: str = ""
    before: str = ""
    how: str = ""
    ranks: tuple = ()
    calls: list = dataclasses.field(default_factory=list)
    upstream: list = dataclasses.field(
        default_factory=list)  # wrong parameters whose gradient goes through there
    others: list = dataclasses.field(default_factory=list)  # wrong ones elsewhere
    tokens: list = dataclasses.field(default_factory=list)  # sentences on how the tokens count
    lost: list = dataclasses.field(
        default_factory=list)  # wrong ones without a gradient, though one reaches their modules
    also: list = dataclasses.field(default_factory=list)  # other outputs where backward departs
    # Whether the loss is computed from `module` also with no other between
    is_in_loss: bool = False
    # Calls between the last module and the loss
    behind_modules: list = dataclasses.field(default_factory=list)
    # (output, calls): of which the ranks have shares that are to be added up
    shared: list = dataclasses.field(default_factory=list)
    compared: int = 0  # modules
    # By rank: how many times the single run's its backward is
    factors: dict = dataclasses.field(default_factory=dict)
    are_calls: bool = False  # whether the factors are by micro-batch
    # How many of the last output's rows have a gradient in the single run, and of how many
    counted: tuple = ()
    # Rows, that the losses which do not weigh alike are means over
    means_over: dict = dataclasses.field(default_factory=dict)
    is_cut: bool = False  # whether no gradient reaches `direct`
    direct: list = dataclasses.field(
        default_factory=list
    )  # wrong ones that backward gives another gradient, though it is right in all modules
    # What is odd about the data that the ranks compute with
    data: list = dataclasses.field(default_factory=list)
    parted: int = 0  # among how many the ranks share the data, 0 where they do not or not evenly
    losses: dict = dataclasses.field(default_factory=dict)


class Finder:
    def __init__(self, single, ranks, wrong, factor=None, right=(), scaled=None):
        """`single`, `ranks`: traces; `wrong`: the wrong parameters' names, in model order;
        `factor`: that all of them are wrong by; `right`: names; `scaled`: by name, of the wrong
        ones that are a multiple, of what."""
        self._single, self._ranks, self._wrong = single, ranks, wrong
        self.all = joined(single["outputs"], [trace["outputs"] for trace in ranks])
        self._known = [one for one in self.all if one.pieces]
        self._factors, self._states, self._astray, self._natural = {}, {}, set(), []
        self._graph = Graph(single["outputs"])
        # Of a few parameters a factor says nothing about the loss.
        self.factor = None if any(map(self._graph.owners, right)) else factor
        self._right, self._scaled = right, scaled or {}
        self._data = self._leave_out_other_passes()
        self._at = {one.position: one for one in self._known if one.is_equal}

    def departure(self):
        found = self._forward() or self._backward() or self._after()
        found.compared = len({one.name for one in self._known})
        found.losses = self._losses()
        found.data, found.parted = self._looked_at_data()
        if found.stage == "forward":
            found.data += pieces_in_another_order(self._known)
        self._place_parameters(found)
        found.counted = self._counted()
        if found.stage == "weights":
            found.means_over = self._means_over(found)
        return found

    def _means_over(self, found):
        """By rank, or micro-batch, how many rows have a gradient, where these are what the losses
        are divided by."""
        last = next(one for one in reversed(self._known) if one.position in self._states)
        for count in (_rows_with_a_gradient, torch.count_nonzero):  # losses by token have no rows
            rows = {}
            for piece in last.pieces:
                key = piece.record["call"] if found.are_calls else piece.rank
                rows[key] = rows.get(key, 0) + int(count(piece.place.of(last.truth["gradient"])))
            products = [factor * rows.get(key, 0) for key, factor in found.factors.items()]
            if max(products) - min(products) <= _SAME_COUNT * max(products):
                return rows
        return {}

    def _counted(self):
        gradient = next((one.truth["gradient"] for one in reversed(self._known)
                         if one.truth["gradient"] is not None), None)
        if gradient is None or gradient.dim() < 2:
            return ()
        rows = gradient.flatten(0, -2).any(-1)
        return int(rows.sum()), len(rows)

    # -- forward

    def _forward(self):
        if not self._known:
            return Departure("unknown", how="no module has the same name in both runs")
        first = self._first_that_departs()
        if first is None:
            return None
        ranks = tuple(
            sorted({p.rank for p in first.pieces if p.place is None or p.place.error > first.jump}))
        before = [one for one in self._known if one.is_equal and one.position < first.position]
        producers = [self._at[p] for p in self._graph.producers(first.position, self._at)]
        before = max(producers or before, key=lambda one: one.position, default=None)
        calls = self._between(before, first, ranks[0] if ranks else 0)
        return Departure("forward", first.label, before.label if before else "",
                         _times_the_value(first), ranks, calls)

    def _first_that_departs(self):
        """The first output that differs, and from which only such are computed that do: another way
        to divide the work that ends with the same is none."""
        known = {one.position: one for one in self._known}
        differs = {}  # for good
        for one in reversed(self._known):
            consumers = self._graph.consumers(one.position, known)
            if not self._graph.knows(one.position):
                consumers = [p for p in known if p > one.position][:1]
            ends = not consumers or any(differs.get(p) for p in consumers)
            differs[one.position] = not one.is_equal and ends
        found = next((one for one in self._known if differs[one.position]), None)
        return self._jump_before(found) or found

    def _jump_before(self, found):
        """What departs by less than the tolerance, and far more than what it is computed from:
        before what departs for all to see."""
        known = {one.position: one for one in self._known}
        for one in self._known:
            if found is not None and one.position >= found.position:
                return None
            if not self._graph.knows(one.position) or not one.is_equal or one.error <= one.jump:
                continue
            sources = [known[p] for p in self._graph.producers(one.position, known)]
            is_on_the_way = found is None or self._graph.leads_to(one.position, found.position)
            if sources and is_on_the_way and all(one.error > _JUMP * source.error
                                                 for source in sources):
                return one
        return None

    def _leave_out_other_passes(self):
        """Passes over data that the single run does not have, beside others that it has: they say
        nothing of where forward departs."""
        if not self._known:
            return []
        calls = {}
        for piece in [p for one in self._known if one.name == self._known[0].name
                      for p in one.pieces]:
            calls.setdefault(piece.rank, {}).setdefault(piece.record["call"],
                                                        []).append(piece.place is not None)
        other = {(rank, call) for rank, found in calls.items() for call, right in found.items()
                 if not any(right) and any(map(all, found.values()))}
        if not other or not self._is_covered(
                {one.position: [p for p in one.pieces if p.key not in other] for one in self._known
                 if one.name == self._known[0].name}):
            return []
        for one in self._known:
            one.pieces = [p for p in one.pieces if p.key not in other]
        self._known = [one for one in self._known if one.pieces]
        passes = ", ".join(
            sorted({f"pass {call + 1} of {len(calls[rank])}" for rank, call in other}))
        return [f"{passes}{self._on(sorted({rank for rank, _ in other}))} is over data that the"
                " single run does not have; if it is not to count, its gradients are left over"
                " (zero_grad)"]

    def _on(self, ranks):
        return " on every rank" if len(ranks) == len(self._ranks) else f" on {ranks_text(ranks)}"

    def _is_covered(self, pieces):
        """Whether all of the outputs, by position, are in the pieces."""
        return all(found and all(p.place is not None for p in found)
                   and not bool((_counts(found, self.all[position].truth["value"]) == 0).any())
                   for position, found in pieces.items())

    def _looked_at_data(self):
        """(texts, among how many the ranks share the data, 0 where they do not or not evenly), of
        the first module that they have."""
        first = next((one for one in self._known
                      if one.is_equal and not any(p.group for p in one.pieces)), None)
        if first is None or first.truth["value"].dim() < 1:
            return self._data, 0
        if len([o for o in self._known
                if o.name == first.name and o.truth["index"] == first.truth["index"]]) > 1:
            return self._data, 0
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
            texts.append(f"{first.name}: rows {many} of {len(whole)} are computed more often than"
                         " the others")
        most = int(counts.max())
        shares = all(int(_counts([p for p in first.pieces if p.rank == rank], whole).sum())
                     < whole.numel() for rank in {p.rank for p in first.pieces})
        return texts, len({p.rank for p in first.pieces}) // most if most == int(
            counts.min()) > 0 and (shares or most == 1) else 0

    # -- backward

    def _backward(self):
        search = BackwardSearch(self._known, self._graph, self._wrong,
                                bool(self._looked_at_data()[0]),
                                self._scaled if self.factor is None else {})
        found = search.run()
        self._states, self._astray = search.states, search.astray
        states = [(one, search.states[one.position]) for one in self._known
                  if one.position in search.states]
        if not states:
            return Departure("unknown", how="of no module are gradients known in both runs")
        # Of what runs first
        first = next((state for _, state in states if state.kind == "own"), states[0][1])
        self._factors, self._factors_by_call = by_rank(first), by_call(first)
        sure = [each for each in found if not each.natural]
        self._natural = [each for each in found if each.natural and search.explains_all(each)
                         and self._scaled.keys().isdisjoint(each.explains)]
        if not sure:
            return None
        return self._departed(sure)

    def _departed(self, sure):
        first = sure[0]
        one, after = first.one, first.after
        after, calls = self._behind(one, after,
                                    first.ranks[0] if first.ranks else one.pieces[0].rank,
                                    first.is_missing)
        label = self._innermost(one)
        others = [name for each in sure[1:] if (name := self._innermost(each.one)) != label]
        tokens = tokens_of(one) if after is None and first.how == "has another gradient" else None
        return Departure(
            "backward" if after is not None else "loss", label, after.label if after else "",
            first.how, first.ranks, calls,
            upstream=[n for n in self._wrong if any(n in each.explains for each in sure)],
            also=list(dict.fromkeys(others)), is_in_loss=self._graph.reaches_loss(one.position),
            tokens=sentences(tokens, one.truth["value"].shape) if tokens else [],
            factors=self._weights_behind(one))

    def blame_the_losses(self, found):
        """Backward departs only by what comes from losses that do not weigh alike."""
        found.stage, found.upstream, found.others, found.also = "weights", [], [], []
        found.means_over = self._means_over(found)

    def _innermost(self, one):
        """The name of the module that made what this one may have passed on."""
        value = one.truth["value"]
        made = next(known for known in self._known if known.position <= one.position and
                    known.truth["value"].shape == value.shape and known.truth["value"].equal(value))
        within = {p for p, known in self._at.items() if _is_within(known.name, made.name)}
        inner = [self._at[p].label for p in self._graph.producers(made.position, within)]
        if not inner:
            return made.label
        innermost = [name for name in dict.fromkeys(inner)
                     if not any(_is_within(other, name) for other in inner)]
        return f"{made.label} (made of that of {', '.join(innermost)})"

    def _weights_behind(self, one):
        """The ranks' factors of what is nearest to the loss and right."""
        for position in sorted(self._states, reverse=True):
            state = self._states[position]
            if position != one.position and position not in self._astray and state.kind == "own":
                return by_rank(state)
        return {}

    def _behind(self, one, after, rank, is_cut):
        """(the first output that is computed from this one, and has calls between both; those
        calls). Where the graph `is_cut` the first of all."""
        if after is None:
            return None, self._between(one, None, rank)
        consumers = [self._at[p] for p in self._graph.consumers(one.position, self._at)] or [after]
        for consumer in consumers:
            if (calls := self._between(one, consumer, rank)) or is_cut:
                return consumer, calls
        return consumers[0], []

    def _after(self):
        """All modules are right."""
        rank = 0
        events = self._ranks[rank]["events"]
        ends = [i for i, event in enumerate(events) if event["kind"] == "loss"]
        behind = events[ends[-1] + 1:] if ends else []
        calls = _named([e for e in behind if e["kind"] in ("communication", "function")])
        hooks = _named(
            [e for e in events if e["kind"] == "communication" and e["phase"] == "backward"])
        factors = self._factors
        if self._is_there_from_the_loss(factors):
            last = next(one for one in reversed(self._known) if one.position in self._states)
            how = f"has {next(iter(factors.values())):.4g} times its gradient"
            return Departure("loss", last.label, "", how, (), self._between(last, None, rank),
                             factors=factors)
        if factors and are_alike(factors.values()) and not are_alike(
                self._factors_by_call.values()):
            return Departure("weights", factors=self._factors_by_call, are_calls=True)
        if not factors or are_alike(factors.values()):
            stage = ("factor" if self.factor is not None and factors and self._looked_at_data()[1]
                     else "after")
        else:
            stage = "weights"
        shared = [(each.one.label, each.how, calls_there) for each in self._natural
                  if (calls_there := self._behind(each.one, each.after, rank, False)[1])
                  or each.after is None]
        if shared and stage != "weights":
            stage = "shares"
        arrived = self._single.get("arrived", {}), [r.get("arrived", {}) for r in self._ranks]
        absent = unreached(*arrived, self._wrong)
        direct = absent or wrong_at_once(*arrived, self._wrong, self._right)
        if stage == "after" and direct:
            stage = "parameters"
        known = [one for one in self._known if one.position in self._states]
        return Departure(stage, calls=calls + [c for c in hooks if c not in calls], factors=factors,
                         shared=shared, direct=direct, is_cut=bool(absent),
                         behind_modules=self._between(known[-1], None, rank))

    def _is_there_from_the_loss(self, factors):
        """Whether the factor that all gradients are wrong by is that of the last module's, where
        the ranks do not share the data: what comes after backward has no part in it."""
        if self.factor is None or not factors or self._looked_at_data()[1]:
            return False
        return abs(self.factor - 1) > _SAME and all(abs(f / self.factor - 1) <= _SAME
                                                    for f in factors.values())

    # -- what lies there

    def _between(self, before, after, rank):
        """The calls of one rank between two outputs; of the first one's end or of the beginning, to
        the loss."""
        events = self._ranks[rank]["events"]
        begin = max((p.record["event"] for p in before.pieces if p.rank == rank),
                    default=0) if before else 0
        losses = [i for i, e in enumerate(events) if e["kind"] == "loss" and i >= begin]
        end = losses[0] if losses else len(events)
        if after is not None:
            end = max((p.record["event"] for p in after.pieces if p.rank == rank), default=end)
        return _named([e for e in events[begin:end]
                       if e["phase"] == "forward" and e["kind"] in ("communication", "function")])

    def _losses(self):
        values = [e["value"] for e in self._single["events"] if e["kind"] == "loss"]
        theirs = [[e["value"] for e in trace["events"]
                   if e["kind"] == "loss" and e["value"] is not None] for trace in self._ranks]
        if not values or None in values or not any(theirs):
            return {}
        # Ranks that all compute with all of the data each have the whole loss
        last = next((one for one in reversed(self._known) if one.is_equal), None)
        whole = last is not None and all(
            p.record["value"].shape == last.truth["value"].shape for p in last.pieces)
        return {"single": sum(values), "ranks": [sum(x) for x in theirs], "each": whole}

    # -- parameters

    def _place_parameters(self, found):
        """Those whose gradient goes through there, and those whose module's output has the right
        one all the same."""
        if found.stage in ("forward", "loss"):
            found.upstream = list(self._wrong)
        elif found.stage == "backward":
            for name in self._wrong:
                owners = self._graph.owners(name)
                if name not in found.upstream and owners and all(
                        p in self._states and p not in self._astray for p in owners):
                    found.others.append(name)


def _rows_with_a_gradient(gradient):
    return gradient.flatten(0, -2).any(-1).sum() if gradient.dim() > 1 else gradient.count_nonzero()


def _times_the_value(one):
    """ ", which is 0.25 times what it should be", where it is that on all ranks."""
    factors = [value_factor(p.record["value"], one.truth["value"]) for p in one.pieces]
    if None in factors or not are_alike(factors) or abs(factors[0] - 1) <= _SAME:
        return ""
    return f", which is {factors[0]:.4g} times what it should be"


def _is_within(name, of):
    return name.startswith(of + ".") or of.startswith("(") and not name.startswith("(")


def _counts(pieces, whole):
    """Of each element of the whole, how many of the pieces it is in."""
    return sum(piece.place.mask(whole) for piece in pieces)


def _named(events):
    """ "Gather in model.py:12 (allgather)", each once with how often."""
    places, counts = {}, {}
    for event in events:
        names = places.setdefault(event["place"],
                                  {"function": [], "communication": []})[event["kind"]]
        if event["what"] not in names:
            names.append(event["what"])
        counts[event["place"]] = counts.get(event["place"], 0) + (event["kind"] == "communication")
    texts = []
    for place, names in places.items():
        functions, exchanges = names["function"], names["communication"]
        what = (", ".join(functions or exchanges) + f" in {place}"
                + (f" ({', '.join(exchanges)})" if functions and exchanges else ""))
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
