"""Measures where a step with wrong gradients departs from the single run."""

import collections
import math
import os
import time

import torch

from ..words import count, some
from . import arrived, forward
from .holding import detached_held, held_text, places_with_detached_held
from .outputs import Outputs, Precision, as_data, departure
from .seen import computed_in
from .variables import plain

_FEW = 8  # So many right parameters are examined for what they are made of.
_POLL_S = 0.01
_SEARCH_S = 60.0
_LEAST_RUNS = 12  # There must be time for so many runs of a step.
_SAME_FACTOR = 1e-3  # Factors that differ by less, relatively, are the same.
_LOSS_SLACK = {"float64": 1e-9, "float32": 1e-5, "float16": 2e-2, "bfloat16": 2e-2}
# The size of a move, the loss's rounding and a factor's error depend on the coarsest dtype.
_PRECISIONS = {"float64": (1e-5, 2.0**-46, 1e-2), "float32": (4e-3, 2.0**-22, 3e-2)}


class Where:
    """Judges the runs on all ranks alike; only rank 0 has the single run's tensors."""

    def __init__(self, runs, trace, names, returned, folder, request):
        self._runs, self._trace, self._names, self._returned = runs, trace, names, returned
        self._wrong = [plain(name) for name in request["wrong"]]
        self._factors = [float(what["factor"] or "nan") for what in request["wrong"].values()]
        self._off = max(float(what["off"]) or math.inf for what in request["wrong"].values())
        # The ranks' model has other parameters then, as where one run ties two and the other not.
        self._is_other = any(what["verdict"] == "extra" for what in request["wrong"].values())
        self._right = [plain(name) for name in request["right"]]
        self._single = self._when_it_is_there(os.path.join(folder, "single.trace"),
                                              request["timeout_s"])
        self._lines, self._stage, self._places = [], "unknown", []
        self._end = request["end"]

    def _when_it_is_there(self, path, seconds):
        if self._runs.rank:
            return None
        end = time.monotonic() + seconds
        while not os.path.exists(path) and time.monotonic() < end:
            time.sleep(_POLL_S)
        return torch.load(path, weights_only=False)

    def said(self):
        every = self._runs.gather({key: self._trace[key] for key in ("seen", "loss", "passes",
                                                                    "clips", "frozen")})
        mine = self._single and {key: self._single[key] for key in ("seen", "loss", "passes",
                                                                  "needs", "detached")}
        single = self._runs.gather(mine)[0]
        computed = computed_in(single["seen"], [row["seen"] for row in every])
        dtype = _coarsest([single["seen"], *(row["seen"] for row in every)])
        losses = [row["loss"] for row in every]
        self._detached_by_single = single["detached"]
        self._frozen = [name for name in self._wrong if all(name in row["frozen"] for row in every)]
        agrees = self._judge_loss(single, every, _LOSS_SLACK.get(dtype, 1e-9))
        if not agrees:
            self._judge_forward()
        is_after = self._judge_arrivals()
        if agrees and not is_after:
            self._judge_backward(dtype, single["needs"], losses)
        if self._stage == "after":
            self._list_calls()
        self._judge_clipping([row["clips"] for row in every])
        seen = {dtype: where for row in (single, *every) for dtype, where in
                row["seen"]["dtypes"].items()}
        return {"text": self._lines, "stage": self._stage,
                "places": as_data(self._places), "losses": losses,
                "computed_in": computed, "dtypes": seen}

    def _judge_loss(self, single, every, slack):
        """Finds the objective. Returns whether the ranks' losses make up the single run's loss, or
        a whole multiple or part of it."""
        truth, losses = single["loss"], [row["loss"] for row in every]
        known = [loss for loss in losses if loss is not None]
        if truth is None or not known:
            self._lines.append("No backward that begins at a loss was seen"
                               + (" in the single run." if known else " on the ranks.")
                               + " Without a loss nothing could be measured.")
            return False

        def near(a, b):
            return abs(a - b) <= slack * abs(b)

        mean = declared(losses, "mean")
        if all(near(loss, truth) for loss in known):
            self._runs.objective = "replicated"
            return True
        is_apart = len(set(known)) == len(known)  # Equal ones may be copies, each counted once.
        for objective in ("mean", "sum") if is_apart else ("mean",):
            if near(declared(losses, objective), truth):
                self._runs.objective = objective
                return True
        self._stage = "loss"
        shown = ", ".join(f"{loss:.6g}" for loss in known[:8])
        passes = {row["passes"] for row in every if row["passes"]}  # of ranks that have a loss
        counts = ([f" ({count(single['passes'], 'backward')})", f" ({count(*passes, 'backward')})"]
                  if len(passes) == 1 and passes != {single["passes"]} else ["", ""])
        text = (f"What backward begins at adds up to {truth:.6g} in the single run{counts[0]}, and"
                f" to {shown} on the ranks{counts[1]}")
        factor = mean / truth if truth else 0.0
        whole = max(abs(factor), 1 / abs(factor)) if factor else 0.0
        if 1.5 < whole < 4096 and near(whole, round(whole)):
            self._lines.append(f"{text}: on average {factor:.4g} times as much.")
            return True
        apart = (f"{mean:.6g} on average" if f"{mean:.6g}" != f"{truth:.6g}" else
                 f"on average {mean - truth:.2g} more")
        self._lines.append(f"{text}, {apart}: the loss departs.")
        return False

    def _judge_forward(self):
        every = self._runs.gather({key: x for key, x in self._trace["outputs"].items()
                                   if x is not None})
        module = None
        if self._single:
            outputs = {k: x for k, x in self._single["outputs"].items() if x is not None}
            lines, module = forward.told(forward.compare(outputs, every))
            self._lines += lines
        if self._runs.gather(module)[0] is not None:
            self._stage = "forward"

    def _judge_arrivals(self):
        """Tells what the wrong parameters' gradients are made of, and what they should be made of.
        Returns whether all mistakes come after backward."""
        names = [*self._wrong, *self._right[:_FEW]]
        every = self._runs.gather(({name: self._trace["brought"].get(name) for name in names},
                                   {name: self._returned.get(name) for name in names},
                                   self._trace["rows"]))
        lines, explained, is_after = [], set(), False
        if self._single:
            brought = [{n: x for n, x in row[0].items() if x} for row in every]
            returned = [{n: x for n, x in row[1].items() if x is not None} for row in every]
            truth = self._single["gradients"]
            lines, explained, is_after = arrived.told(self._wrong, self._right[:_FEW], brought,
                                                      returned, truth,
                                                      _last_rows([row[2] for row in every]))
            lines += arrived.told_of_losses(self._wrong, self._single["terms"], returned, truth)
        self._lines += lines
        explained, is_after = self._runs.gather((explained, is_after))[0]
        if explained and self._stage == "unknown":
            self._stage = "after"
        return is_after

    def _judge_backward(self, dtype, needed, losses):
        runs = self._runs
        if dtype not in _PRECISIONS:
            self._lines.append(f"Backward was not measured, as the step computes in {dtype}.")
            return
        again = runs.run()
        first = declared(losses, runs.objective)
        if again is None:
            self._lines.append("Backward was not measured: no loss was seen when the step was run"
                               " again in the same processes.")
            return
        if abs(again - first) > _PRECISIONS[dtype][1] * 64 * abs(first):
            self._lines.append("Backward was not measured: the step, run again in the same"
                               f" processes, gave the loss {again:.9g} after {first:.9g}.")
            return
        left = min(runs.gather(self._end - time.monotonic()))
        if left < _LEAST_RUNS * runs.seconds:
            self._lines.append("Backward was not measured: that takes a step's time"
                               f" {_LEAST_RUNS} times and more; give a larger timeout_s.")
            return
        step, rounding, slack = _PRECISIONS[dtype]
        size = max(abs(loss) for loss in [first, *losses] if loss is not None)
        precision = Precision(step, rounding * size, slack, True, dtype == "float64")
        outputs = Outputs(runs, precision, min(_SEARCH_S, left / 4), self._names, needed,
                          self._right)
        self._places = outputs.places()
        found, lines = self._departs(outputs)
        if found and (held := self._with_constants(outputs)):
            found, lines = self._departs(outputs)
            lines.insert(0, held_text(held))
        if found:
            kind, place, before = found
            self._stage = "backward" if before else "loss"
            lines += self._between(place, before)
            lines += self._where_own_detach(outputs) + outputs.calls(self._places)
        elif self._stage == "loss":  # The loss is off by a factor, which outputs do not show.
            return
        elif lines:
            self._stage = "after"
        self._lines += lines or ["No output of a module could be measured."]

    def _departs(self, outputs):
        found = departure(self._places)
        unlike = [] if found else self._detached_by_single_alone()
        if self._frozen:
            verb = "requires" if len(self._frozen) == 1 else "require"
            unlike.append(f"{some(self._frozen, 4)} {verb} no gradient on the ranks.")
        is_mean = all(abs(f * self._runs.team.size - 1) <= _SAME_FACTOR for f in self._factors)
        return found, [*outputs.told(self._places, self._wrong, self._off,
                                     bool(unlike) or self._is_other,
                                     "mean" if is_mean else "sum"), *unlike]

    def _detached_by_single_alone(self):
        """Returns [a sentence on what the single run detaches and no rank does], if they agree on
        all other lines."""
        if not self._detached_by_single:
            return []
        with detached_held(self._runs) as held:
            theirs = {line for row in self._runs.gather(list(held.places)) for line in row}
        lines = [line for line in self._detached_by_single if line not in theirs]
        if not lines or theirs - set(self._detached_by_single):
            return []
        return [f"The single run detaches at {some(lines, 4)}, and the ranks do not."]

    def _with_constants(self, outputs):
        """Moves outputs again with what the single run detaches, too, as a constant. Returns the
        lines, if backward is right then where it departs, else []."""
        if not self._detached_by_single:
            return []
        again, lines = places_with_detached_held(self._runs, outputs, self._detached_by_single)
        if not self._is_right_in(again):
            return []
        self._places = again
        return lines

    def _where_own_detach(self, outputs):
        """Returns [a sentence on what only the ranks detach], if backward is right everywhere with
        that as a constant."""
        again, lines = places_with_detached_held(self._runs, outputs, None,
                                                 self._detached_by_single)
        if not self._is_right_in(again) or departure(again):
            return []
        return [f"With what is detached at {some(lines, 4)} as a constant, it is right at all of"
                " these outputs."]

    def _is_right_in(self, again):
        place = departure(self._places)[1]
        same = next((p for p in again or () if p.key == place.key), None)
        # A constant has no derivative: a cotangent of 0 is right then.
        is_zero = all(abs(ratio.each) < 1e-6 for ratio in place.known())
        return same is not None and (same.state == "right" or is_zero and not same.known())

    def _between(self, place, before):
        """Returns [a sentence on the calls between an output and the next right one, or the loss],
        from the first rank that has any."""
        calls, at = self._trace["calls"], self._trace["before"]
        begin = at.get(place.key)
        end = len(calls) if before is None else at.get(before.key, begin)
        mine = None
        if begin is not None:
            mine = [f"{name} in {where}" for name, where, is_backward in calls[begin:end]
                    if not is_backward]
        text = self._counted(mine)
        until = before.name if before else "the loss"
        return [f"Between {place.name} and {until} lies: {text}."] if text else []

    def _list_calls(self):
        calls = self._trace["calls"][self._trace["begun"]:]
        if text := self._counted([f"{name} in {where}" for name, where, _ in calls]):
            self._lines.append(f"What communicates from the last backward on: {text}.")

    def _counted(self, calls):
        """Returns text such as "allreduce in train.py:12, 3 times and 2 more", from the first rank
        that has any calls."""
        texts = next((row for row in self._runs.gather(calls) if row), [])
        return some([f"{text}, {n} times" if n > 1 else text
                     for text, n in collections.Counter(texts).items()], 4)

    def _judge_clipping(self, every):
        """Tells if the last call of clip_grad_norm_ saw another norm, or clipped to another one,
        than in the single run."""
        single = self._runs.gather(self._single and self._single["clips"])[0]
        if bool(single) != any(every):
            self._judge_clipping_of_one([single] if single else every, bool(single))
        if not single or not all(every):
            return
        truth, most, _ = single[-1]
        if {calls[-1][1] for calls in every} != {most}:
            shown = ", ".join(f"{calls[-1][1]:.4g}" for calls in every[:8])
            self._lines.append(f"{every[0][-1][2]} clips to {shown} on the ranks, to {most:.4g} in"
                               " the single run.")
        norms = [calls[-1][0] for calls in every]
        if all(abs(norm - truth) <= 1e-3 * abs(truth) for norm in norms):
            return
        shown = ", ".join(f"{norm:.4g}" for norm in norms[:8])
        together = math.sqrt(sum(norm * norm for norm in norms))
        more = ("; their squares add up to the latter's" if len(norms) > 1
                and abs(together - truth) <= 1e-3 * truth else "")
        self._lines.append(f"{every[0][-1][2]} saw the norms {shown} on the"
                           f" ranks, {truth:.4g} in the single run{more}.")

    def _judge_clipping_of_one(self, every, is_single):
        """Tells of calls in the single run alone, or on the ranks alone, if they have multiplied
        the gradients by what these are off."""
        if not all(every):
            return
        text = every[0][-1][2]
        factors = [min(1.0, calls[-1][1] / (calls[-1][0] + 1e-6)) for calls in every]
        factor = factors[0]
        if all(abs(x / factor - 1) <= _SAME_FACTOR for x in factors) and all(
                abs(x * (factor if is_single else 1 / factor) - 1) <= _SAME_FACTOR
                for x in self._factors):
            here, there = (("in the single run", "on the ranks") if is_single else
                           ("on the ranks", "in the single run"))
            self._lines.append(f"{text} multiplies p.grad by {factor:.4g} {here}; no such call was"
                               f" seen {there}.")


def _last_rows(every):
    """Returns (the last output that all ranks have, by rank its rows with a gradient), or None."""
    names = [name for name in dict.fromkeys(name for name, _, _ in every[0])
             if all(any(key[0] == name for key in row) for row in every)]
    if not names:
        return None
    return names[-1], [sum(n for key, n in row.items() if key[0] == names[-1]) for row in every]


def _coarsest(seen):
    """Returns the coarsest dtype of modules' outputs and of casts."""
    found = {dtype for row in seen for dtype in (*row["modules"], *row["casts"])}
    if "complex64" in found:
        return "float32"
    return next((d for d in ("bfloat16", "float16", "float32") if d in found), "float64")


def declared(losses, objective):
    known = [loss for loss in losses if loss is not None]
    if not known:
        return None
    return sum(known) if objective == "sum" else sum(known) / len(known)
