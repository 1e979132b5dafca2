"""Carries a check_gradients out: runs twice, moves everything, and looks closer if that shows
something."""

import contextlib
import dataclasses
import math
from typing import Callable, Union

import torch

from ..gradient_check.waiting import calls_entered, met_outside
from ..ranks.unwaited import told
from ..words import capitalized, ranks_text, some
from . import casts
from .clipped import Clipped, judge_cuts, unique_norm
from .clipping import Clipping
from .errors import StepError
from .findings import same_number, with_constants
from .frozen import half_frozen
from .holding import HeldInStep, detached_held, held_text, places_with_detached_held
from .judging import BLIND, Judge, Rough, Unclear
from .measuring import Measuring, holds, put_back
from .optimizing import updates
from .outputs import Outputs, Precision, Watch, as_data
from .report import GradientsReport, Wrong
from .roots import Roots
from .running import Repeated, Runs, union, without_count
from .subgroups import counts as group_counts
from .subgroups import subgroups
from .variables import described, digest, local_of, matches, named_parameters
from .variables import pieces, plain
from .watching import Added, Arrivals
from .widened import Widened, are_one_loss, ddp_alone, differ
from .wording import is_clipped
from .wording import described as described_finding

_HELD_SEEDS = (61, 62)
_CLEAR = 10  # A change of so many resolutions is clearly one.
_UNLIKE = 0.01  # Losses that differ by more, relatively, are not one loss with other roundings.
_SMALL = 1 << 22  # Models of up to so many elements on a rank are judged in float64 at once.
_MOST_LINES = 8  # Of so many lines that detach each is asked whether it matters.
_SAME = 1e-6  # Losses of two runs may differ by this, relatively.
_SAME_FINE = 1e-11  # In float64, where moves are small, by this.
_CHANGED = 0.05  # A gradient that was not computed in float64 throughout may differ by this.
_LEFT = 16  # Roundings of a sum that is 0 are so many eps of the largest gradient.
_COARSE = (torch.float32, torch.complex64, torch.float16, torch.bfloat16)


@dataclasses.dataclass
class Options:
    objective: Union[str, Callable] = "mean"
    copies: tuple = ()
    pieces: tuple = ()
    detached: Union[bool, tuple] = ()
    scale: float = 1.0
    search_s: float = 60.0
    optimizer: Union[torch.optim.Optimizer, None] = None
    float64: bool = False


def check(model, step, options, team):
    """Returns the report, the same on all ranks. Raises StepError, Lost, TypeError, and ValueError
    on all ranks alike."""
    _check_alike(team, options)
    _check_patterns(team, model, options)
    runs = Runs(model, step, options.objective, team, options.copies)
    try:
        return _Check(runs, options).report()
    finally:
        runs.restore()


def _check_alike(team, options):
    """Raises ValueError if the ranks have other options: they would run step() unlike often."""
    every = Repeated(team).gather({
        **{name: "a function" if callable(value) else repr(value)
           for name, value in vars(options).items() if name != "optimizer"},
        "optimizer": "none" if options.optimizer is None else "an optimizer"})
    for name, value in every[0].items():
        if others := [rank for rank, row in enumerate(every) if row[name] != value]:
            raise ValueError(f"{name} is {value} on rank 0, and {every[others[0]][name]} on"
                             f" {ranks_text(others)}: all ranks are to give the same")


def _check_patterns(team, model, options):
    """Raises ValueError for a pattern, or one of several names, that fits no parameter."""
    every = Repeated(team).gather(list(named_parameters(model)))
    for option in ("copies", "pieces"):
        for name in (name for text in getattr(options, option) for name in text.split("=")):
            if not any(matches(there, [plain(name)]) for names in every for there in names):
                raise ValueError(f"{option}: no parameter is named {name!r}")


class _Undecidable(Exception):
    """Says why nothing can be decided of a step."""


@dataclasses.dataclass
class _FirstRun:
    """Holds what a run left that began with the gradients that there were: its loss; p.grad when
    step() returned; p.grad after a second such run, or None if there were no gradients; and texts
    on asynchronous calls that were not waited for. Later runs wait for them."""

    loss: float
    gradients: dict
    added: Union[dict, None]
    unwaited: list


class _Check:
    def __init__(self, runs, options):
        self._runs, self._options = runs, options
        self._report, self._known = None, []
        self._notes = []
        self._passes = 1
        self._outside = []  # ranks with which step() communicates and that are not of the group
        self._dtypes = set()  # Modules compute tensors of these dtypes, as texts.
        self._clipping, self._clipped = None, None  # These become a Clipping and a Clipped.
        self._casts = None  # It becomes the Casts of the step, without which it runs here.
        self._is_another_step = False  # In float64 it may have other gradients.
        self._again = None  # It may become a function: the gradients of another run.
        self._update_of = None  # {piece's key: Update}, once optimizer.step() has been run

    def report(self, own=None):
        """Takes the gradients of the step as it is, if it runs in float64 here."""
        try:
            return self._judged_step(own)
        except _Undecidable as why:
            self._report.undecide(str(why))
            return self._report

    def _judged_step(self, own):
        runs, options = self._runs, self._options
        first = self._observed()
        gradients, base, report = runs.found_gradients(), self._report.loss, self._report
        self._check_loss(first)
        if own is None and (options.float64 or casts.are_likely(runs, self._dtypes)
                            or self._is_small_and_narrow()):
            if found := self._in_float64(gradients):
                return found
        unlike = self._unlike(own, gradients) if own else []
        if unlike and not self._casts.dtypes:
            self._is_another_step = True
            raise _Undecidable(f"in float64 step() gives other gradients of {_some(unlike)} than in"
                               " its own dtypes")
        changed = self._changed_gradients(first.gradients, first.added or gradients)
        if not changed:  # Else what is kept from run to run may differ.
            self._note_stale(first.added, gradients)
        first.gradients, first.added = None, None  # These are as large as the parameters.
        self._known = known = pieces(runs.gather(described(runs.parameters, runs.model)),
                                     options.copies, options.pieces)
        if not known:
            raise _Undecidable("no parameter requires a gradient on any rank")
        if not judge_cuts(report, runs, known, self._notes):
            return report
        self._note_before_moves()
        if self._report_changed(changed, first.unwaited):
            return report
        as_left, gradients = gradients, self._without_factors(gradients)
        alone = self._on_one_rank_alone(gradients)
        if alone and options.optimizer is not None:
            self._again = None  # It would lack the copies.
            alone = self._take_for_copies(alone, gradients)
        self._check_finite(gradients)
        try:
            measuring, judgement = self._judged(gradients, own is None and self._casts is None)
        except Unclear:
            if found := self._in_float64(as_left):
                return found
            measuring, judgement = self._judged(gradients)
        except Rough:
            self._check_kept()
            raise
        self._check_judgement(judgement)
        judgement.undecide(unlike, "p.grad differs from what it is in float64 by more than rounding"
                           " may explain")
        if judgement.findings and not options.detached:
            self._dispute(judgement, measuring, lambda: self._judged(gradients))
        self._fill(judgement, gradients, measuring.shared)
        self._note_alone(alone)
        if text := half_frozen(runs, known, base, options.pieces):
            if not report.wrong:
                raise _Undecidable(text)
            self._notes.append(text)
        self._say_more(measuring, judgement, gradients)
        return report

    def _observed(self):
        """Runs step() as the caller would, and once more, and begins the report."""
        runs = self._runs
        if lines := self._options.detached:
            runs.held = HeldInStep(None if lines is True else lines)
        versions = {name: p._version for name, p in runs.parameters.items()}
        first = self._first_run()
        with Clipping(runs.parameters) as self._clipping, Watch(runs.model, self._note_dtype):
            base = runs.run()
            self._passes = max(runs.gather(runs.begun()))
        self._report = GradientsReport(runs.team.size, runs.team.backend, self._objective_text(),
                                       list(runs.losses), base, place=runs.place)
        if changed := self._changed_parameters(versions):
            raise _Undecidable(f"step() writes to parameters ({_some(changed)}), as"
                               " optimizer.step(), clamp_() or an embedding with max_norm does: it"
                               " can be judged without that")
        return first

    def _is_small_and_narrow(self):
        """Returns whether a step in float64 costs little, and may show more."""
        every = self._runs.parameters.values()
        sizes, are_narrow = zip(*self._runs.gather((
            sum(local_of(p).numel() for p in every), any(p.dtype != torch.float64 for p in every))))
        return max(sizes) <= _SMALL and any(are_narrow)

    def _check_loss(self, first):
        """Raises _Undecidable if runs have other losses, or none that is finite."""
        base, losses = self._report.loss, self._report.losses
        if not self._is_the_same(first.loss, base):
            if not first.unwaited or not self._is_the_same(self._runs.run(), base):
                raise _Undecidable("two runs of step() from the same state gave different losses:"
                                   f" {first.loss:.9g} and {base:.9g}. It is to use the same batch,"
                                   " and the same random numbers, each time")
            first.unwaited = [f"{text}: where that is waited for, the loss is {base:.6g}, and not"
                              f" {first.loss:.6g}" for text in first.unwaited]
        if not math.isfinite(base):
            bad = [rank for rank, loss in enumerate(losses)
                   if loss is not None and not math.isfinite(without_count(loss))]
            raise _Undecidable(f"the loss is {base}"
                               + (f": it is not finite on {ranks_text(bad)}" if bad else ""))

    def _note_before_moves(self):
        self._note_not_detached()
        self._note_copies()
        self._note_two_names()
        self._note_unlike_losses()
        rows = union(self._runs.gather(list(self._runs.padding)))
        if rows:
            self._notes.append(f"the row of padding_idx in {_some(rows)}, whose gradient torch"
                               " keeps 0, was not judged")

    def _report_changed(self, changed, unwaited):
        """Reports that runs had other gradients of the parameters `changed`. Returns whether that
        is all that can be said."""
        if not changed:
            self._notes += [f"in step() {text}" for text in unwaited]
            return False
        texts = [f"{capitalized(text)}. Where that is waited for, p.grad is another one."
                 for text in unwaited]
        self._report.wrong.append(Wrong("nondeterministic", changed, {}, texts or [
            "Two runs of step() from the same state gave the same loss, and other p.grad. That is"
            " so if something is kept from one run to the next, random numbers of its own, too, or"
            " read before an asynchronous call is done."]))
        if not unwaited:
            self._report.parameters = self._names()
            self._report.notes = self._notes
        return not unwaited

    def _without_factors(self, gradients):
        """Returns the gradients without what clip_grad_norm_ and a loss scale multiplied."""
        runs = self._runs
        self._clipped = Clipped(runs, self._known, self._clipping, gradients)
        factors = {name: self._options.scale * (self._clipped.factors.get(name) or 1.0)
                   for name in runs.parameters}

        def divided(gradients):
            return {name: g if g is None or factors[name] == 1 else g / factors[name]
                    for name, g in gradients.items()}

        def again():
            runs.run()
            return divided(runs.found_gradients())

        self._again = again
        return divided(gradients)

    def _check_judgement(self, judgement):
        """Raises _Undecidable if the runs that the judgement is made from may not be alike."""
        if self._outside and (judgement.findings or judgement.undecided):
            raise _Undecidable(f"step() also communicates with {ranks_text(sorted(self._outside))},"
                               " outside of `group`, and what these move at the same time may"
                               " change its loss: leave `group` out")
        if judgement.undecided or any(f.factor is None and not f.right for f in judgement.findings):
            self._check_kept()

    def _check_kept(self):
        """Raises _Undecidable if a run has another loss by now."""
        base, after = self._report.loss, self._runs.run()
        is_coarse = any(self._runs.gather(bool(self._dtypes - {"torch.float64"})))
        if not self._is_the_same(after, base, _SAME if is_coarse else _SAME_FINE):
            raise _Undecidable(f"step() gave the loss {base:.13g} before parameters were moved, and"
                               f" {after:.13g} once they were put back: it keeps something from"
                               " one run to the next")

    def _say_more(self, measuring, judgement, gradients):
        """Finds the place of what is wrong, and adds notes and counts."""
        report, runs = self._report, self._runs
        if measuring.dtype in (torch.float64, torch.float32) and any(
                w.kind != "clipping" and set(w.parameters) != set(report.parameters)
                or w.factor is None for w in report.wrong if w.kind != "nondeterministic"):
            self._find_place(measuring, judgement.findings)
        if report.wrong:
            self._note_unmoved(measuring)
            self._note_other_values(gradients)
        self._note_rounded(measuring)
        self._note_short_loss()
        self._note_blind(judgement, measuring)
        if report.verdict == "right":
            self._note_same_data()
            if self._options.optimizer is not None:
                self._judge_optimizer()
        report.dtype = str(measuring.dtype).removeprefix("torch.")
        report.notes += self._notes
        report.runs, report.seconds = runs.count, runs.gather(runs.seconds)[0]

    def _names(self):
        return list(dict.fromkeys(piece.name for piece in self._known))

    def _judged(self, gradients, may_ask_wider=False):
        measuring = Measuring(self._runs, self._known, gradients, self._report.loss, self._dtypes,
                              self._again)
        return measuring, Judge(measuring, lambda: self._alternatives(gradients),
                                self._options.search_s, may_ask_wider).judge()

    def _in_float64(self, gradients):
        """Returns the report of the step in float64, without its casts, or None if it cannot run
        so. It takes the gradients of the step as it is."""
        runs, report = self._runs, self._report
        self._casts = found = casts.Casts(runs)
        if found.must_stay:
            self._dtypes |= set(map(str, found.dtypes))
            self._notes += [f"{text}: gradients were held to that" for text in found.texts]
        is_wide = found.are_calls_alike or self._options.float64
        if found.must_stay or not (found.dtypes or found.is_narrow and is_wide):
            return None
        wide, dtype = _Check(runs, self._options), torch.float64 if is_wide else found.widest
        widened = Widened(runs.model, runs.parameters if is_wide and found.is_narrow else {}, dtype)
        runs.widened, runs.values = widened.running, widened.values
        wide._casts = found
        wide._notes = [f"{text}: the step was judged without that" for text in found.texts]
        with contextlib.suppress(StepError, Rough):  # Some code insists on its dtype.
            with ddp_alone(runs.model) as is_there:
                if any(runs.gather(is_there)):
                    runs.run()
            judged = wide.report(gradients)
            if self._options.float64 or not wide._is_another_step and are_one_loss(
                    report.loss, judged.loss, found.coarsest):
                judged.losses, judged.loss = report.losses, report.loss
                return judged
        runs.widened, runs.values = contextlib.nullcontext, {}
        self._check_kept()
        return None

    def _fill(self, judgement, gradients, shared):
        report, known = self._report, self._known
        report.parameters = self._names()
        norm = unique_norm(self._runs, known, gradients)
        findings = judgement.findings
        if not self._clipped.is_by_torch() and is_clipped(findings, report.parameters, norm):
            self._notes.append(f"all gradients are {findings[0].factor:.4g} times the derivative,"
                               f" and their norm, each element once, is {norm:.6g}: as after"
                               " clipping to that norm")
            findings = []
        counts = {"ranks": self._runs.team.size, "backward passes": self._passes}
        if findings:
            counts = {**group_counts(subgroups(self._runs)), **counts}
        holders = {piece.key: piece.holders for piece in known}
        for finding in findings:
            by_ranks = {}  # {ranks to be named: names}
            for name in finding.names:
                keys = [piece.key for piece in known if piece.name == name]
                wrong = [key for key in keys if key in finding.keys]
                ranks = sorted({r for key in wrong for r in holders[key]}) if wrong != keys else ()
                by_ranks.setdefault(tuple(ranks), []).extend(wrong)
            report.wrong += [described_finding(finding.part(set(keys).__contains__), counts, ranks)
                             for ranks, keys in by_ranks.items()]
        self._clipped.judge_norms(report, self._notes, gradients, shared)
        self._clipped.report_uneven(report, judgement)
        told = {name for wrong in report.wrong for name in wrong.parameters}

        def untold(names):  # Other pieces of a parameter may be wrong.
            return [name for name in dict.fromkeys(names) if name not in told]

        report.undecided = {name: judgement.undecided[name] for name in untold(judgement.undecided)}
        report.too_small = untold(judgement.too_small)
        report.ambiguous = untold(judgement.ambiguous)
        report.not_asked = untold(judgement.not_asked)

    # -- before anything is moved

    def _first_run(self):
        """Runs step() with the gradients that there are."""
        runs, entry = self._runs, self._runs.entry_gradients()
        had = any(runs.gather(any(g is not None for g in entry.values())))
        since = calls_entered()
        loss, found, calls = runs.run_as_it_is(entry if had else None)
        self._outside = union(runs.gather(sorted(
            met_outside(runs.team.global_ranks, since, runs.ended))))
        runs.waited_for = frozenset(union(calls))
        if had:
            runs.run(entry)
        return _FirstRun(loss, found, runs.found_gradients() if had else None, told(calls))

    def _note_dtype(self, _key, x):
        self._dtypes.add(str(x.dtype))

    def _changed_parameters(self, versions):
        """Returns the names of parameters to which step() writes other values than they have, also
        where they are moved a little."""
        runs, changed = self._runs, set()
        written = union(runs.gather([name for name, p in runs.parameters.items()
                                     if p._version != versions[name]]))
        own = {name: local_of(runs.parameters[name].detach()) for name in written
               if name in runs.parameters}
        for factor in (1.001, 0.999, 1) if written else ():
            before = {name: (local, local.clone()) for name, local in own.items()}
            put_back({name: (local, local * factor) for name, local in own.items()})
            moved = {name: local.clone() for name, local in own.items()}
            runs.run()
            changed |= {name for name, local in own.items() if not torch.equal(local, moved[name])}
            put_back(before)
        return union(runs.gather(sorted(changed)))

    def _changed_gradients(self, before, after):
        """Returns the names of parameters whose gradients differ from those before by more than
        rounding may do."""
        is_coarse = any(dtype != "torch.float64" for dtype in self._dtypes)
        largest = self._largest_norm(after)

        def differs(a, b):
            if a is None or b is None:
                return a is not b
            # DDP's first buckets are others than its later ones, so sums round otherwise in them.
            is_short = any(holds(b, dtype) for dtype in (torch.bfloat16, torch.float16))
            slack = _CHANGED if is_coarse or is_short or a.dtype in _COARSE else _SAME
            # A sum over the ranks that cancels out to 0 has other roundings each time.
            left = _LEFT * torch.finfo(b.dtype).eps * largest
            return bool(torch.isfinite(b).all()) and float(
                (b - a).norm()) > max(slack * float(b.norm()), left)

        return union(self._runs.gather([name for name, a in before.items()
                                        if differs(a, after[name])]))

    def _unlike(self, own, wide):
        """Returns names of gradients that differ in wider dtypes by more than rounding does."""
        largest, dtype = self._largest_norm(wide), self._casts.coarsest
        return union(self._runs.gather([n for n, g in own.items()
                                        if differ(g, wide[n], largest, dtype)]))

    def _largest_norm(self, gradients):
        return max(self._runs.gather(max((float(g.norm()) for g in gradients.values()
                                          if g is not None), default=0.0)))

    def _is_the_same(self, first, again, share=_SAME):
        if first == again or math.isnan(first) and math.isnan(again):
            return True
        return abs(first - again) <= share * max(abs(first), abs(again))

    def _note_stale(self, added, gradients):
        """Notes that step() adds to what p.grad held, if it does. added has gradients of such a
        run."""
        stale = []
        for name, g in gradients.items():
            before = None if added is None else added[name]
            if before is not None and g is not None and float(
                    (before - g).abs().max()) > 1e-3 * float(g.abs().max()):
                stale.append(name)
        names = union(self._runs.gather(stale))
        if names:
            self._notes.append(
                f"p.grad of {_some(names)} held something when check_gradients was called, and"
                " step() adds to it. It was judged from p.grad = None: call zero_grad() at the"
                " start of step() to have that checked, too")

    def _note_rounded(self, measuring):
        rounded, by_dtype = {}, {}
        for key, (dtype, error) in measuring.rounded.items():  # Few elements may seem rounded more.
            name = measuring.pieces[key].name
            rounded[name] = min((error, dtype), rounded.get(name, (error, dtype)))
        for name, (_, dtype) in rounded.items():
            by_dtype.setdefault(dtype, []).append(name)
        self._notes += [f"p.grad of {_some(names)} has no more digits than"
                        f" {dtype}, in a wider dtype, and is judged to that precision"
                        for dtype, names in by_dtype.items()]

    def _note_short_loss(self):
        short = {dtype for row in self._runs.gather(self._runs.loss_dtypes) for dtype in row
                 if dtype in ("bfloat16", "float16")}
        if short:
            self._notes.append(f"step() returns its loss in {', '.join(sorted(short))}, which has"
                               " three digits: computed in float32, more can be decided")

    def _note_blind(self, judgement, measuring):
        report = self._report
        judged = {name for finding in judgement.findings for name in finding.names}
        judged |= {*judgement.undecided, *judgement.too_small}
        report.blind = {name: share for name, share in sorted(
            judgement.blind.items(), key=lambda item: -item[1])
            if share > BLIND and name not in judged}
        if report.wrong and measuring.dtype == torch.float32 and any(
                w.factor is None for w in report.wrong):
            told = {*judged, *report.not_asked, *report.ambiguous}
            if rest := [name for name in report.parameters if name not in told]:
                self._notes.append("an error that is no multiple of p.grad may be missed in"
                                   f" float32, so also in {_some(rest)}")
        if report.blind:
            self._notes.append(f"in {str(measuring.dtype)[6:]} an error of less than "
                               + _some([f"{s:.0%} in {name}" for name, s in report.blind.items()])
                               + " would not be seen")

    def _note_same_data(self):
        report = self._report
        everyone = list(range(report.ranks))
        is_alike = report.ranks > 1 and len(set(report.losses)) == 1 and all(
            sorted(piece.holders) == everyone for piece in self._known)
        if is_alike and self._options.objective == "mean":
            self._notes.append("all ranks hold the same parameters and have the same loss: if they"
                               " have the same data, too, a mean over the ranks that is missing"
                               " does not show here")

    def _note_two_names(self):
        """Notes that ranks have the same values under different names, if they do."""
        alike = {}
        for p in self._known:
            if p.digest and not p.is_constant:
                alike.setdefault(p.digest, []).append(p)
        pairs = [(first, other) for first, *others in alike.values() for other in others
                 if other.name != first.name and not set(first.holders) & set(other.holders)]
        for first, other in pairs[:1]:
            more = f" (so have {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
            self._notes.append(f"{first.name} on {ranks_text(first.holders)} and {other.name} on"
                               f" {ranks_text(other.holders)} have the same values{more}, and are"
                               " judged as two parameters: if they are one, say"
                               f' copies="{first.name}={other.name}"')

    def _note_copies(self):
        apart = [p.name for p in self._known if len(p.holders) > 1 and not p.digest]
        if apart:
            self._notes.append(f"the copies of {_some(apart)} do not have the same values on all"
                               " ranks that hold them")

    def _check_finite(self, gradients):
        """Raises _Undecidable if some gradients are not finite."""
        bad = self._runs.gather([name for name, g in gradients.items()
                                 if g is not None and not bool(torch.isfinite(g).all())])
        if ranks := [rank for rank, names in enumerate(bad) if names]:
            raise _Undecidable(f"the gradients of {_some(union(bad))} are not finite on"
                               f" {ranks_text(ranks)}")

    def _note_not_detached(self):
        lines = self._options.detached
        held = self._runs.gather(list(self._runs.held.places) if lines else [])
        if lines and lines is not True and (
                idle := [line for line in lines if not any(line in row for row in held)]):
            self._notes.append(f"nothing was detached at {_some(idle)}")

    def _note_unmoved(self, measuring):
        if not measuring.was_moved:
            self._notes.append("the loss that step() returned was the same however parameters were"
                               " moved: it does not depend on them")

    def _note_other_values(self, gradients):
        """Notes wrong parameters that have other values on each rank, and one gradient on all."""
        every = self._runs.gather({name: digest(g) for name, g in gradients.items()
                                   if g is not None and bool(g.any())})
        wrong = {name for w in self._report.wrong for name in w.parameters}
        apart = {}  # {name: ranks that hold a piece of it that no other one has}
        for piece in self._known:
            if piece.name in wrong and not piece.declared and len(piece.holders) == 1:
                apart.setdefault(piece.name, []).extend(piece.holders)
        names = [name for name, holders in apart.items() if len(holders) == len(every) > 1
                 and len({row.get(name) for row in every}) == 1 and name in every[0]]
        if names:
            self._notes.append(f"{_some(names)}: the values differ from rank to rank, so each is"
                               " taken for a piece of its own; p.grad is the same on all ranks")

    def _note_unlike_losses(self):
        """Notes that ranks which should compute one loss have different ones, if they do."""
        values = {rank: without_count(x) for rank, x in enumerate(self._report.losses)
                  if x is not None}
        most = max(map(abs, values.values()))
        if self._options.objective == "replicated" and (
                max(values.values()) - min(values.values()) > _UNLIKE * most):
            self._notes.append("the ranks' losses are not one (" + ", ".join(
                f"{x:.6g} on rank {rank}" for rank, x in list(values.items())[:4]) + "): their mean"
                               " was taken")

    # -- once something is wrong

    def _find_place(self, measuring, findings):
        report = self._report
        is_fine = measuring.dtype == torch.float64
        precision = Precision(measuring.step, measuring.noise, 1e-2 if is_fine else 3e-2,
                              is_fine=is_fine)
        open_ = {*report.undecided, *report.too_small, *report.not_asked, *report.ambiguous}
        right = set(report.parameters).difference(open_, *(w.parameters for w in report.wrong))
        outputs = Outputs(self._runs, precision, self._options.search_s - self._runs.seconds,
                          right=right)
        places = outputs.places()
        if report.detached:
            places = places_with_detached_held(self._runs, outputs)[0]
        if places is None:  # What is detached cannot be held, and would look like a mistake.
            return
        wrong = [name for w in report.wrong for name in w.parameters]
        off = max((abs(finding.factors.get(rank, math.inf) - 1) for finding in findings
                   for rank in finding.said), default=math.inf)
        has_copies = any(len(finding.said) > 1 for finding in findings)
        is_mean = has_copies and any(f.factor is not None and same_number(
            f.factor * self._runs.team.size, 1) for f in findings)
        follows = "mean" if is_mean else "sum" if has_copies else ""
        report.where = outputs.told(places, wrong, off, follows=follows) + outputs.calls(places)
        if report.where and report.detached:
            report.where.insert(0, held_text(report.detached))
        report.places = as_data(places, precision.slack)

    def _dispute(self, judgement, measuring, judged_again):
        """Moves what is right with what step() detaches as constants to the disputed. The rest is
        judged once more so if nothing explains it, or if something is right so."""
        runs = self._runs
        zero = [key for f in judgement.findings if f.kind == "zero" for key in f.keys
                if self._is_seen(measuring, key)]

        told = {key for f in judgement.findings if f.factors or f.right for key in f.keys}
        others = [key for key, piece in measuring.pieces.items() if key not in told
                  and piece.name not in (*judgement.ambiguous, *judgement.undecided)]

        def agree(keys):
            rest = [key for key in keys if key not in zero]
            # Parameters that step() gathers from detached ones are to be seen as such, too.
            return (not rest or self._agrees(measuring, rest)) and (
                rest == keys or bool(others) and self._agrees(measuring, others) and all(
                    self._is_constant(measuring, key) for key in keys if key in zero))

        with detached_held(runs) as held:
            places = {line: what for row in runs.gather(held.places) for line, what in row.items()}
            if lines := union(runs.gather(held.overwritten)):
                self._notes.append(f"what is detached at {_some(lines)} is written to, and shares"
                                   " memory with a tensor that backward may need")
            if not places or any(runs.gather(held.is_lost)):
                return
            meant = [f for f in judgement.findings
                     if not f.assumed and agree(f.keys)]
            rest = [f for f in judgement.findings if f not in meant]
            if not meant and all(f.factors and f.kind != "zero" or f.right for f in rest):
                return
            findings, right = [], [key for f in meant for key in f.keys]
            if rest:
                findings, right = with_constants(judgement, judged_again()[1],
                                                 some(list(places), 4))
                if right and not agree(right):
                    return
            if any(runs.gather(held.is_lost)):
                return
            if right or all(f.factors or f.right for f in findings):
                judgement.findings = findings
                self._report.disputed = list(dict.fromkeys(
                    measuring.pieces[key].name for key in right))
                self._report.detached = places
        if right and len(places) <= _MOST_LINES:
            self._report.detached = self._lines_that_matter(places, lambda: agree(right))

    def _lines_that_matter(self, places, agree):
        """Leaves out lines without which what is held as a constant explains as much."""
        lines = list(places)
        for line in places:
            rest = [other for other in lines if other != line]
            if not rest:
                break
            with detached_held(self._runs, rest) as held:
                if not any(self._runs.gather(held.is_lost)) and agree():
                    lines = rest
        return {line: places[line] for line in lines}

    @staticmethod
    def _is_seen(measuring, key):
        """Returns whether the loss clearly depends on this piece."""
        return all(abs(m.measured) > _CLEAR * m.resolution for m in _moves(measuring, [key]))

    @staticmethod
    def _is_constant(measuring, key):
        """Returns whether no change of the loss is seen when this piece moves."""
        return all(abs(m.measured) <= m.resolution for m in _moves(measuring, [key]))

    @staticmethod
    def _agrees(measuring, keys):
        return all(m.agrees() and m.weight() >= 100 * m.resolution
                   for m in _moves(measuring, keys))

    def _alternatives(self, gradients):
        """Returns gradients that may be the right ones, as {words: {name: tensor or None}}."""
        added = Added(self._runs.parameters)
        with Arrivals(self._runs.parameters) as arrivals, Roots(
                lambda: (arrivals.begin(), added.begin()), after=added.end):
            self._runs.run()
        names = list(self._runs.parameters)
        found = {"what backward brought": {n: arrivals.sums.get(n) for n in names}}
        if not self._clipped.is_to_zero():
            words = "p.grad before clip_grad_norm_" if self._clipped.uneven else "p.grad"
            found = {words: gradients, **found}
        self._passes = max(self._passes, *self._runs.gather(arrivals.passes))
        if self._passes > 1:
            found["what the last backward brought"] = {n: arrivals.last.get(n) for n in names}
            found["what all backward passes added"] = {n: added.sums.get(n) for n in names}
            found["what the last backward pass added"] = {n: added.last.get(n) for n in names}
        return {words: tensors for words, tensors in found.items()
                if any(self._runs.gather(any(x is not None for x in tensors.values())))}

    def _on_one_rank_alone(self, gradients):
        """Returns [(Piece, rank)] of those whose copies have no gradient but on this rank, as with
        ZeRO, where the update of one rank is sent to the others."""
        lacking = self._runs.gather({name for name, g in gradients.items() if g is None})
        having = {p: [r for r in p.holders if p.name not in lacking[r]]
                  for p in self._known}
        return [(p, ranks[0]) for p, ranks in having.items()
                if p.digest and len(p.holders) > len(ranks) == 1]

    def _take_for_copies(self, alone, gradients):
        """Gives the one gradient of these pieces to all copies that optimizer.step() moves alike.
        Returns the others."""
        left, taken = [], []
        for piece, owner in alone:
            update = self._updates()[piece.key]
            if not (update.stay_copies and update.move):
                left.append((piece, owner))
                continue
            mine = gradients.get(piece.name) if self._runs.rank == owner else None
            gradient = self._runs.gather(mine)[owner]
            if self._runs.rank in piece.holders:
                gradients[piece.name] = gradient.to(self._runs.parameters[piece.name].device)
            taken.append(piece.name)
        if taken:
            self._notes.append(f"p.grad of {_some(taken)} is on one rank alone: optimizer.step()"
                               " moves all copies alike, so it was taken for that of all")
        return left

    def _note_alone(self, alone):
        wrong = {name for w in self._report.wrong for name in w.parameters}
        names = list(dict.fromkeys(p.name for p, _ in alone if p.name in wrong))
        if names and self._options.optimizer is not None:
            self._notes += [
                f"p.grad of {p.name} is on rank {owner} alone, and optimizer.step() does not move"
                f" {'it' if self._updates()[p.key].stay_copies else 'all copies alike'}"
                for p, owner in alone if p.name in names]
        elif names:
            self._notes.append(f"p.grad of {_some(names)} is None on all ranks but one: if the"
                               " update of that rank is sent to the others, as with ZeRO, give"
                               " `optimizer`, and that is checked")

    def _updates(self):
        if self._update_of is None:
            self._update_of = updates(self._options.optimizer, self._runs, self._known)
        return self._update_of

    def _judge_optimizer(self):
        """Reports copies that optimizer.step() makes different, from gradients that are equal."""
        found = {True: [], False: []}
        for piece in self._known:
            update = self._updates().get(piece.key)
            if update and not update.stay_copies:
                found[update.have_equal_gradients].append(piece.name)
        if names := list(dict.fromkeys(found[True])):
            self._report.wrong.append(Wrong("copies", names, {}, [
                "The copies are equal before optimizer.step(), and so are their gradients, and"
                " after it the copies differ."]))
        if names := list(dict.fromkeys(found[False])):
            self._notes.append(f"the copies of {_some(names)} are equal before optimizer.step() and"
                               " not after it: their gradients are not equal bit for bit")

    def _objective_text(self):
        objective = self._options.objective
        return objective if isinstance(objective, str) else getattr(
            objective, "__name__", "a function")


def _moves(measuring, keys):
    """Yields Measurements of these pieces along other directions than the judge's."""
    return (measuring.measure(keys, seed, alike=False) for seed in _HELD_SEEDS)


def _some(names):
    return some(names, 4)
