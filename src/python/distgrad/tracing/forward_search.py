"""Where in forward the ranks' outputs leave the single run's."""

import itertools

from .backward_search import SAME_FACTOR, are_alike
from .joined import backward_of, value_factor
from .orders import pieces_in_another_order

_JUMP = 8  # times the error of what it is computed from


class ForwardSearch:
    def __init__(self, known, graph):
        """`known`: what both runs have, in order."""
        self._known, self._graph = known, graph

    def run(self):
        """(the first output that departs, how); None where none does."""
        first = self._first_that_departs()
        if first is None:
            return None
        return self._odd_before(first) or (first, _times_the_value(first))

    def is_silent(self, one):
        """Whether it differs, and needs no gradient: what is computed from it is not known."""
        return not one.is_equal and self._graph.is_constant(one.position)

    def changed_since(self, off):
        """(the first call that is off far more than the calls of its module before, by how much),
        as where a step between them went too far; None where all outputs are off by less than
        `off` tells of."""
        if off > _JUMP * max(
                (one.error for one in self._known if one.is_equal), default=0):
            return None
        calls = {}
        for one in self._known:
            before = calls.setdefault((one.name, one.truth["index"]), [])
            if one.is_equal and before and one.error > max(one.jump / 4, _JUMP * max(before)):
                return one, f", by {one.error:.2g} of its norm"
            before.append(one.error)
        return None

    def _odd_before(self, first):
        """(the first output from which the one that departs is computed, and of which the ranks
        hold other pieces than of the rest; how)"""
        odd = [(one, text) for text, ones in pieces_in_another_order(self._known) for one in ones
               if one.position < first.position
               and self._graph.leads_to(one.position, first.position)]
        if not odd:
            return None
        begin, text = min(odd, key=lambda pair: pair[0].position)
        return begin, (f", of which {text}; the first output that is no piece of the single run's"
                       f" is that of {first.label}")

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
            differs[one.position] = not one.is_equal and ends or self._departs_with(one)
        found = next((one for one in self._known if differs[one.position]), None)
        return self._jump_before(found) or found

    def _departs_with(self, one):
        """Whether, where this one differs, the loss of the outputs behind it departs: as it may be
        computed from what needs no gradient."""
        if not self.is_silent(one):
            return False
        behind = itertools.takewhile(lambda o: o.is_equal and self._graph.knows(o.position),
                                     (o for o in self._known if o.position > one.position))
        states = [state for o in behind if (state := backward_of(o)).kind != "unknown"]
        ranks = {piece.rank for piece in one.pieces if piece.place is None}
        return bool(states) and states[-1].kind == "wrong" and ranks.issubset(states[-1].ranks)

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


def _times_the_value(one):
    """ ", which is 0.25 times what it should be", where it is that on all ranks."""
    factors = [value_factor(p.record["value"], one.truth["value"]) for p in one.pieces]
    if None in factors or not are_alike(factors) or abs(factors[0] - 1) <= SAME_FACTOR:
        return ""
    return f", which is {factors[0]:.4g} times what it should be"
