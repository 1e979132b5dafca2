"""Where the ranks' run leaves the single run's: in forward, in the loss, in backward, or behind
it."""

import torch

from .arrivals import unreached, wrong_at_once
from .backward_search import SAME_FACTOR, BackwardSearch, are_alike, by_call, by_rank
from .calls import between, named
from .cotangents import sentences, tokens_of
from .data import covers, leave_out_other_passes, looked_at, texts_on
from .departure import Departure
from .forward_search import ForwardSearch
from .graph import Graph
from .joined import joined
from .orders import names_of, pieces_in_another_order

_IN_FORWARD = ("forward", "cut", "loss", "backward", "shares", "frozen")  # what their text is on
_SAME_COUNT = 0.02  # of numbers of rows, that a bfloat16 can show


class Finder:
    def __init__(self, single, ranks, wrong, factor=None, right=(), scaled=None, off=None):
        """`single`, `ranks`: traces; `wrong`: the wrong parameters' names, in model order;
        `factor`: that all of them are wrong by; `right`: names; `scaled`: by name, of the wrong
        ones that are a multiple, of what; `off`: where all are wrong by little, by how much of
        their norm at most."""
        self._single, self._ranks, self._wrong = single, ranks, wrong
        self.all = joined(single["outputs"], [trace["outputs"] for trace in ranks])
        self._known = [one for one in self.all if one.pieces]
        self._factors, self._states, self._astray, self._natural = {}, {}, set(), []
        self._graph = Graph(single["outputs"])
        # Of a few parameters a factor says nothing about the loss.
        self.factor = None if any(map(self._graph.owners, right)) else factor
        self._right, self._scaled, self._off = right, scaled or {}, off
        self._known, self._data = leave_out_other_passes(self._known, self.all, len(ranks))
        self._at = {one.position: one for one in self._known if one.is_equal}
        self._forwards = ForwardSearch(self._known, self._graph)

    def departure(self):
        found = (self._forward() or self._frozen() or self._backward()
                 or self._changed_since(self._after()))
        names = {one.name for one in self._known}
        unsure = self._not_right(with_backward=found.stage not in _IN_FORWARD)
        found.compared = len(names)
        found.right = len(names - {one.name for one in unsure})
        if found.stage == "backward":
            unsure = self._not_right(with_backward=True)
        if found.before in {one.label for one in unsure}:
            found.before = ""
        if found.stage != "forward":
            found.silent = [one.label for one in self._known if self._forwards.is_silent(one)]
        found.losses = self._losses()
        found.data = self._looked_at_data()[0] or next(
            (texts for one in self._known if one.is_equal and not _is_sum(one)
             and (texts := texts_on(one, len(self._ranks)))), [])
        if found.stage == "forward" and ", of which the ranks hold" not in found.how:
            found.data = found.data + [f"of {names_of(ones)} {text}"
                                       for text, ones in pieces_in_another_order(self._known)]
        self._place_parameters(found)
        if found.stage == "weights":
            found.means_over = self._means_over(found)
        return found

    def _not_right(self, with_backward):
        """The outputs that the ranks are not known to have all of, or whose gradient is not known
        to be right."""
        known = {id(one) for one in self._known}
        return [one for one in self.all
                if id(one) not in known or not one.is_equal
                or not covers(one.pieces, one.truth["value"])
                or with_backward and not self._has_right_gradient(one)]

    def _has_right_gradient(self, one):
        state = self._states.get(one.position)
        if state is None:  # of what needs no gradient there is nothing to be right
            return one.truth["gradient"] is None and all(p.gradient is None for p in one.pieces)
        return state.kind in ("own", "shares")

    def _means_over(self, found):
        """By rank, or micro-batch, how many rows have a gradient, where these are what the losses
        are divided by."""
        last = next(one for one in reversed(self._known) if one.position in self._states)
        for count in (_rows_with_a_gradient, torch.count_nonzero):  # losses by token have no rows
            rows = {}
            for piece in last.pieces:
                key = piece.record["call"] if found.are_calls else piece.rank
                rows[key] = rows.get(key, 0) + int(count(piece.place.of(last.truth["gradient"])))
            if not found.factors.keys() <= rows.keys():  # of a pipeline's first stage
                return {}
            products = [factor * rows[key] for key, factor in found.factors.items()]
            if min(products) and max(products) - min(products) <= _SAME_COUNT * max(products):
                return rows
        return {}

    # -- forward

    def _forward(self):
        if not self._known:
            return Departure("unknown", how="no module of the same name gave a tensor of"
                             " floating-point numbers in both runs")
        found = self._forwards.run()
        return self._departs_at(*found) if found else None

    def _departs_at(self, begin, how):
        ranks = tuple(sorted({p.rank for p in begin.pieces
                              if p.place is None or p.place.error > begin.jump}))
        before = [one for one in self._known if one.is_equal and one.position < begin.position]
        producers = [self._at[p] for p in self._graph.producers(begin.position, self._at)]
        before = max(producers or before, key=lambda one: one.position, default=None)
        rank = ranks[0] if ranks else 0
        calls = self._between(before, begin, rank)
        since, since_calls = self._since(producers, begin, rank) if not calls else ("", [])
        return Departure("forward", begin.label, before.label if before else "", how, ranks, calls,
                         since=since, since_calls=since_calls)

    def _since(self, producers, begin, rank):
        """(the latest of the producers that the rank has, since which something communicates; what
        does)"""
        for one in reversed(producers):
            has = any(piece.rank == rank for piece in one.pieces)
            if has and (calls := self._between(one, begin, rank)):
                return one.label, calls
        return "", []

    def _frozen(self):
        """Where all that is wrong is parameters that require no gradient on some rank."""
        everywhere = set(self._single.get("frozen", ()))
        frozen = [set(trace.get("frozen", ())) - everywhere for trace in self._ranks]
        ranks = [rank for rank, names in enumerate(frozen) if names.intersection(self._wrong)]
        names = set().union(*(frozen[rank] for rank in ranks))
        if not ranks or not names.issuperset(self._wrong):
            return None
        return Departure("frozen", ranks=tuple(ranks), direct=list(self._wrong))

    def _changed_since(self, after):
        """Instead of `after`, where gradients are wrong by little: where forward is, too."""
        if after.stage != "after" or self._off is None or self._looked_at_data()[0]:
            return after
        found = self._forwards.changed_since(self._off)
        return self._departs_at(*found) if found else after

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
            return Departure("unknown", how="the gradient of no module's output can be"
                             " compared")
        # Of what runs first
        first = next((state for _, state in states if state.kind == "own"), states[0][1])
        self._factors, self._factors_by_call = by_rank(first), by_call(first)
        sure = [each for each in found if not each.natural]
        natural = [each for each in found if each.natural]
        self._natural = [each for each in natural if search.explains_all(each)
                         and self._scaled.keys().isdisjoint(each.explains)]
        if not sure:
            return None
        departed = self._departed(sure)
        if departed.stage == "backward" and (share := self._unsummed(sure[0], natural)):
            self._begin_at(share, departed, sure[0])
        return departed

    def _unsummed(self, first, natural):
        """The output of which the ranks have shares of the gradient that are not added up before
        `first`, from which it is computed; None where they may be added up."""
        if self._states[first.one.position].kind != "wrong":
            return None
        consumers = self._graph.consumers(first.one.position, self._at)
        for each in natural:
            position = each.one.position
            if position in consumers and self._states[position].kind == "shares" and (
                    self._are_left_so(each.one) or not self._calls_before(each, first)):
                return each
        return None

    def _are_left_so(self, one):
        """Whether its module has parameters, and all of them are wrong in the end."""
        def own(names):
            return [name for name in names if name.rpartition(".")[0] == one.name]

        return bool(own(self._wrong)) and not own(self._right)

    def _calls_before(self, each, first):
        return self._between(first.one, each.one, each.one.pieces[0].rank)

    def _begin_at(self, share, departed, first):
        departed.unsummed_before = departed.module
        departed.module, departed.how, departed.ranks = self._innermost(share.one), share.how, ()
        departed.before = share.after.label if share.after else ""
        departed.calls = self._calls_before(share, first)
        departed.is_in_loss = self._graph.reaches_loss(share.one.position)
        departed.upstream = [name for name in self._wrong
                             if name in departed.upstream or name in share.explains]

    def _departed(self, sure):
        first = sure[0]
        one, after = first.one, first.after
        if first.is_missing and (cut := self._cut_at(one)):
            before = self._before(cut)
            return Departure("cut", cut.label, before.label if before else "", _calls_of(cut),
                             first.ranks,
                             calls=self._between(before, cut, first.ranks[0]),
                             upstream=list(first.explains))
        after, calls = self._behind(one, after,
                                    first.ranks[0] if first.ranks else one.pieces[0].rank,
                                    first.is_missing)
        label = self._innermost(one)
        others = [name for each in sure[1:] if (name := self._innermost(each.one)) != label]
        tokens = tokens_of(one) if after is None and first.how == "has another gradient" else None
        return Departure(
            "backward" if after is not None else "loss", label, after.label if after else "",
            first.how + self._other_backwards(one), first.ranks, calls,
            upstream=[n for n in self._wrong if any(n in each.explains for each in sure)],
            also=list(dict.fromkeys(others)), is_in_loss=self._graph.reaches_loss(one.position),
            tokens=sentences(tokens, one.truth["value"].shape) if tokens else [],
            factors=self._weights_behind(one))

    def _other_backwards(self, one):
        """In words, where other backwards reach the output than in the single run."""
        text = self._of_backwards(one.truth.get("backwards"),
                                  [piece.record.get("backwards") for piece in one.pieces])
        return f" ({text})" if text else ""

    def _other_backwards_of(self, names):
        """Likewise, where that is so of all of these parameters."""
        said = {self._of_backwards(self._single.get("arrived_in", {}).get(name),
                                   [trace.get("arrived_in", {}).get(name) for trace in self._ranks])
                for name in names}
        return said.pop() if len(said) == 1 else ""

    def _of_backwards(self, truth, theirs):
        count = self._single.get("backwards", 0)
        if count < 2 or any(trace.get("backwards") != count for trace in self._ranks):
            return ""
        if None in (truth, *theirs) or any(x != theirs[0] for x in theirs) or theirs[0] == truth:
            return ""
        mine, others = (", ".join(map(str, numbers)) or "none" for numbers in (truth, theirs[0]))
        return f"of {count} backwards {others} reach it, in the single run {mine}"

    def _cut_at(self, one):
        """The first output before this one that needs no gradient on a rank, where this one needs
        none either."""
        if not _needs_none(one):
            return None
        found = one
        while sources := [self._at[p] for p in self._graph.producers(found.position, self._at)
                          if _needs_none(self._at[p])]:
            found = sources[0]
        return found

    def _before(self, one):
        sources = [self._at[p] for p in self._graph.producers(one.position, self._at)]
        return max(sources, key=lambda source: source.position, default=None)

    def blame_the_losses(self, found):
        """Backward departs only by what comes from losses that do not weigh alike."""
        found.stage, found.upstream, found.others, found.also = "weights", [], [], []
        found.unsummed = []
        found.means_over = self._means_over(found)

    def _innermost(self, one):
        """The name of the module that made what this one may have passed on."""
        value = one.truth["value"]
        made = next(known for known in self._known if known.position <= one.position and
                    known.truth["value"].shape == value.shape and known.truth["value"].equal(value)
                    and self._graph.leads_to(known.position, one.position))
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
        calls = next(filter(None, map(_behind_backward, self._ranks)), [])
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
        arrived = self._arrived()
        watched = {name for trace in self._ranks for kind in ("parameters", "frozen")
                   for name in trace.get(kind, ())}
        absent = unreached(*arrived, watched, self._wrong)
        direct = absent or (not self._looked_at_data()[0]
                            and wrong_at_once(*arrived, self._wrong, self._right)) or []
        if stage == "after" and direct:
            stage = "parameters"
        known = [one for one in self._known if one.position in self._states]
        return Departure(stage, calls=calls, factors=factors,
                         shared=shared, direct=direct, is_cut=bool(absent),
                         how=self._other_backwards_of(direct) if stage == "parameters" else "",
                         behind_modules=self._between(known[-1], None, rank))

    def _arrived(self):
        """What backward gave to the parameters: (in the single run, on the ranks)."""
        return self._single.get("arrived", {}), [r.get("arrived", {}) for r in self._ranks]

    def _is_there_from_the_loss(self, factors):
        """Whether the factor that all gradients are wrong by is that of the last module's, where
        the ranks do not share the data: what comes after backward has no part in it."""
        if self.factor is None or not factors or self._looked_at_data()[1]:
            return False
        return abs(self.factor - 1) > SAME_FACTOR and all(
            abs(f / self.factor - 1) <= SAME_FACTOR for f in factors.values())

    def _looked_at_data(self):
        texts, parts = looked_at(self._known, len(self._ranks))
        return [*self._data, *texts], parts

    def _between(self, before, after, rank):
        return between(self._ranks[rank]["events"], before, after, rank)

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
            unsure = {one.position for one in self._not_right(with_backward=True)}
            for name in self._wrong:
                owners = self._graph.owners(name)
                if name not in found.upstream and owners and not unsure.intersection(
                        owners) and self._astray.isdisjoint(owners):
                    found.others.append(name)
            found.direct = wrong_at_once(*self._arrived(), found.others, self._right)
            others = [name for name in found.others if name not in found.direct]
            found.unsummed = [name for name in others
                              if name not in self._scaled and self._is_share(name)]
            found.others = [name for name in others if name not in found.unsummed]

    def _is_share(self, parameter):
        """Whether the ranks have shares of the gradient of its module's output."""
        return any(self._states[p].kind == "shares" for p in self._graph.owners(parameter))


def _behind_backward(trace):
    """The calls of a rank after its last backward began, then those in a backward before."""
    events = trace["events"]
    ends = [i for i, event in enumerate(events) if event["kind"] == "loss"]
    behind = events[ends[-1] + 1:] if ends else []
    calls = named([e for e in behind if e["kind"] in ("communication", "function")])
    hooks = named([e for e in events if e["kind"] == "communication" and e["phase"] == "backward"])
    return calls + [call for call in hooks if call not in calls]


def _is_sum(one):
    return any(piece.group for piece in one.pieces)


def _rows_with_a_gradient(gradient):
    return gradient.flatten(0, -2).any(-1).sum() if gradient.dim() > 1 else gradient.count_nonzero()


def _needs_none(one):
    return one.truth.get("needs_gradient", True) and any(
        not piece.record.get("needs_gradient", True) for piece in one.pieces)


def _calls_of(one):
    """ ", call 3 there": of the ranks' calls of a module that is called more often than once."""
    calls = {p.record["call"] for p in one.pieces if not p.record.get("needs_gradient", True)}
    several = len({p.record["call"] for p in one.pieces}) > 1
    return f", call {min(calls) + 1} there," if len(calls) == 1 and several else ""


def _is_within(name, of):
    return name.startswith(of + ".") or of.startswith("(") and not name.startswith("(")
