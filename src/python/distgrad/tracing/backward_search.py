"""Where in backward the ranks' gradients leave the single run's: from the loss to the first module,
along what is computed from what."""

import dataclasses

from .joined import Joined, backward_of

SAME_FACTOR = 0.05  # factors that are as near to each other are one


@dataclasses.dataclass
class Astray:
    """An output whose gradient is wrong while those of what is computed from it are right.
    `natural`: it may be meant, as where each rank computes with other parts of what all hold, and
    after backward the shares are added up."""

    one: Joined
    how: str
    ranks: tuple
    after: "Joined | None"  # what is computed from it; None: the loss
    is_missing: bool = False
    natural: bool = False
    explains: list = dataclasses.field(default_factory=list)  # wrong parameters


class BackwardSearch:
    def __init__(self, known, graph, wrong, is_data_odd=False, scaled=None):
        """`known`: what both runs have, in order; `wrong`: parameters' names; `is_data_odd`:
        whether some of the data is computed by no rank, or more often than the rest; `scaled`:
        factors of the wrong parameters that are multiples, by name."""
        self._known, self._graph, self._wrong, self._is_data_odd = known, graph, wrong, is_data_odd
        self._scaled = scaled or {}
        self._at = {one.position: one for one in known if one.is_equal}
        self.states = {}  # by position, of the gradients that are known
        self.astray = set()  # positions whose gradient is wrong, or made of wrong ones

    def run(self):
        """[Astray] that wrong parameters' gradients go through, those that are nearest to the loss
        first."""
        # right: of what is astray, the nearest behind it that is not
        found, previous, right = [], None, {}
        known = {one.position: one for one in self._known}
        for one in [known[p] for p in self._graph.backwards() if p in known]:
            state = backward_of(one)
            if state.kind == "unknown":
                continue
            self.states[one.position] = state
            followers = self._followers(one, previous)
            references = {r.position: r for f in followers for r in right.get(f.position, [f])}
            how, ranks, natural = self._difference(one, state, list(references.values()))
            previous = one
            if not how:
                continue
            if natural or not any(f.position in self.astray for f in followers):
                found.append(Astray(one, how, ranks, followers[0] if followers else None,
                                    state.kind == "missing", natural))
            if not natural:
                self.astray.add(one.position)
                right[one.position] = list(references.values())
        for each in found:
            each.explains = [name for name in self._wrong if self._goes_through(name, each)]
        return [each for each in found
                if each.explains or not any(map(self._graph.owners, self._wrong))]

    def explains_all(self, each):
        return len(each.explains) == len(self._wrong)

    def _followers(self, one, previous):
        if not self._graph.knows(one.position):
            return [previous] if previous else []
        return [self._at[p] for p in self._graph.consumers(
            one.position, [p for p in self.states if p in self._at and p != one.position])]

    def _goes_through(self, name, each):
        owners = self._graph.owners(name)
        if not owners:
            return each.is_missing and "." not in name  # of the whole model, whose outputs are many
        for position in owners:
            is_wrong = each.natural or position in self.astray or position not in self.states
            if is_wrong and self._graph.leads_to(position, each.one.position):
                return True
        return False

    def _difference(self, one, state, followers):
        """(in words what is wrong with these gradients, the ranks, whether it may be meant):
        against those of what is computed from it."""
        if state.kind == "missing":
            return "has no gradient", state.ranks, False
        if state.kind == "wrong":
            if self._is_data_odd and followers and all(_holders(one) > _holders(f)
                                                       for f in followers):
                # Of what all data shares the ranks' parts cannot add up to what is right
                return "", (), False
            return "has another gradient", state.ranks, False
        references = [(f, self.states[f.position]) for f in followers]
        if state.kind == "shares":
            if any(reference.kind == "shares" for _, reference in references):
                return "", (), False
            natural = not references or any(_holders(one) > _holders(f) for f, _ in references)
            return "has a share of its gradient on each rank, whose sum is right", (), natural
        found = ("", (), False)
        for follower, reference in references:
            if reference.kind != "own":
                return "", (), False
            how, ranks = _ratio_text(by_rank(state), by_rank(reference))
            if not how:
                return "", (), False
            is_meant = abs(_total(one, state) / _total(follower, reference) - 1) <= SAME_FACTOR
            found = (how, ranks, is_meant and not self._is_left_so(one, state, reference))
        return found

    def _is_left_so(self, one, state, reference):
        """Whether its module's parameters are wrong in the end by the factor that this output's
        gradient gets here: nobody meant to divide by it afterwards."""
        ratio = _mean(by_rank(state)) / _mean(by_rank(reference))
        own = [
            factor for name, factor in self._scaled.items()
            if name.rpartition(".")[0] == one.name
        ]
        return bool(own) and all(abs(factor / ratio - 1) <= SAME_FACTOR for factor in own)


def _holders(one):
    """How many ranks hold a part of it."""
    parts = {}
    for piece in one.pieces:
        parts.setdefault(piece.place.key, set()).add(piece.rank)
    return sum(map(len, parts.values())) / len(parts)


def _total(one, state):
    """Of a part, what all ranks that hold it have together."""
    parts = {}
    for piece in one.pieces:
        if piece.key in state.factors:
            entry = parts.setdefault(piece.place.key, {})
            entry.setdefault(piece.rank, state.factors[piece.key])
    return sum(sum(entry.values()) for entry in parts.values()) / len(parts)


def _ratio_text(now, then):
    ratios = {rank: now[rank] / then[rank] for rank in now if rank in then}
    if not ratios and are_alike(now.values()) and are_alike(then.values()):  # stages of a pipeline
        ratio = next(iter(now.values())) / next(iter(then.values()))
        ratios = dict.fromkeys(now, ratio)
    far = {rank: ratio for rank, ratio in ratios.items() if abs(ratio - 1) > SAME_FACTOR}
    if not far:
        return "", ()
    values = list(far.values())
    alike = len(far) == len(ratios) and are_alike(values)
    many = f"{values[0]:.4g}" if alike else ", ".join(f"{v:.4g}" for v in values)
    return f"has {many} times the gradient that it should have by what comes behind it", (
    ) if alike else tuple(far)


def _mean(factors):
    return sum(factors.values()) / len(factors)


def are_alike(values):
    return max(values) - min(values) <= SAME_FACTOR * max(map(abs, values))


def by_rank(state):
    """The mean of a rank's factors; of shares there is one for all."""
    return _means(state, lambda key: key[0] if state.kind == "own" else -1)


def by_call(state):
    """The mean of a micro-batch's factors."""
    return _means(state, lambda key: key[1] if state.kind == "own" else -1)


def _means(state, name):
    found = {}
    for key, factor in state.factors.items() if state else ():
        found.setdefault(name(key), []).append(factor)
    return {key: sum(factors) / len(factors) for key, factors in found.items()}
