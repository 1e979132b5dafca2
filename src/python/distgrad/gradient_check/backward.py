"""Measures the backward from rank 0 through a session: its matrix, and whether it is one.

Cotangents that are 1 along one coordinate and 0 elsewhere give the matrix. Random ones show whether
the backward is linear, repeated ones whether it is the same twice and free of what ran before, and
others whether it depends on the cotangent's memory layout. Whatever differs becomes an Oddity, a
finding about how the backward behaves from call to call.
"""

from dataclasses import dataclass, field, replace
from typing import Optional

import torch

from . import waiting
from .executor import Probe
from .session import Broken
from ..words import ranks_text

_ROUNDINGS = 64 * 2.0**-53  # of the largest gradient
# Random cotangents have these sizes, so that what clips, or drops what is small, shows. float16
# holds gradients of them.
_RANDOM = (1.0, 2.0**7, 2.0**-13, 1.0, 1.0)
_OTHER_GRAPHS = {
    "used": "after another forward and backward of the function the backward of the first forward"
    " is wrong: something is kept from call to call",
    "together": "where the function is called twice in one graph the gradients are wrong: the calls"
    " share memory",
}
_OTHER_INPUTS = ("after another forward, at other inputs, the backward of the first forward is"
                 " wrong: something is kept from call to call")
_OVERWRITTEN = ("what autograd saved for the backward is overwritten before it: with copies of it,"
                " as they were when it was saved, the gradient is another one")
_REPEATS = 12  # So often is a backward tried that seems odd, as a race may show seldom.
_LAYOUTS = ("transposed", "sliced", "expanded")


@dataclass
class Oddity:
    """Holds a finding's name and its sentence. rows are the input's coordinates that show it, if
    numbers do. If is_wrong is false it is only a note."""

    name: str
    text: str
    rows: Optional[torch.Tensor] = None
    is_wrong: bool = True
    ranks: Optional[list] = None  # These ranks show it, if that is known without rows.
    details: list = field(default_factory=list)  # Each is a line of text.


class NoBackward(Exception):
    """Says by its oddity how the backward raises or hangs, whatever the cotangents are."""

    def __init__(self, oddity):
        super().__init__(oddity.text)
        self.oddity = oddity


@dataclass
class Sample:
    """Holds a cotangent and the gradient that it gave, in coordinates."""

    cotangent: torch.Tensor
    gradient: torch.Tensor


@dataclass
class Backward:
    """Holds matrix [input coordinate, output coordinate], and in missing each (rank, input) whose
    gradient was None. first is the Sample of the very first backward, if the same cotangent gave
    another gradient later."""

    matrix: torch.Tensor
    missing: set
    is_linear: bool = True
    is_map: bool = True  # The matrix says something of a backward.
    random: list = field(default_factory=list)  # Samples
    oddities: list = field(default_factory=list)
    backwards: int = 0
    graph: str = "kept"
    explanation: str = ""  # If the backward is wrong, this says why.
    first: Optional[Sample] = None


class Measurement:
    """Measures a Backward through a Session. columns counts the output's coordinates; spans are
    slices of the input's coordinates, by tensor; outputs lists (name, slices of coordinates by
    rank) of outputs that take part on all ranks; beside names those whose graph node has other
    outputs, too. frozen lists (input, ranks on which the caller's does not require grad), and
    frozen_outputs names outputs that do not require grad there either. is_one_loss says that all
    ranks have one loss, so that none has other cotangents than the others."""

    def __init__(self, session, columns, spans, outputs, beside, rtol, frozen=(),
                 frozen_outputs=(), is_one_loss=False):
        self._session, self._columns, self._spans, self._outputs = session, columns, spans, outputs
        self._beside, self._rtol = beside, rtol
        self._frozen, self._frozen_outputs = frozen, frozen_outputs
        self._is_one_loss = is_one_loss
        self._oddities, self._count = {}, 0
        self._entered = []  # By backward and rank, {group: how many calls it entered}.
        self._generator = torch.Generator().manual_seed(11)

    def scatter(self, found, share):
        """Returns how far each element of the matrix moves if inputs are moved by roundings of this
        relative size, and all that is computed from them by roundings as well."""
        units = torch.eye(self._columns, dtype=torch.float64)
        apart = torch.zeros_like(found.matrix)
        for nudge in (share, -share):
            values, _ = self._probe([Probe(c, "own", nudge=nudge) for c in units])
            apart = torch.maximum(apart,
                                  (self._session.assemble_gradients(values).T - found.matrix).abs())
        return apart.nan_to_num(posinf=0)

    def run(self, others=True):
        """Returns the Backward; `others` adds other graphs and layouts. Raises NoBackward."""
        try:
            return self._run(others)
        except Broken as broken:
            failures = {rank: f for rank, f in broken.failures.items() if f}
            if self._session.broken_by or not _is_backwards(failures):
                raise
            self._session.note_broken(failures)
            raise NoBackward(_oddity_of(failures, self._session.size, "")) from None

    def _run(self, others):
        zero = torch.zeros(self._columns, dtype=torch.float64)
        random = [size * self._random() for size in _RANDOM]
        units = torch.eye(self._columns, dtype=torch.float64)
        rows, missing, graph, first = self._on_a_graph_that_repeats(
            [random[-1], random[-1], zero, *units, *random])
        begin, constant, rows = rows[0], rows[2].nan_to_num(posinf=0, neginf=0), rows[3:]
        found = Backward((rows[:self._columns] - constant).T, missing, graph=graph)
        found.random = [Sample(c, row - constant) for c, row in zip(random, rows[self._columns:])]
        found.is_linear = all(self._agree(s.gradient, found.matrix @ s.cotangent,
                                          self._room(found.matrix, s.cotangent))
                              for s in found.random)
        if self._lacks_a_wait(found):
            return self._run(others)  # The race would be blamed on something else; it is now gone.
        if found.is_linear or not self._remembers(found):
            if found.is_linear and others:
                if first is None and not self._agree(begin - constant, found.matrix @ random[-1],
                                                     self._room(found.matrix, random[-1])):
                    first = begin  # So was the second.
                if first is not None:
                    found.first = Sample(random[-1], first)
            if bool((constant != 0).any()):
                same = "" if bool(found.matrix.any()) else ", and all others give the same one"
                self._note("other-backward", "cotangents of zero give a gradient that is not zero"
                           + same, rows=constant != 0)
                found.is_map = not same
            if self._is_out_of_step():
                found.is_map = False
            elif others:
                self._look_at_others(found)
        self._look_for_a_race(found)
        found.oddities, found.backwards = list(self._oddities.values()), self._count
        return found

    # -- the same twice

    def _look_for_a_race(self, found):
        """Replaces what was found odd if the same backward, tried more often, is random: then
        nothing is known of its cause."""
        odd = [o for o in self._oddities.values() if o.is_wrong and o.name != "nondeterministic"]
        if not (odd or found.explanation or found.first) or self._session.broken_by:
            return
        values, failures = self._probe([Probe(found.random[0].cotangent, "own")] * _REPEATS,
                                       tolerate=0)
        # The first may differ, where something is kept from the backward before.
        rows = [] if failures else self._session.assemble_gradients(values)[1:]
        room = self._rtol * _largest(rows) if len(rows) else 0
        other = next((row for row in rows if not self._agree(rows[0], row, room)), None)
        if other is not None:
            self._oddities = {key: o for key, o in self._oddities.items() if o not in odd}
            found.explanation, found.first = "", None
            self._note("nondeterministic", "the same backward gave different gradients",
                       rows=_apart(rows[0], other))

    def _on_a_graph_that_repeats(self, cotangents):
        """Returns rows, missing gradients, the kind of graph, and the row of the first backward if
        later ones differ. The first two cotangents are equal; if they give different gradients over
        one graph, each cotangent gets a graph of its own."""
        # The first is a plan by itself, or a collective that only some ranks enter in it would meet
        # those of the next backward.
        first, _ = self._probe([Probe(cotangents[0])])
        values, failures = self._probe([Probe(c) for c in cotangents[1:]], tolerate=0)
        if failures and (min(f.index for f in failures.values()) > 0
                         or len(failures) < self._session.size):
            raise self._session.broken(failures)
        values = first + values
        kept = self._session.assemble_gradients(values)
        if not failures and self._agree(kept[0], kept[1], self._rtol * _largest(kept[0])):
            return kept, _missing(values), "kept", None
        values, _ = self._probe([Probe(c, "own") for c in cotangents])
        rows = self._session.assemble_gradients(values)
        if not self._agree(rows[0], rows[1], self._rtol * _largest(rows[0])):
            return rows, _missing(values), "own", None
        if not self._agree(kept[0], rows[0], self._rtol * _largest(rows[0])):
            return rows, _missing(values), "own", kept[0]
        why = ("raises: " + next(iter(failures.values())).text if failures
               else "gives another gradient")
        self._note("stale-or-aliased",
                   f"a second backward over the same graph (retain_graph=True) {why}", False)
        return rows, _missing(values), "own", None

    def _lacks_a_wait(self, found):
        """Makes all ranks wait from now on for asynchronous calls that some rank does not wait for.
        Returns whether that changes the gradient."""
        calls = "; ".join(self._session.unwaited())
        if not calls:
            return False
        probe = Probe(self._random(), "own")
        values, _ = self._probe([probe])
        self._session.wait_for_calls()
        again, _ = self._probe([probe])
        before, after = (self._session.assemble_gradients(v)[0] for v in (values, again))
        is_wrong = not self._agree(before, after, self._room(found.matrix, probe.coefficients))
        more = "; waiting for it gives another gradient" if is_wrong else ""
        self._note("nondeterministic", calls + more, is_wrong,
                   rows=_apart(before, after) if is_wrong else None)
        return is_wrong

    def _remembers(self, found):
        """Returns whether the backward, which is not linear, is random or depends on what ran
        before."""
        first, second = found.random[-1].cotangent, found.random[0].cotangent
        order = [first, second, first, first, second, first]
        values, _ = self._probe([Probe(c, found.graph) for c in order])
        rows = self._session.assemble_gradients(values)
        room = self._rtol * _largest(rows)
        if not all(self._agree(rows[i], rows[i + 3], room) for i in (1, 2)):
            self._note("nondeterministic", "the same backward gave different gradients",
                       rows=_apart(rows[1], rows[4]))
            return True
        if not self._agree(rows[2], rows[3], room):
            self._note("stale-or-aliased",
                       "the gradient depends on the backward that ran before: something is kept"
                       " from call to call", rows=_apart(rows[2], rows[3]))
            return True
        return False

    # -- other graphs, outputs, layouts

    def _look_at_others(self, found):
        """Probes absent cotangents, then graphs, outputs and layouts in one plan, then frozen
        inputs. Layouts are last in the plan, as they may raise and leave ranks out of step."""
        self._look_at_absent_ones(found)
        if self._session.broken_by:
            return
        probes = [self._graph_probes(found), self._output_probes(found), self._layout_probes(found)]
        rows, raised = self._tolerant([probe for part in probes for probe in part])
        first = rows[0] if probes[0] else None
        for part, look in zip(probes,
                              (self._look_at_graphs, self._look_at_outputs, self._look_at_layouts)):
            look(found, part, rows[:len(part)])
            rows = rows[len(part):]
        if first is not None:
            self._look_at_other_inputs(found, probes[0][0], first)
        for text in dict.fromkeys(failure.text for _, failure in raised):
            layouts = ", ".join(_laid(probe) for probe, failure in raised if failure.text == text)
            self._note("contiguity", "backward raises where the cotangent is not contiguous"
                       f" ({layouts}): {text.removesuffix(', but at')}")
        self._look_at_frozen_ones(found)

    def _graph_probes(self, found):
        # A graph of its own for each backward is what DistributedDataParallel uses as well.
        if found.graph == "own":
            return []
        cotangent = self._random()
        kinds = ["own", *_OTHER_GRAPHS, "saved"]
        return [Probe(cotangent, found.graph),
                Probe(cotangent.flip(0), found.graph)] + [Probe(cotangent, k) for k in kinds]

    def _look_at_graphs(self, found, probes, rows):
        room = sum(self._room(found.matrix, probe.coefficients) for probe in probes[:2])
        for probe, row in zip(probes[2:], rows[2:]):
            like = rows[0] + rows[1] if probe.graph == "together" else rows[0]
            if probe.graph == "saved":
                # This alone is no mistake: a buffer may be saved first and filled on purpose later.
                if not self._agree(row, like, room):
                    found.explanation = _OVERWRITTEN
            elif not self._agree(row, like, room):
                how = _OTHER_GRAPHS.get(probe.graph,
                                        "over a graph of its own backward gives another gradient"
                                        " than over one that is used again")
                self._note("stale-or-aliased", how, rows=_apart(row, like))

    def _look_at_other_inputs(self, found, probe, row):
        """Compares the row with that of a graph between whose forward and backward there is a
        forward at other inputs. It is a plan of its own, as the function may not take them."""
        if self._session.broken_by:
            return
        values, failures, _ = self._session.probe([replace(probe, graph="elsewhere")], 0)
        failures = {rank: f for rank, f in failures.items() if f}
        self._session.note_if_broken(failures)
        if values and not failures:
            found_row = self._session.assemble_gradients(values)[0]
            if not self._agree(found_row, row, 2 * self._room(found.matrix, probe.coefficients)):
                self._note("stale-or-aliased", _OTHER_INPUTS, rows=_apart(found_row, row))

    def _output_probes(self, found):
        """Returns probes in which one output has a part in the loss; the others' cotangents are
        undefined, not zeros."""
        probes = []
        for name, slices in self._outputs if len(self._outputs) > 1 and found.is_linear else ():
            only = torch.zeros(self._columns, dtype=torch.float64)
            for s in slices:
                only[s] = self._random()[s]
            probes.append(Probe(only, found.graph, output=name,
                                doing=f"backward from {name} alone"))
        return probes

    def _look_at_absent_ones(self, found):
        """Leaves out the cotangent of one of a node's outputs on one rank. The node still runs
        there, as it has other cotangents, but may skip a collective. That leaves ranks out of step,
        so each probe is a plan of its own."""
        for i, (name, slices) in enumerate(self._outputs if found.is_linear else ()):
            rank = i % self._session.size
            if name in self._beside and self._session.size > 1 and not self._is_one_loss:
                cotangent, where = self._random(), f"where {name} has no part in rank {rank}'s loss"
                cotangent[slices[rank]] = 0
                probe = Probe(cotangent, found.graph, absent=name, only=rank,
                              doing=f"backward {where}")
                self._hold_alone(found, probe, where)

    def _look_at_frozen_ones(self, found):
        """Probes the inputs as given. Other probes let an input that requires grad on one rank do
        so on all."""
        if not self._frozen or self._session.broken_by:
            return
        where = " and ".join(f"{x} does not require grad on {ranks_text(ranks)}"
                             for x, ranks in self._frozen)
        probe = Probe(self._random(), "own", as_given=True, doing=f"backward where {where}")
        self._hold_alone(found, probe, f"where {where}")

    def _hold_alone(self, found, probe, where):
        if self._session.broken_by:
            return
        values, failures = self._probe([probe], tolerate=0)
        if failures:
            self._note_broken(failures, probe, where)
            return
        self._hold_to_matrix(found, probe, self._session.assemble_gradients(values)[0], where)

    def _reason(self, probe):
        if probe.absent:
            return f"the cotangent of {probe.absent} is None on rank {probe.only}"
        if not probe.as_given:
            return ""
        without = ", ".join(self._frozen_outputs)
        return (f"{without} does not require grad there either, so that no backward of it runs"
                if without else "needs_input_grad is False there")

    def _note_broken(self, failures, probe, where):
        """Notes an oddity for a probe in which some ranks raised or wait for ever."""
        if not _is_backwards(failures):
            raise self._session.broken(failures)
        self._session.note_broken(failures)
        oddity = _oddity_of(failures, self._session.size, where, self._reason(probe), probe)
        self._oddities.setdefault((oddity.name, oddity.text), oddity)

    def _look_at_outputs(self, found, probes, rows):
        for probe, row in zip(probes, rows):
            self._hold_to_matrix(found, probe, row,
                                 f"where {probe.output} alone has a part in the loss")

    def _hold_to_matrix(self, found, probe, row, where):
        right = found.matrix @ probe.coefficients
        if not self._agree(row, right, self._room(found.matrix, probe.coefficients)):
            self._note("other-backward", f"{where} the gradient is another one",
                       rows=_apart(row, right))

    def _layout_probes(self, found):
        cotangent = self._random()
        probes = [Probe(cotangent, found.graph), Probe(cotangent, found.graph, constant=True)]
        for i, layout in enumerate(_LAYOUTS):
            alone = self._session.size > 1 and not self._is_one_loss
            for only in (None, i % self._session.size) if alone else (None,):
                probes.append(Probe(cotangent, found.graph, layout, only, layout == "expanded",
                                    doing=f"backward with {layout} cotangents"))
        return probes

    def _look_at_layouts(self, found, probes, rows):
        room, other, apart = self._room(found.matrix, probes[0].coefficients), [], None
        for probe, row in zip(probes[2:], rows[2:]):
            like = rows[1] if probe.constant else rows[0]
            if row is not None and not self._agree(row, like, room + self._rtol * _largest(like)):
                other.append(_laid(probe))
                apart = _apart(row, like) if apart is None else apart | _apart(row, like)
        if other:
            self._note("contiguity",
                       "the gradient is another one where the cotangent is not contiguous:"
                       f" {', '.join(other)}", rows=apart)

    def _tolerant(self, probes):
        """Returns rows, with None for probes that raised, and (probe, Failure) for each of these.
        Stops at a probe that leaves ranks out of step."""
        rows, raised = [], []
        while len(rows) < len(probes):
            if probes[len(rows)].layout in {p.layout for p, _ in raised}:
                rows.append(None)  # This layout raised on all ranks; on one, the others would wait.
                continue
            values, failures = self._probe(probes[len(rows):], tolerate=0)
            rows += self._session.assemble_gradients(values) if values else []
            if not failures:
                continue
            causes = [failure for failure in failures.values() if not failure.is_echo]
            probe = probes[len(rows)]
            if len(causes) < self._session.size or not probe.layout:
                self._note_broken(failures, probe, _condition(probe))
                return rows + [None] * (len(probes) - len(rows)), raised
            raised.append((probe, causes[0]))
            rows.append(None)
            if self._session.last_unwaited():  # The next probe would get this one's messages.
                self._session.note_broken(failures)
                return rows + [None] * (len(probes) - len(rows)), raised
        return rows, raised

    # -- probes

    def _probe(self, probes, tolerate=None):
        """Returns values by probe and rank of probes that were done everywhere, and failures, which
        are tolerated from probe number `tolerate` on."""
        values, failures, later = self._session.probe(probes, tolerate)
        failures = {rank: f for rank, f in failures.items() if f}
        self._count += len(values)
        self._entered += [[seen["entered"] for seen in by_rank]
                          for probe, by_rank in zip(probes, values)
                          if probe.graph in ("kept", "own") and not probe.layout]
        for by_rank in values:
            for seen in by_rank:
                if seen["written"]:
                    self._note("stale-or-aliased", "backward writes to the cotangent that it is"
                               " given")
                for name in seen["inputs"]:
                    self._note("writes", f"the function writes to its input {name}", False)
        if later > 0:
            self._note("stale-or-aliased",
                       "the gradient changed after backward had returned: its memory is used again,"
                       " or a collective was not waited for")
        return values, failures

    def _is_out_of_step(self):
        """Notes that ranks enter different numbers of one group's calls in one backward and not in
        another, if they do. Numbers that are the same in all backwards may be those of messages."""
        for group in {name for by_rank in self._entered for counts in by_rank for name in counts}:
            seen = list(dict.fromkeys(tuple(counts.get(group) for counts in by_rank)
                                      for by_rank in self._entered))
            uneven = [counts for counts in seen if len({*counts} - {None}) > 1]
            if len(seen) < 2 or not uneven:
                continue
            told = ", ".join(
                f"{n} on {ranks_text([r for r, count in enumerate(uneven[0]) if count == n])}"
                for n in sorted({*uneven[0]} - {None}, reverse=True))
            self._note("other-backward", "how many collectives a rank enters depends on its"
                       f" cotangent: in one backward {told}. Those that enter more wait for ever,"
                       " or meet others in a later backward")
            return True
        return False

    def _random(self):
        """Returns numbers of both signs with full mantissas, none near 0."""
        sign = 2.0 * torch.randint(0, 2, (self._columns,), generator=self._generator) - 1
        return sign * (torch.rand(self._columns, generator=self._generator,
                                  dtype=torch.float64) * 3 + 0.5)

    def _room(self, matrix, cotangent):
        """Returns how far rounding may move a gradient, relative to the largest in its tensor. One
        that is 0 on paper, of a bias before a norm, has the rounding of others."""
        size = matrix.abs().nan_to_num(posinf=0) @ cotangent.abs()
        least = _ROUNDINGS * size.max() if len(size) else 0.0
        for span in self._spans:
            if span.stop > span.start:
                size[span] = size[span].max()
        return (self._rtol * size).clamp(min=least)

    @staticmethod
    def _agree(a, b, room):
        return bool((((a - b).abs() <= room) | (a == b) | (a.isnan() & b.isnan())).all())

    def _note(self, name, text, is_wrong=True, rows=None):
        self._oddities.setdefault((name, text), Oddity(name, text, rows, is_wrong))


def _condition(probe):
    if probe.layout:
        return f"where the cotangent is {_laid(probe)}"
    if probe.output:
        return f"where {probe.output} alone has a part in the loss"
    return {"own": "over a graph of its own", "used": "after another forward and backward",
            "together": "where the function is called twice in one graph"}.get(probe.graph, "")


def _is_backwards(failures):
    """Returns whether the backward caused these failures: it raised, or ranks never meet in it."""
    causes = [f for f in failures.values() if not f.is_echo]
    told = causes or [f for f in failures.values() if f.states]
    return bool(told) and all(f.is_mistake and f.doing.startswith("backward") for f in told)


def _oddity_of(failures, size, where, reason="", probe=None):
    """Returns an Oddity of these failures. `where` tells how the probe differs from others."""
    causes = {rank: f for rank, f in failures.items() if not f.is_echo}
    states = next((f.states for f in failures.values() if f.states), None)
    ranks = sorted(causes or failures)
    comma = f"{where} " if where else ""
    if causes:
        first = causes[ranks[0]]
        on = "on every rank" if len(ranks) == size else f"on {ranks_text(ranks)}"
        text = f"{comma}the backward raises {on}: {first.text}"
        details = first.traceback.rstrip().split("\n") if first.traceback else [first.where]
    else:
        text = f"{comma}the backward hangs: {waiting.text_of(states)}"
        details = [f"rank {rank} waits at {s.where}" for rank, s in sorted(states.items())
                   if s.waits() and s.where]
    name = "contiguity" if probe and probe.layout else "other-backward"
    return Oddity(name, text + (f" ({reason})" if reason else ""), ranks=ranks, details=details)


def _missing(values):
    return {(seen["rank"], name) for by_rank in values for seen in by_rank
            for name in seen["missing"]}


def _laid(probe):
    return probe.layout + (f" on rank {probe.only} alone" if probe.only is not None else "")


def _apart(a, b):
    return (a != b) & ~(a.isnan() & b.isnan())


def _largest(x):
    return x.abs().nan_to_num(posinf=0).max() if x.numel() else 0.0
