"""Judges what torch's clipping did to gradients."""

import math

from ..words import ranks_text, some
from .report import Wrong
from .running import union
from .variables import may_be_pieces
from .wording import clipping_text, uneven_text

_UNEVEN = 1e-3  # Factors that differ by less, relatively, differ by rounding.


class Clipped:
    """Says of one run what clipping multiplied gradients by. All ranks must call every method."""

    def __init__(self, runs, known, clipping, gradients):
        self._runs, self._known, self._calls = runs, known, clipping.calls
        self.factors = clipping.factors()  # {name: what this rank's gradient was multiplied by}
        self.uneven = self._unevenly_clipped(gradients)

    def is_by_torch(self):
        return any(self._runs.gather(bool(self._calls)))

    def is_to_zero(self):
        return any(self._runs.gather(0.0 in self.factors.values()))

    def _unevenly_clipped(self, gradients):
        """Returns [(Piece, {rank: factor})] of copies whose factors differ."""
        every = self._runs.gather({name: factor for name, factor in self.factors.items()
                                   if gradients[name] is not None})
        found = []
        for piece in self._known:
            factors = {rank: every[rank][piece.name] for rank in piece.holders
                       if piece.name in every[rank]}
            least, most = min(factors.values(), default=0.0), max(factors.values(), default=0.0)
            if most - least > _UNEVEN * most:
                found.append((piece, factors))
        return found

    def judge_norms(self, report, notes, gradients, shared):
        """Reports a call that saw another norm than that of what it clips on all ranks, with each
        element once. Copies of pieces whose keys are in `shared` have the same gradient."""
        every = self._runs.gather(self._calls)
        if len({len(calls) for calls in every}) > 1:
            return
        clips, changed = [], set()  # [(text on a call, names of what it was given)]; such texts
        lost = union(self._runs.gather([n for n, factor in self.factors.items() if not factor]))
        for calls in zip(*every):
            names = list(dict.fromkeys(name for *_, before in calls for name in before))
            mine = calls[self._runs.rank][-1]
            pieces_of_call = [p for p in self._known if p.name in names]
            if later := [name for name in names if any(
                    before.get(name, 1.0) is None for *_, before in calls)]:
                notes.append(f"p.grad of {some(later, 4)} is changed after {calls[0][2]} saw"
                             " its norm: that norm was not judged")
                changed.add(calls[0][2])
                continue
            if any(kind != 2.0 for *_, kind, _ in calls) or any(
                    p.name in lost or len(p.holders) > 1 and p.key not in shared
                    for p in pieces_of_call):
                continue
            norm = unique_norm(self._runs, pieces_of_call, {
                name: g * mine.get(name, 1.0) for name, g in gradients.items() if g is not None})
            text = clipping_text(calls[0][2], [seen for seen, *_ in calls], norm)
            if text and all(max(seen, norm) <= most for seen, most, *_ in calls):
                if math.isfinite(calls[0][1]):  # Code that only logs a norm gives an infinite one.
                    notes.append(f"{text} Neither reaches max_norm: nothing was clipped")
            elif text:
                report.wrong.append(Wrong("clipping", names, {}, [text]))
            elif any(seen > most for seen, most, *_ in calls):
                clips.append((calls[0][2], names))
        if len(clips) > 1:
            notes.append(f"gradients are clipped {len(clips)} times, each time by the norm of"
                         " what that call was given, not by one norm of all; the factors"
                         " are left out of what is said of gradients here")
        elif clips and clips[0][0] not in changed:  # That line may have clipped before.
            text, names = clips[0]
            left = [p.name for p in self._known if p.name not in names]
            notes.append(f"{text} saw the right norm; its factor is left out of"
                         " what is said of gradients here"
                         + (f". It was not given {some(list(dict.fromkeys(left)), 4)}" if left
                            else ""))

    def report_uneven(self, report, judgement):
        """Reports copies that were clipped by several factors, unless a wrong norm tells why."""
        told = {name for w in report.wrong if w.kind == "clipping" for name in w.parameters}
        by_text = {}
        for piece, factors in self.uneven:
            if may_be_pieces(piece, self._known):
                judgement.ambiguous.append(piece.name)
            elif piece.name not in told:
                by_text.setdefault(uneven_text(factors), []).append(piece.name)
        report.wrong += [Wrong("clipping", names, {}, [text]) for text, names in by_text.items()]


def unique_norm(runs, known, gradients):
    """Returns the 2-norm of the gradients of these pieces, each counted once."""
    mine = {p.key: float(gradients[p.name].norm())**2 for p in known
            if p.holders[0] == runs.rank and gradients.get(p.name) is not None}
    return math.sqrt(sum(sum(row.values()) for row in runs.gather(mine)))


def judge_cuts(report, runs, known, notes):
    """Notes what clip_grad_value_ would have cut in the last run, and reports copies of which it
    cuts some. Returns whether no p.grad was changed after that: nobody can say what it would be."""
    every, cuts = runs.gather(runs.uncut.calls()), {}
    for row in every:
        for text, names in row.items():
            cuts.setdefault(text, []).extend(names)
    notes += [f"{text} cuts elements of {some(list(dict.fromkeys(names)), 4)}: p.grad was judged as"
              " it is before that" for text, names in cuts.items()]
    if changed := union(runs.gather(runs.uncut.changed())):
        report.undecide(f"p.grad of {some(changed, 4)} is changed after clip_grad_value_ cut it:"
                        " it can be judged without that cut")
        return False
    for text in cuts:
        on = [rank for rank, row in enumerate(every) if text in row]
        names = [p.name for p in known if p.name in cuts[text] and not may_be_pieces(p, known)
                 and len({p.name in every[rank].get(text, ()) for rank in p.holders}) > 1]
        if names:
            report.wrong.append(Wrong("clipping", names, {}, [
                f"{text} cuts p.grad on {ranks_text(on)} alone: the copies differ."]))
    return True
