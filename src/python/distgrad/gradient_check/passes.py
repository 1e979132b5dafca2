"""Decides what is tried, in which order and dtypes, and with how many directions."""

import math
from dataclasses import dataclass
from itertools import product
from typing import Optional

import torch

from ..words import capitalized, ranks_text
from . import backward, forward, nearby_slopes
from .conventions import Convention
from .coordinates import Coordinates, Tensor
from .judging import Judgement, list_of
from .report import Finding, GradcheckReport
from .subject import is_part

# Rounding may move a gradient by so many eps of the largest, by the bytes of an element.
_ULPS = {8: 4096, 4: 512, 2: 8, 1: 1}
_MOST_ELEMENTS = 256  # At most so many inputs, and outputs, of all ranks are tried one by one.
_MOST_SECONDS = 30.0  # The first run's time must promise that this takes no longer.
_BY_TENSOR = 4  # Each tensor has so many random directions if a mistake must be found.
_OF_ELEMENTS = ("precision", "other-backward")  # A poor derivative causes these findings.
# Outputs that were rounded to this dtype are noisier than this part of its eps.
_NOISE_OF = {torch.bfloat16: 5, torch.float16: 256, torch.float32: 256}
_NARROW = 1e-12  # The eps of float64 is less, that of other dtypes is more.
_ALIKE = 1e-6  # Copies may differ by this part of a tensor's norm.
_MOST_NAMED = 4  # elements
_MOSTLY = 0.5  # If more than this part of the gradients is not judged, there is no verdict.
_BLIND = 0.2  # Differences must not be off by more than this part of the largest derivative.


class CannotCheck(Exception):
    """Says why there is nothing to check."""


class _NoFunction(Exception):
    """Says why the forward is no function of its inputs, which has a derivative to compare with."""


@dataclass
class Options:
    """Holds a check's options. Without a basis of all elements (None: if they are few) there are
    `directions` random ones. is_plain allows only cotangents of a training step, so that the group
    stays usable. detached names lines of detached constants (True: everywhere)."""

    rtol: Optional[float] = None
    basis: Optional[bool] = None
    directions: int = 16
    float64: bool = True
    detached: "tuple | bool" = ()
    objective: Optional[str] = None  # It is one of conventions.OBJECTIVES.
    copies: Optional[tuple] = None  # These inputs are copies (None: those equal on all ranks).
    is_plain: bool = False


class Check:
    def __init__(self, session, options):
        self._session, self._options = session, options
        self.notes, self._shown = [], []
        self._frozen_outputs = []  # With the inputs as given, these have no graph on some rank.
        self._without_grad = {}  # output -> ranks, not all, on which it does not require grad
        # _held is the derivative with detached values as constants, _places {line: what it does}.
        self._held, self._places = None, {}
        self._races = []  # Findings on the forward
        # Findings on the backward are kept: once a call is waited for, later passes have no race.
        self._backward_races = []
        self._casts = []  # If casts are left out, the function casts to these dtypes.
        self._is_blind = False  # It is true if casts could not be left out.

    def run(self):
        started, _ = self._session.run("start")
        self._inputs = [result.values[0] for result in started]
        unknown = set.intersection(*(set(result.values[2]) for result in started))
        if unknown:
            raise CannotCheck(f"constant: there is no input {', '.join(sorted(unknown))}")
        if not any(self._inputs):
            raise CannotCheck("no input requires grad on any rank")
        if not any(torch.Size(i["shape"]).numel() for inputs in self._inputs for i in inputs):
            raise CannotCheck("no input that requires grad has an element on any rank")
        found = [result.values[1] for result in started]
        self._frozen = self._frozen_somewhere([result.values[3] for result in started])
        if self._frozen:
            thawed, _ = self._session.run("thaw", [name for name, _ in self._frozen])
            before, found = found, [result.values[0] for result in thawed]
            self._frozen_outputs = _newly_attached(before, found)
        found = self._without_races(found)
        first = self._outputs_of(found)
        wide, of_wide = self._first_in_wider()
        self._outputs = self._judged(of_wide or first)
        self._convention = self._agreed()
        self._dtypes = {wide: self._dtypes_of(of_wide or first), None: self._dtypes_of(first)}
        if not any(self._outputs):
            raise CannotCheck("the function returns no floating-point tensor on any rank")
        if not any(t.size() for outputs in self._outputs for t in outputs):
            raise CannotCheck("the function returns no tensor with an element on any rank")
        try:
            report = self._report(self._passes(wide))
            outside = set().union(*(result["outside"] for result in found))
            return _undecided_beside(outside, report) if outside else report
        except backward.NoBackward as raised:
            return self._without_backward(raised.oddity)
        except _NoFunction as why:
            finding = Finding("nondeterministic", f"{why}; nothing was judged")
            return GradcheckReport("undecided", self._session.size, findings=[finding],
                                   notes=self.notes)

    # -- the first runs

    def _without_races(self, found):
        """Returns what the first run gives. If it does not wait in time for asynchronous calls, it
        runs again with them waited for, and a difference is noted."""
        calls = "; ".join(self._session.unwaited())
        if not calls:
            return found
        again = self._session.wait_for_calls()
        apart = [rank for rank, runs in enumerate(zip(found, again))
                 if not all(_are_alike([o["digest"] for o in outputs])
                            for outputs in zip(*(run["outputs"] for run in runs)))]
        if apart:
            self._races = [Finding("nondeterministic",
                                   f"{calls}; waiting for it gives another result", ranks=apart)]
        else:
            self._note(f"{capitalized(calls)}.")
        return again

    def _frozen_somewhere(self, by_rank):
        """Returns [(input, ranks on which it does not require grad)] for inputs that require grad
        on other ranks."""
        moved = {i["name"] for inputs in self._inputs for i in inputs}
        names = [name for name in dict.fromkeys(n for on_rank in by_rank for n in on_rank)
                 if name in moved]
        return [(name, [r for r, on_rank in enumerate(by_rank) if name in on_rank])
                for name in names]

    def _outputs_of(self, found):
        """Returns the outputs by rank from what the first run in a dtype gave."""
        self._seconds = min(on_rank["seconds"] for on_rank in found)
        for name in dict.fromkeys(name for on_rank in found for name in on_rank["written"]):
            self._note(f"The function writes to its input {name}.")
        if any(on_rank["closed_over"] for on_rank in found):
            self._note("The function uses tensors that require grad and are no inputs: their"
                       " gradients were not checked.")
        return [on_rank["outputs"] for on_rank in found]

    def _first_in_wider(self):
        """Returns a dtype wider than some input's, float64 if possible, and the outputs in it, or
        (None, None) if the function takes none. One that takes no float64 may take float32."""
        narrowest = min(i["dtype"].itemsize for inputs in self._inputs for i in inputs)
        for dtype in (torch.float64, torch.float32) if self._options.float64 else ():
            if dtype.itemsize <= narrowest:
                break
            results, failures = self._session.run("use", dtype, tolerate=0)
            if not failures:
                return dtype, self._outputs_of([result.values[0] for result in results])
            causes = [failure for failure in failures.values() if not failure.is_echo]
            if len(causes) < self._session.size:
                raise self._session.broken(failures)
            self._note(f"The function does not take {str(dtype)[6:]}: {causes[0].text}")
            self._session.run("use", None)
        return None, None

    def _judged(self, by_rank):
        """Returns the judged outputs by rank, as Tensors: those that require grad on some rank, or
        all if none does."""
        self._first_outputs = by_rank
        names = list(dict.fromkeys(o["name"] for outputs in by_rank for o in outputs))
        judged = {o["name"] for outputs in by_rank for o in outputs if o["requires_grad"]
                 } or set(names)
        lists = list_of(names, len(by_rank))
        judged |= {name for members in lists.values() if judged & set(members) for name in members}
        for name in names:
            without = [r for r, outputs in enumerate(by_rank) for o in outputs
                       if o["name"] == name and not o["requires_grad"]]
            if without:
                if name in judged and len(without) < len(by_rank):
                    self._without_grad[name] = without
                so = "" if name in judged else ": it was not checked"
                self._note(f"{name} does not require grad on {ranks_text(without)}{so}.")
        self._note_structures(by_rank)
        self._differentiable = [name for name in names if name in judged and all(
            any(o["name"] == name and o["requires_grad"] for o in outputs) for outputs in by_rank)]
        self._beside = {name for name in self._differentiable if all(
            o["has_beside"] for outputs in by_rank for o in outputs if o["name"] == name)}
        return [[Tensor(o["name"], o["shape"]) for o in outputs if o["name"] in judged]
                for outputs in by_rank]

    def _dtypes_of(self, by_rank):
        """Returns the dtypes of the judged outputs, given what the ranks returned."""
        judged = {t.name for outputs in self._outputs for t in outputs}
        return [o["dtype"] for outputs in by_rank for o in outputs if o["name"] in judged]

    def _note_structures(self, by_rank):
        kinds = {}
        for rank, outputs in enumerate(by_rank):
            kinds.setdefault(tuple(o["name"] for o in outputs), []).append(rank)
        if len(kinds) > 1:
            structures = [f"{ranks_text(ranks)}: {', '.join(names) or 'no tensor'}"
                          for names, ranks in kinds.items()]
            self._note(f"The ranks return different structures: {'; '.join(structures)}.")

    def _agreed(self):
        """Returns the Convention that the caller asks for, or None."""
        options = self._options
        if options.objective is None and options.copies is None:
            return None
        digests = [{i["name"]: i["digest"] for i in on_rank} for on_rank in self._inputs]
        equal = [name for name in digests[0] if _are_alike([d.get(name) for d in digests])]
        known = dict.fromkeys(name for on_rank in digests for name in on_rank)
        copies = [name for name in known if options.copies is not None
                  and any(is_part(name, whole) for whole in options.copies)]
        for whole in options.copies or ():
            if not any(is_part(name, whole) for name in known):
                raise CannotCheck(f"copies: there is no input {whole} that requires grad")
        unlike = [name for name in copies if name not in equal]
        if unlike:
            are = "is" if len(unlike) == 1 else "are"
            raise CannotCheck(f"copies: {', '.join(unlike)} {are} not equal on all ranks")
        is_assumed = options.copies is None
        doubtful = [x for x in equal if is_assumed and not any(digests[0][x][1])
                    and any(name not in equal for name in _beside(x, known))]
        found = Convention(options.objective or "sum", tuple(equal if is_assumed else copies),
                           is_assumed and bool(equal), tuple(self._alike()), tuple(doubtful))
        self._show(found.text())
        return found

    def _unlike(self):
        """Returns the names of outputs that are not equal on all ranks."""
        known = {o["name"] for on_rank in self._first_outputs for o in on_rank}
        return known - set(self._alike())

    def _alike(self):
        """Returns the names of outputs that are equal on all ranks."""
        digests = [{o["name"]: o["digest"] for o in on_rank} for on_rank in self._first_outputs]
        return [name for name in digests[0] if _are_alike([d.get(name) for d in digests])]

    # -- passes

    def _passes(self, wide):
        notes, shown = list(self.notes), list(self._shown)
        judgements = self._judgements(wide)
        dtypes = {i["dtype"] for on_rank in self._inputs for i in on_rank}
        is_wide = wide == torch.float64 or dtypes == {torch.float64}
        is_known = not any(j.findings or j.is_coarse() for j in judgements)
        if not is_wide or self._session.broken_by or is_known:
            return judgements
        # A value that is cast to a narrower dtype changes in steps: differences fail there.
        if wide:
            self._session.run("use", wide)
        dtypes, places, is_possible = self._session.casts_left_out()
        if not places:
            return judgements
        told = f"The function casts to {', '.join(places[:_MOST_NAMED])}"
        if not is_possible and not any(j.findings for j in judgements):
            return judgements
        if not is_possible:
            self._note(f"{told}, and does not run without that: its derivative is not known well"
                       " enough to judge.")
            self._is_blind = True
            for judgement in judgements:
                judgement.findings = [f for f in judgement.findings if f.name not in _OF_ELEMENTS]
            return judgements
        for judgement in judgements:
            self._keep_races(judgement)
        self._casts, self.notes, self._shown = dtypes, notes, shown
        self._note(f"{told}: its derivative is that without these casts, and the backward was held"
                   " to their dtype.")
        self._held, self._places = None, {}
        return self._judgements(wide)

    def _judgements(self, wide):
        # A direction of all ranks' tensors together does not tell which rank a gradient is from.
        large = "blocks" if self._convention else "whole"
        kind = "elements" if self._is_small() else large
        judgements, derivative = [], None
        for dtype in (wide, None) if wide else (None,):
            if judgements:
                self._session.run("use", None)
            judgement, derivative = self._pass(kind, dtype, derivative, is_first=not judgements)
            if kind == "whole" and judgement.findings and not self._session.broken_by:
                kind = "blocks"
                self._keep_races(judgement)
                judgement, derivative = self._pass(kind, dtype, None)
            judgements.append(judgement)
            if self._session.broken_by:
                break
        return judgements

    def _keep_races(self, judgement):
        self._backward_races += [f for f in judgement.findings if f.name == "nondeterministic"]

    def _is_small(self):
        if self._options.basis is not None:
            return self._options.basis
        inputs = sum(torch.Size(i["shape"]).numel() for on_rank in self._inputs for i in on_rank)
        outputs = sum(t.size() for on_rank in self._outputs for t in on_rank)
        quick = (8 * inputs + 2 * outputs) * self._seconds <= _MOST_SECONDS
        return max(inputs, outputs) <= _MOST_ELEMENTS and quick and all(
            i["values"] is not None for on_rank in self._inputs for i in on_rank)

    def _pass(self, kind, dtype, derivative, is_first=True):
        """Returns (Judgement, Derivative) in one dtype; the derivative is a wider dtype's if one is
        given."""
        inputs, outputs, sizes = self._coordinates(kind)
        self._session.use_coordinates(inputs, outputs)
        dtypes = [i["dtype"] for on_rank in self._inputs for i in on_rank
                 ] if dtype is None else [dtype]
        eps = max(torch.finfo(d).eps for d in dtypes)
        returned = self._dtypes[dtype]
        is_cast = dtype is not None and not self._casts  # and no cast is left out
        computed = max([eps] + [torch.finfo(d).eps for d in returned if is_cast])
        forwards = forward.Measurement(self._session.move, sizes, _spans(outputs),
                                       _same_elements(inputs), _same_elements(outputs),
                                       _of_ranks(inputs), self._ties(inputs), computed)
        is_new = derivative is None
        derivative = self._derivative(forwards) if is_new else derivative
        if not derivative.repeats:
            raise _NoFunction("two runs of the forward at the same inputs differ")
        if is_new and forwards.keeps_something():
            raise _NoFunction("the forward gives something else after runs at other inputs: it"
                              " keeps something from call to call")
        used = self._computed_in(dtypes, returned, derivative)
        measurement, measured, rtol = self._measured(used, is_first)
        name = str(dtype or max(dtypes, key=lambda d: torch.finfo(d).eps))[6:]

        def is_narrow():
            return max(torch.finfo(d).eps for d in used) > _NARROW and self._options.rtol is None

        def judge(scatter=None, of=None, **more):
            return Judgement(inputs, outputs, of or derivative, measured, rtol, self._values(),
                             name, scatter, not is_new, convention=self._convention,
                             unlike=self._unlike(), is_narrow=is_narrow(), **more).run()

        judgement, scatter = judge(), None
        stirred = (forwards.stirred(derivative, measured.matrix)
                   if is_new and judgement.is_of_maps and not self._options.detached
                   and not self._session.broken_by else None)
        if stirred:
            derivative = stirred
            judgement = judge()
        given = self._as_given(judgement.roundings)
        if given and not self._session.broken_by:
            used += given
            measurement, measured, rtol = self._measured(used, is_first)
            judgement = judge()
        if judgement.findings and is_narrow() and not self._session.broken_by:
            # A badly conditioned gradient is off by more than any fixed tolerance, so it is held to
            # what roundings move it by.
            scatter = measurement.scatter(measured, max(torch.finfo(d).eps for d in used))
            judgement = judge(scatter)
            share = _share(scatter, measured.matrix)
            much = f"up to {share:.1%}" if share >= 1e-3 else "less than 0.1%"
            self._note(f"In {name} roundings on the way move gradients by {much} of the largest:"
                       " the backward was held to a few times that." if share < 1 else
                       f"In {name} roundings on the way are more than what is left of gradients.")
        if judgement.is_of_maps and kind != "whole" and not self._session.broken_by:
            if is_new:
                self._hold(forwards)
            if self._held:
                judgement = self._by_both(judgement, lambda **more: judge(scatter, **more))
        self._show_measured(kind, judgement, inputs, outputs, derivative, measured)
        return judgement, derivative

    # -- what is detached

    def _derivative(self, forwards):
        """Measures the derivative, with declared detached values as constants."""
        declared = self._options.detached
        if not declared:
            return forwards.run()
        found, places = self._session.with_detached_held(
            forwards.run, None if declared is True else tuple(declared))
        unknown = [] if declared is True else [line for line in declared if line not in places]
        if unknown:
            _, known = self._session.with_detached_held(lambda: None)
            raise CannotCheck(f"detached: the function detaches nothing at {', '.join(unknown)}"
                              + (f"; it does at {', '.join(known)}" if known else ""))
        if not places:
            self._note("The function detaches nothing.")
            return forwards.run()
        if found is None:
            raise CannotCheck(f"detached: what is detached at {', '.join(places)} is written to, or"
                              " is not the same in each call: it cannot be held as a constant")
        return found

    def _hold(self, forwards):
        found, places = (None, {}) if self._options.detached is True else \
            self._session.with_detached_held(forwards.run)
        if found and found.repeats:
            self._held = found
            self._places = self._session.those_that_matter(places)

    def _by_both(self, whole, judge):
        """Returns the Judgement of what is wrong whether detached values are constants or not. What
        is right only if they are constants becomes a dispute."""
        held = judge(of=self._held, accused=whole.wrong)
        whole = judge(derivative_name="D", accused=None)
        disputes = whole.disputed_by(held)
        lines = ", ".join(self._places)
        if not disputes:
            chosen = whole if _is_unnamed(held) and not _is_unnamed(whole) else held
            self._note(f"What is detached at {lines} was taken for a constant: the findings are"
                       " what is wrong besides." if chosen is held else
                       f"It is wrong as well with what is detached at {lines} as a constant.")
            return chosen
        held.disputes = _told(disputes, held.legends)
        if held.excused:
            self._note(f"With all of that as constants {', '.join(held.excused)} would be wrong,"
                       " which is right as the derivative of the whole function.")
        return held

    def _measured(self, used, is_first):
        """Returns (Measurement, Backward, rtol), rtol being for the roundings of these dtypes."""
        rtol = self._options.rtol
        if rtol is None:
            rtol = max(_ULPS[d.itemsize] * torch.finfo(d).eps for d in used)
        inputs, outputs = self._session.inputs, self._session.outputs
        names = [(name, [outputs.ranges[r, name] for r in range(self._session.size)])
                 for name in self._differentiable]
        measurement = backward.Measurement(self._session, outputs.size, _spans(inputs), names,
                                           self._beside, rtol, self._frozen, self._frozen_outputs,
                                           self._options.objective == "replicated")
        return measurement, measurement.run(is_first and not self._options.is_plain), rtol

    def _computed_in(self, dtypes, returned, derivative):
        """Returns the dtypes whose roundings the backward may have: the inputs', those that the
        forward computes in, and the outputs', which the cotangents have as well."""
        inside = [d for d, parts in _NOISE_OF.items()
                  if derivative.noise > torch.finfo(d).eps / parts][:1]
        widest = max((torch.finfo(d).eps for d in dtypes))
        for how, found in (("computes in about", inside), ("returns", returned)):
            most = max(found, key=lambda d: torch.finfo(d).eps, default=None)
            if most and torch.finfo(most).eps > widest:
                self._note(f"The forward {how} {str(most)[6:]}: the backward was held to that.")
        return [*dtypes, *inside, *returned, *self._casts]

    def _as_given(self, roundings):
        """Returns those dtypes of the backward's roundings that are no narrower than the caller's
        inputs, as such roundings lose no digits that there were."""
        given = max(torch.finfo(i["dtype"]).eps for on_rank in self._inputs for i in on_rank)
        found = [d for d in roundings if torch.finfo(d).eps <= given]
        if not found or self._options.rtol is not None:
            return []
        for dtype in found:
            self._note(f"The backward computes in about {str(dtype)[6:]}, and the inputs have no"
                       " more digits: it was held to that.")
        return found

    def _coordinates(self, kind):
        count = {"elements": 0, "blocks": _BY_TENSOR, "whole": self._options.directions}[kind]
        scales = {}
        for on_rank in self._inputs:
            for i in on_rank:
                scales[i["name"]] = max(scales.get(i["name"], 0.0), i["size"])
        tensors = [[Tensor(i["name"], i["shape"], scales[i["name"]] or 1.0) for i in on_rank]
                   for on_rank in self._inputs]
        inputs, outputs = Coordinates(kind, tensors, count), Coordinates(kind, self._outputs, count)
        return inputs, outputs, self._sizes(kind, inputs)

    def _sizes(self, kind, inputs):
        """Returns each input coordinate's size: the larger of the element's and its tensor's, or 1
        if both are 0. Sizes are powers of two, so that moves are not rounded."""
        if kind != "elements":
            return torch.ones(inputs.size, dtype=torch.float64)
        sizes = [i["values"].abs().clamp_min(i["size"]) for on_rank in self._inputs
                 for i in on_rank]
        flat = torch.cat(sizes) if sizes else torch.zeros(0, dtype=torch.float64)
        return torch.where(flat.isfinite() & (flat > 0), flat,
                           torch.ones_like(flat)).log2().ceil().exp2()

    def _ties(self, inputs):
        """Returns Ties of elements that are equally large: a max, for example, may change from one
        to the other."""
        alike, values = {}, self._values()
        names = list(dict.fromkeys(name for _, name in inputs.ranges))
        most = max((len(t.shape) for tensors in inputs.tensors for t in tensors), default=0)
        for rank, tensors in enumerate(inputs.tensors):
            for t in tensors:
                if inputs.kind != "elements" or (rank, t.name) not in values:
                    continue
                span, found = inputs.ranges[rank, t.name], values[rank, t.name].tolist()
                indices = product(*map(range, t.shape))
                for c, value, index in zip(range(span.start, span.stop), found, indices):
                    place = [names.index(t.name), rank, *index, *[0] * (most - len(index))]
                    alike.setdefault(abs(value), []).append((c, -1.0 if value < 0 else 1.0, place))
        return [nearby_slopes.Tie(list(columns), torch.tensor(signs, dtype=torch.float64),
                           torch.tensor(places))
                for columns, signs, places in (zip(*found) for found in alike.values()
                                               if len(found) > 1)]

    def _values(self):
        return {(rank, i["name"]): i["values"] for rank, on_rank in enumerate(self._inputs)
                for i in on_rank if i["values"] is not None}

    # -- what is reported

    def _without_backward(self, oddity):
        """Returns the report on a backward that never gave a gradient."""
        without = {name: sorted(ranks) for name, ranks in self._without_grad.items()}
        text = oddity.text
        for name, ranks in without.items():
            text += (f"; {name} does not require grad on {ranks_text(ranks)}, so that no backward"
                     " of it runs there")
        finding = Finding(oddity.name, text, ranks=oddity.ranks, details=oddity.details)
        return GradcheckReport("wrong", self._session.size, findings=[finding], notes=self.notes)

    def _show_measured(self, kind, judgement, inputs, outputs, derivative, measured):
        cotangents = {"elements": f"a basis of {outputs.size} cotangents",
                      "whole": f"{outputs.size} random cotangents",
                      "blocks": f"{_BY_TENSOR} random cotangents of each output of each rank"}[kind]
        linear = "linear" if judgement.is_linear else "not linear"
        graphs = ", each over a graph of its own" if measured.graph == "own" else ""
        self._show(f"backward in {judgement.dtype}: {cotangents}; {linear} in"
                   f" {len(measured.random)} random combinations ({measured.backwards}"
                   f" backwards{graphs})")
        along = {"elements": f"each of {inputs.size} elements",
                 "whole": f"{inputs.size} random directions",
                 "blocks": f"{_BY_TENSOR} random directions of each input of each rank"}[kind]
        exact = "affine, so exact" if not derivative.noise else "affine within its roundings"
        way = "not found" if bool(derivative.open.all()) else exact if bool(
            derivative.affine.all()) else \
            f"central differences, off by at most {_relative_error(derivative):.0e} of the largest"
        self._show(f"forward: the derivative along {along}; {way} ({derivative.evaluations} runs)")

    def _add_claim(self, report, judgement):
        if report.verdict == "right":
            every = judgement.kind == "elements" and not bool(judgement.derivative.open.any())
            has_kinks = bool(judgement.derivative.kinks().any())
            but = ", but for what kinks leave open" if has_kinks else ""
            self._show("so at these inputs it is right for every cotangent, if it is as linear for"
                       f" all{but}" if every else
                       "so at these inputs it is right for these cotangents, and along these"
                       " directions")

    def _report(self, judgements):
        findings, derivative = list(self._races), judgements[0].derivative
        for found in [*(judgement.findings for judgement in judgements), self._backward_races]:
            # A formula in a narrow dtype is known less well, so it is not another finding.
            known = {(f.name, *f.inputs, *f.outputs, f.text) for f in findings}
            findings += [f for f in found if (f.name, *f.inputs, *f.outputs, f.text) not in known]
        for note in [note for judgement in judgements for note in judgement.notes]:
            self._note(note)
        first = judgements[0]
        disputes = next((j.disputes for j in judgements if j.disputes), [])
        report = GradcheckReport(
            "wrong" if findings else "disputed" if disputes else "right", self._session.size,
            dtypes=[j.dtype for j in judgements], findings=findings,
            right_for=first.right_for if len(findings) - len(self._races) == first.paired else [])
        if not findings:
            report.formulas, report.legends = first.formulas, first.legends
        if disputes:
            report.disputes, report.detached = disputes, self._places
        self._add_open(report, derivative, first.gradient)
        self._add_doubted(report, judgements)
        self._add_claim(report, first)
        report.notes, report.shown = self.notes, self._shown
        if len(judgements) == 1 or len({f.dtype for f in findings}) <= 1 and judgements[0].findings:
            for f in findings:
                f.dtype = ""
        return report

    def _add_open(self, report, derivative, gradient):
        """Adds notes on what could not be judged, and takes back the verdict if that is much."""
        kinks, jumps = int(derivative.kinks().sum()), _mask(derivative.jumps, derivative.open)
        hidden = _mask(derivative.hidden, derivative.open)
        unknown = float((derivative.open & ~jumps & ~hidden).double().mean())
        if kinks:
            self._note(f"Along {kinks} of {derivative.matrix.shape[1]} directions the function has"
                       " a kink at these inputs, or a tie: there any gradient between the slopes"
                       " beside them counts as right.")
        if unknown:
            self._note(f"{unknown:.0%} of the derivatives could not be found by differences (a"
                       " jump, or noise): not judged.")
        if bool(jumps.any()):
            self._note(f"The function jumps at these inputs{self._moving(jumps.any(0))}, where it"
                       " has no derivative: not judged. Take inputs at which it does not.")
        if bool(hidden.any()):
            self._note("What the function computes inside has kinks or ties that meet at these"
                       f" inputs{self._moving(hidden.any(0))}, where the gradients of its parts"
                       " need not add up to its derivative: not judged. Take inputs at which they"
                       " do not meet.")
        is_open = self._is_blind or bool((jumps | hidden).any())
        if report.verdict in ("right", "disputed") and is_open:
            report.verdict, report.formulas = "undecided", {}
        # If most of the gradient is not judged, the rest says nothing about it.
        weight = torch.where(derivative.open & ~jumps & ~hidden, gradient.T.abs(), 0.0)
        unseen = float(weight.sum()) > _MOSTLY * float(gradient.abs().sum())
        if report.verdict in ("right", "disputed") and (unknown == 1 or unseen
                                          or _relative_error(derivative) > _BLIND):
            report.verdict = "undecided"
            report.formulas = {}
            infinite = dict.fromkeys(o["name"] for on_rank in self._first_outputs for o in on_rank
                                     if not math.isfinite(o["digest"][1][0]))
            self._note(f"{', '.join(infinite)} has elements that are not finite: the derivative is"
                       " not known." if infinite else
                       "The forward is too noisy, jumps, or is as good as constant here: its"
                       " derivative is not known well enough to judge.")

    def _add_doubted(self, report, judgements):
        """Adds a note on inputs that may be copies or pieces, and takes back the verdict."""
        names = sorted(set().union(*(judgement.doubted for judgement in judgements)))
        if not names:
            return
        listed, are = ", ".join(names), "are" if len(names) > 1 else "is"
        self._note(f"{listed} {are} 0 on all ranks, beside inputs that differ: not judged. The"
                   " gradient is right if each rank holds a piece of a tensor, and wrong if each"
                   " holds a copy of one. Say which are copies: copies=(...), on the command line"
                   " --copies.")
        if report.verdict in ("right", "disputed"):
            report.verdict, report.formulas = "undecided", {}

    def _moving(self, columns):
        """Returns text that names the elements of these coordinates, and their ranks."""
        if self._session.inputs.kind != "elements":
            return ""
        ranks_of = {}
        for (rank, name), span in self._session.inputs.ranges.items():
            shape = next(t.shape for t in self._session.inputs.tensors[rank] if t.name == name)
            for i, index in enumerate(product(*map(range, shape))):
                if bool(columns[span.start + i]):
                    ranks_of.setdefault(f"{name}{list(index) if shape else ''}", []).append(rank)
        elements_of = {}
        for element, ranks in ranks_of.items():
            elements_of.setdefault(tuple(ranks), []).append(element)
        told = [f"{', '.join(some[:_MOST_NAMED])}{', ...' * (len(some) > _MOST_NAMED)} on"
                f" {ranks_text(ranks)}" for ranks, some in elements_of.items()]
        return f" in {'; '.join(told)}"

    def _note(self, text):
        if text not in self.notes:
            self.notes.append(text)

    def _show(self, text):
        if text not in self._shown:
            self._shown.append(text)


def _are_alike(digests):
    """Returns whether these digests are of equal tensors, but for rounding."""
    if None in digests or len({shape for shape, *_ in digests}) != 1:
        return False
    first = digests[0][1]
    return all(abs(a - b) <= _ALIKE * first[0] for _, numbers in digests
               for a, b in zip(numbers, first))


def _beside(x, names):
    """Returns the other names under the nearest dot that x shares with any."""
    root = x
    while root:
        root = root.rpartition(".")[0]
        found = [name for name in names if name != x and name.startswith(root and f"{root}.")]
        if found:
            return found
    return []


def _undecided_beside(outside, report):
    """Takes back a verdict of wrong, as these ranks, outside of the group, changed what was
    measured."""
    if report.verdict != "wrong":
        return report
    note = (f"The function also communicates with {ranks_text(sorted(outside))}, outside of"
            " `group`, and what these try at the same time may change its result: leave `group`"
            " out.")
    return GradcheckReport("undecided", report.ranks, notes=[note])


def _newly_attached(before, after):
    """Returns the names of outputs that require grad on more ranks than before."""
    names = [{o["name"] for o in now["outputs"] if o["requires_grad"]}
             - {o["name"] for o in then["outputs"] if o["requires_grad"]}
             for then, now in zip(before, after)]
    return sorted(set().union(*names))


def _told(disputes, legends):
    """Completes disputes' legends, as their formulas have derivatives of two functions."""
    for d in disputes:
        held = [f"{text}, with what is detached as a constant" for text in legends
                if any("J_" in line for line in d.measured) and text.startswith("J_")]
        whole = [f"{d.legend}, with nothing as a constant"] if "D_" in d.legend else [d.legend]
        d.legend = "; ".join(filter(None, held + whole))
    return disputes


def _is_unnamed(judgement):
    return all(finding.name == "other-backward" for finding in judgement.findings)


def _mask(mask, like):
    return torch.zeros_like(like) if mask is None else mask


def _relative_error(derivative):
    known = ~derivative.open
    slopes = torch.maximum(derivative.low.abs(), derivative.high.abs())
    largest = torch.maximum(derivative.matrix.abs(), slopes).nan_to_num(posinf=0)[known]
    if not largest.numel() or not float(largest.max()):
        return 0.0
    return float(derivative.error[known].nan_to_num(posinf=0).max() / largest.max())


def _share(part, whole):
    largest = float(whole.abs().nan_to_num(posinf=0).max()) if whole.numel() else 0.0
    return float(part.max()) / largest if largest else 0.0


def _spans(coordinates):
    """Returns each tensor's slice of coordinates; in "whole" all tensors share one."""
    return [slice(*ends)
            for ends in dict.fromkeys((s.start, s.stop) for s in coordinates.ranges.values())]


def _of_ranks(inputs):
    """Returns each rank's coordinates; in "whole" each rank has all."""
    found = {}
    for (rank, _), span in inputs.ranges.items():
        found.setdefault(rank, []).append(torch.arange(inputs.size)[span])
    return [torch.cat(spans) for spans in found.values()]


def _same_elements(coordinates):
    """Returns lists of coordinates of one element of a tensor that several ranks have alike."""
    if coordinates.kind != "elements":
        return []
    alike = {}
    for (_, name), span in coordinates.ranges.items():
        alike.setdefault((name, span.stop - span.start), []).append(span)
    return [[span.start + i for span in spans] for (_, size), spans in alike.items()
            for i in range(size) if len(spans) > 1]
