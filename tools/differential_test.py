#!/usr/bin/env python3
"""Holds distgrad against the independent oracle on random programs.

    tools/differential_test.py --distgrad build/bin/distgrad --count 500 --seed 1

Random scenarios (tools/random_scenarios.py) go through `distgrad run` in batches, each with
`reference` and a few libraries as subjects. Checked of each case: that the tool takes the file or
refuses it as the oracle does; losses and truth; which objectives match; the observed gradients of
every subject that the oracle can predict; that the verdict follows from observed and truth; and
that `reference` is right. What differs is printed and its file kept.
"""

import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

import torch

import oracle
import random_scenarios
from oracle_rules import SUBJECTS, Invalid, NotOffered, Raises, adjoint, raises, rule_of

# How far rounding may carry a gradient of these programs, and how far a wrong one is off at least,
# both relative to the largest element.
TINY = 1e-6  # what cancels to less than this is zero, of which no relative error is asked
ROUNDING = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 0.3, "float16": 0.05}


def offered(case, subject):
    for step in case.scenario["steps"]:
        for name, body in step.items():
            if isinstance(body, dict):
                kind = next(k for k in body if k in oracle.COLLECTIVES)
                options = {k: v for k, v in body.items() if k not in (kind, "group")}
                try:
                    rule_of(subject, oracle.Call(name, kind, options))
                except NotOffered:
                    return False
    return True


def choose_subjects(seed, scenario, most):
    """`reference`, libraries that offer every collective of the program, seldom any other."""
    rng = random.Random(seed + 1)
    case = next(oracle.expand("", scenario))
    fitting = [s for s in SUBJECTS if s != "reference" and offered(case, s)]
    chosen = ["reference"] + rng.sample(fitting, min(most, len(fitting)))
    if rng.random() < 0.1:
        chosen.append(rng.choice([s for s in SUBJECTS if s not in chosen]))
    return {s: "match" for s in chosen}


def tensor(value, like):
    return None if value is None else oracle.tensor_of(value).reshape(like.shape)


def distance(a, b):
    """The largest difference relative to the largest element; infinite where shapes differ."""
    if a.shape != b.shape:
        return float("inf")
    if not a.numel():
        return 0.0
    if not bool((torch.isnan(a) == torch.isnan(b)).all()):
        return float("inf")
    a, b = a.nan_to_num(), b.nan_to_num()
    scale = max(a.abs().max().item(), b.abs().max().item(), TINY)
    return (a - b).abs().max().item() / scale


def meaning(objective, world):
    """An objective's words along the axes of more than one rank; on the others all mean one."""
    words = dict(part.split("=") for part in objective.split("+") if "=" in part)
    if objective.startswith("rank:"):
        return objective
    return tuple(words.get(a, objective) for a, size in world.axes if size > 1)


class Comparison:
    """One file's report against the oracle; `complaints` lists what differs."""

    def __init__(self, scenario, branches):
        self.scenario, self.branches = scenario, branches
        self.complaints = []
        self.counts = collections.Counter()
        self.truths, self.invalid = None, None
        try:
            self.cases = {c.subject: c for c in oracle.expand("", scenario)}
            self.truths = oracle.Truths(self.cases["reference"])
        except Invalid as e:
            self.invalid = str(e)

    def complain(self, text):
        self.complaints.append(text)

    def check_invalid(self, message):
        if self.invalid is None:
            self.complain(f"refused by the tool alone: {message}")
        self.counts["refused by both"] += 1

    def check(self, row):
        subject = row["subject"]
        if self.invalid is not None:
            self.complain(f"{subject}: refused by the oracle alone: {self.invalid}")
            return
        case = self.cases[subject]
        self.counts[row["verdict"]] += 1
        self.counts["cases"] += 1
        predicted = self.predict(case)
        if isinstance(predicted, str):
            if predicted != "unknown" and row["verdict"] != predicted:
                self.complain(f"{subject}: verdict {row['verdict']}, the oracle says {predicted}: "
                              f"{row['why']} {row.get('error')}")
            if row["verdict"] in ("skipped", "error"):
                return
        elif (case.subject == "in_place" and row["verdict"] == "error" and
              row["error"]["kind"] == "exception"):
            self.counts["refused by the backend"] += 1  # Gloo has no uneven or premul_sum calls
            return
        elif (row["verdict"] == "error" and "not implemented" in row["error"]["message"] and
              self.may_raise(case)):
            # The tool's ranks reach every collective's backward, the oracle's graph need not
            return
        elif row["verdict"] in ("skipped", "error"):
            self.complain(f"{subject}: {row['verdict']}: {row['why']} {row.get('error')}")
            return
        self.check_losses(row)
        for name, entry in row["gradients"].items():
            self.check_truth(case, name, entry, subject)
        observed = self.observed(case, row)
        if not isinstance(predicted, str):
            self.check_observed(case, row, observed, predicted)
        self.check_verdict(case, row, observed)
        self.check_matches(case, row, observed)

    def predict(self, case):
        """The gradients, or the verdict where there are none, or `unknown`."""
        try:
            _, grads = oracle.observe(case, lambda call: rule_of(case.subject, call),
                                      case.subject == "reference", case.dtype)
            return grads
        except NotOffered:
            return "skipped"
        except Raises as e:
            return "unknown" if "not emulated" in str(e) else "error"
        except RuntimeError:  # a rule that these shapes do not suit
            return "error"

    @staticmethod
    def may_raise(case):
        found = []

        def note(call):
            found.append(rule_of(case.subject, call) is raises)
            return adjoint

        oracle.observe(case, note, False, case.dtype)
        return any(found)

    def check_losses(self, row):
        dtype = row["dtype"]
        for what, bound in (("simulated", 1e-9), ("distributed", ROUNDING[dtype])):
            got = oracle.tensor_of(row["losses"][what])
            want = torch.tensor(self.truths.losses, dtype=torch.float64)
            if distance(got, want) > bound and not (self.branches and bound > 1e-9):
                self.complain(f"{row['subject']}: {what} losses {got.tolist()}, "
                              f"the oracle's {want.tolist()}")

    def check_truth(self, case, name, entry, subject):
        want = self.truths.gradients[name]
        got = entry["truth"]
        got = got["by_rank"] if case.inputs[name].local else [got["full"]]
        for r, (g, w) in enumerate(zip(got, want)):
            if distance(tensor(g, w), w) > 1e-9:
                self.complain(f"{subject}: truth of {name} at {r} is {g}, "
                              f"the oracle's {w.tolist()}")

    def observed(self, case, row):
        result = {}
        for name, entry in row["gradients"].items():
            spec = case.inputs[name]
            held = [spec.values[r] if spec.local else spec.view(spec.values[0], r)
                    for r in range(case.world.size)]
            result[name] = [tensor(v, h) for v, h in zip(entry["observed"]["by_rank"], held)]
        return result

    def check_observed(self, case, row, observed, predicted):
        if set(observed) != set(predicted):
            self.complain(f"{row['subject']}: inputs {sorted(observed)}, "
                          f"the oracle's {sorted(predicted)}")
            return
        for name, ours in predicted.items():
            theirs = observed[name]
            scale = max((g.abs().max().item() for g in ours + theirs
                         if g is not None and g.numel()), default=0.0)
            for r, (a, b) in enumerate(zip(theirs, ours)):
                if (a is None) != (b is None):
                    # A None that is zero elsewhere is told apart below, by the verdict.
                    other = b if a is None else a
                    self.counts["None against zeros"] += 1
                    if other.numel() and other.abs().max() > ROUNDING[case.dtype] * scale:
                        self.complain(f"{row['subject']}: {name} on rank {r} is {a}, oracle {b}")
                elif a is not None and a.numel():
                    self.check_close(row, name, r, a, b, scale)

    def check_close(self, row, name, r, a, b, scale):
        finite = torch.isfinite(b)
        if not bool((torch.isfinite(a) == finite).all()):
            self.complain(f"{row['subject']}: {name} on rank {r} is {a.tolist()}, "
                          f"oracle {b.tolist()}")
            return
        error = (a - b)[finite].abs()
        bound = max(ROUNDING[row["dtype"]] * scale, 2 * (row["gradients"][name]["bound"] or 0))
        if error.numel() and error.max() > bound:
            if self.branches and row["dtype"] != "float64":
                self.counts["branch taken otherwise"] += 1
                return
            self.complain(f"{row['subject']}: {name} on rank {r} is {a.tolist()}, "
                          f"oracle {b.tolist()}")

    def apart(self, case, name, grads, want):
        """How far an input's gradient is from a truth: 0 is right, 1 as large as the truth."""
        spec = case.inputs[name]
        if spec.local:
            pairs = list(zip(grads, want))
        else:
            full = spec.joined(grads, set(case.sync.get(name, {})))
            pairs = [(f, want[0]) for f in full]
        scale = max((w.abs().max().item() for _, w in pairs if w.numel()), default=0.0)
        scale, worst = max(scale, TINY), 0.0
        for got, w in pairs:
            if got is None:
                worst = float("inf") if bool((w.abs() > TINY).any()) else worst
            elif w.numel():
                if not bool(torch.isfinite(got).all()):
                    return float("inf")
                error = (got - w).abs().max().item()
                worst = max(worst, error / scale)
        return worst

    def must_match(self, case):
        """Whether the adjoint satisfies the scenario, which these two may prevent."""
        if any(kind == "invariant" for spec in case.inputs.values() for _, _, kind in spec.layout):
            return False
        _, left = oracle.run_weights(case, True)
        averaged = {a for how in case.sync.values() for a, word in how.items() if word == "mean"}
        return averaged <= left

    def check_verdict(self, case, row, observed):
        subject, verdict = row["subject"], row["verdict"]
        worst = max(self.apart(case, n, observed[n], self.truths.gradients[n]) for n in observed)
        if subject == "reference" and verdict != "match" and self.must_match(case):
            if verdict != "disputed" or not self.branches or case.dtype == "float64":
                self.complain(f"reference: {verdict} {row['why']}")
        if verdict == "match" and worst > self.rounding(case, row, row["gradients"]):
            self.complain(f"{subject}: match, though {worst:.3g} off")
        eps = torch.finfo(oracle.DTYPES[case.dtype]).eps
        if verdict == "mismatch" and worst <= eps:
            self.complain(f"{subject}: mismatch, though only {worst:.3g} off: {row['why']}")
        if verdict == "disputed" and not self.branches:
            self.complain(f"{subject}: disputed without a branch: {row['why']}")
        if verdict == "mismatch" and not row["findings"]:
            self.complain(f"{subject}: a mismatch without a finding")

    def rounding(self, case, row, names):
        """What may pass for rounding. The derived bound of a narrow dtype may be far wider than
        usual where the program saturates; it is taken at its word there, but counted."""
        usual = ROUNDING[case.dtype]
        if case.dtype == "float64":
            return usual
        widest = usual
        for name in names:
            size = max((w.abs().max().item() for w in self.truths.gradients[name] if w.numel()),
                       default=0.0)
            bound = row["gradients"][name]["bound"] or 0.0
            widest = max(widest, 1.01 * bound / max(size, TINY))
        if widest > usual:
            self.counts["wide bound"] += 1
        return widest

    def check_matches(self, case, row, observed):
        for name, entry in row["gradients"].items():
            defined = {meaning(o, case.world) for o in self.truths.by_objective}
            if {meaning(o, case.world) for o in entry["matches"]} != defined:
                self.complain(f"{row['subject']}: matches of {name} has "
                              f"{sorted(entry['matches'])}, the oracle "
                              f"{sorted(self.truths.by_objective)}")
                continue
            usual = self.rounding(case, row, [name])
            for objective, declared in entry["matches"].items():
                off = self.apart(case, name, observed[name],
                                 self.truths.by_objective[objective][name])
                eps = torch.finfo(oracle.DTYPES[case.dtype]).eps
                if declared and off > usual or not declared and off <= eps:
                    self.complain(f"{row['subject']}: matches of {name} under {objective} is "
                                  f"{declared}, {off:.3g} off")


def run_batch(distgrad, folder):
    report = os.path.join(folder, "report.json")
    programs = os.path.join(folder, "programs")
    done = subprocess.run([distgrad, "run", programs, "--quiet", "--full", "--json", report],
                          capture_output=True, text=True, timeout=900, check=False)
    if not os.path.exists(report):
        sys.exit(f"no report; exit code {done.returncode}\n{done.stderr[-2000:]}")
    with open(report, encoding="utf-8") as f:
        return json.load(f)


def stem(path):
    return os.path.splitext(os.path.basename(path))[0]


def batch(options, seeds, total):
    """Draws, runs and compares one batch; returns the number of files that differ."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "programs"))
        comparisons = {}
        for seed in seeds:
            drawn = random_scenarios.draw(seed)
            if drawn is None:
                continue
            scenario, branches = drawn
            scenario["subjects"] = choose_subjects(seed, scenario, options.subjects)
            with open(os.path.join(folder, "programs", f"{seed}.json"), "w",
                      encoding="utf-8") as f:
                json.dump(scenario, f, indent=1)
            comparisons[str(seed)] = Comparison(scenario, branches)
        report = run_batch(options.distgrad, folder)
        seen = set()
        for entry in report["invalid"]:
            seen.add(stem(entry["file"]))
            comparisons[stem(entry["file"])].check_invalid(entry["message"])
        for row in report["cases"]:
            seen.add(stem(row["file"]))
            comparisons[stem(row["file"])].check(row)
        return tell(options, folder, comparisons, seen, total)


def tell(options, folder, comparisons, seen, total):
    bad = 0
    for name, comparison in comparisons.items():
        if name not in seen:
            comparison.complain("missing from the report")
        total.update(comparison.counts)
        total["programs"] += 1
        if comparison.complaints:
            bad += 1
            for complaint in comparison.complaints:
                print(f"{name}: {complaint[:options.width]}")
            if options.keep:
                os.makedirs(options.keep, exist_ok=True)
                shutil.copy(os.path.join(folder, "programs", f"{name}.json"), options.keep)
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--distgrad", default="distgrad", metavar="PATH")
    parser.add_argument("--count", type=int, default=200, help="programs (200)")
    parser.add_argument("--seed", type=int, default=0, help="the first program's seed (0)")
    parser.add_argument("--batch", type=int, default=100, help="programs in one run (100)")
    parser.add_argument("--subjects", type=int, default=2, help="libraries beside reference (2)")
    parser.add_argument("--keep", metavar="FOLDER", help="where files that differ are kept")
    parser.add_argument("--width", type=int, default=600, help="characters of a complaint")
    options = parser.parse_args()
    torch.set_num_threads(1)
    total, bad = collections.Counter(), 0
    for first in range(options.seed, options.seed + options.count, options.batch):
        seeds = range(first, min(first + options.batch, options.seed + options.count))
        bad += batch(options, seeds, total)
    print(", ".join(f"{n} {what}" for what, n in total.most_common()))
    print(f"{bad} programs differ")
    return 1 if bad or not total["cases"] else 0


if __name__ == "__main__":
    sys.exit(main())
