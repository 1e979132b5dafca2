#!/usr/bin/env python3
"""The tables of docs/diagnosis.md: how well wrong backwards are caught and named.

    tools/diagnosis_table.py --build build/release-2.15.0 --python build/torch-2.15.0/bin/python

Random scenarios (tools/random_scenarios.py), and some aimed at what random ones seldom have, are
run on real ranks with wrong backwards in their collectives: `mutant:STEP=WHAT`, alone, two and
three at once. Then variants of the scenarios are run by right ranks, none of which may be accused.
Printed is Markdown; what was not caught or not named goes to standard error, as does any right
program that was accused.
"""

import argparse
import collections
import glob
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

from collective_traits import (COMMUNICATES, JOINING, KEEPS_SHAPE, KINDS, REDUCING, ROOTED,
                               TRAITS, of_shape)

DTYPES = ("float64", "float64", "float32", "bfloat16", "float16")


OPS = {kind: ("sum", "avg", "product", "min", "max", "premul_sum") for kind in REDUCING}


def directed(rng, kind, op):
    """A program in which what random ones seldom have is frequent: ties, zeros, transposed
    cotangents and operands, cotangents that two consumers share, groups in another order than the
    world's."""
    size = rng.choice((3, 4, 4, 5, 6))
    scenario = {"world_size": size, "dtype": rng.choice(("float64", "float64", "float32"))}
    group, n = None, size
    if size in (4, 6) and rng.random() < 0.6:
        n = size // 2
        ranks = rng.sample(range(size), size)
        scenario["groups"] = {"part": [ranks[:n], ranks[n:]]}
        group = "part"
    values = {"shape": [2 * n, 2 * n], "seed": rng.randrange(1 << 20)}
    exact = op in ("product", "min", "max") and rng.random() < 0.7
    values.update({"kind": "integers", "low": -1, "high": 2} if exact else {"kind": "normal"})
    body = {kind: rng.choice(("x", "x.t()", "(x * 1)")), **({"op": op} if op else {})}
    if op == "premul_sum":
        body["factor"] = 1.5
    if kind in ROOTED:
        body["root"] = rng.randrange(n)
    if kind == "send_recv":
        body["pairs"] = [[i, (i + 1) % n] for i in range(n)]
    if kind in JOINING and rng.random() < 0.5:
        body["dim"] = rng.randrange(2)
    if group:
        body["group"] = group
    scenario["inputs"] = {"x": {"random": values}, "w": {"random": {
        "shape": values["shape"], "seed": values["seed"] + 1, "kind": "normal"}}}
    shared = ([{"s": "y + w"}] if kind in KEEPS_SHAPE
              else [{"s": "y * 2"}])
    scenario["steps"] = [{"y": body}, *shared]
    use = "s.transpose(0, 1)"
    scenario["loss"] = rng.choice(
        (f"((rank + 1) * {use} * {use}).sum()", f"(torch.sin({use} + rank) * {use}).sum()"))
    scenario["objective"] = "sum"
    return scenario


def composed(rng):
    """A program of two to six collectives, in the world and along the axes of a mesh, each of which
    the loss sees: what several mistakes at once need."""
    mesh = rng.choice(({"dp": 2, "tp": 2}, {"dp": 3, "tp": 2}, {"dp": 2, "tp": 3}, {"tp": 4}))
    size = world_size_of({"mesh": mesh})
    side = size * max(mesh.values())
    scenario = {"mesh": mesh, "dtype": rng.choice(("float64", "float64", "float32")),
                "inputs": {"x": {"random": {"shape": [side, 2], "seed": rng.randrange(1 << 20),
                                            "kind": "normal"}}},
                "steps": [], "objective": "sum"}
    value, seen = "x", []
    for i in range(rng.randint(2, 6)):
        group = rng.choice((*mesh, "world"))
        n = mesh.get(group, size)
        place = {} if group == "world" else {"group": group}
        operand = rng.choice((value, f"torch.sin({value})", f"({value} * (rank + 1))"))
        root = rng.randrange(n)
        body, value_of = rng.choice(
            (({"all_reduce": operand, "op": rng.choice(("sum", "avg", "max", "min"))}, "{}"),
             ({"broadcast": operand, "root": root}, "{}"),
             ({"send_recv": operand, "pairs": [[j, (j + 1) % n] for j in range(n)]}, "{}"),
             ({"all_to_all": operand}, "{}"),
             ({"all_gather": operand, "dim": 0},
              "({}.reshape([%d, %d, 2]) * torch.ones([%d, 1, 2])).sum(0)" % (n, side, n)),
             ({"all_gather": operand, "dim": 0}, "{}[%d:%d]" % (side * root, side * (root + 1))),
             ({"reduce_scatter": operand, "op": rng.choice(("sum", "avg"))},
              "torch.cat([%s])" % ", ".join(["{0}"] * n))))
        scenario["steps"].append({f"y{i}": {**body, **place}})
        value = f"v{i}"
        scenario["steps"].append({value: value_of.format(f"y{i}")})
        if rng.random() < 0.5:
            seen.append(value)
    terms = [f"((rank + {k + 1}) * torch.sin({v} + rank) * {v}).sum()"
             for k, v in enumerate({*seen, value})]
    scenario["loss"] = " + ".join(terms)
    return scenario


def write_composed(seed, folder, count):
    rng = random.Random(seed)
    os.makedirs(folder, exist_ok=True)
    paths = [os.path.join(folder, f"composed-{i}.json") for i in range(count)]
    for path in paths:
        with open(path, "w", encoding="utf-8") as f:
            json.dump(composed(rng), f)
    return paths


def write_directed(seed, folder, count):
    """Files for every kind and op, `count` of each."""
    rng = random.Random(seed)
    os.makedirs(folder, exist_ok=True)
    for kind in KINDS:
        for op in OPS.get(kind, ("",)):
            for i in range(count):
                path = os.path.join(folder, f"directed-{kind}-{op}-{i}.json")
                with open(path, "w", encoding="utf-8") as f:
                    json.dump(directed(rng, kind, op), f)
    return sorted(glob.glob(os.path.join(folder, "directed-*.json")))


class Tally:
    """Mutants of one cell of a table."""

    def __init__(self):
        self.all = self.caught = self.named = self.first = 0

    def add(self, row):
        self.all += 1
        self.caught += row["caught"]
        self.named += row["named"]
        self.first += row["first"]

    def text(self):
        if not self.all:
            return ""
        return f"{percent(self.caught, self.all)}, {percent(self.named, self.all)} ({self.all})"


def percent(part, whole):
    """Rounded down: 100 is said of all only."""
    return str(100 * part // whole) if whole else "-"


# --- Mutants: what each is, where it differs from the adjoint, and the findings true of it ---

IN_PLACE = tuple(kind for kind in KEEPS_SHAPE if kind in COMMUNICATES)
EXCHANGES = of_shape("exchanged", "sender")
LINEAR = ("", "sum", "avg", "premul_sum")
NARROW = {"in_float32": ("float64",), "in_float16": ("float64", "float32"),
          "in_bfloat16": ("float64", "float32")}


def has_rows(kind, op):
    """The ranks' operands have cotangents of their own, not one that all share."""
    return kind in JOINING + EXCHANGES or op not in LINEAR


def has_columns(kind, op):
    return kind in COMMUNICATES and kind in of_shape("chunk") + EXCHANGES


# name: (findings that are true of it, the first being its own; where it applies, by kind and op)
MUTANTS = {
    "identity": (("identity-backward",), lambda k, op: k in IN_PLACE),
    "same_op": (("same-op-backward",),
                lambda k, op: k == "all_reduce" and op in ("product", "min", "max")),
    "forgotten_op": (("forgotten-op",), lambda k, op: op not in ("", "sum")),
    "own_slice": (("own-slice",), lambda k, op: k == "all_gather"),
    "sum_to_all": (("double-reduction", "forgotten-op", "scaled"),
                   lambda k, op: k in KEEPS_SHAPE and (k, op) != ("all_reduce", "sum")),
    "gather": (("wrong-slice",), lambda k, op: k == "slice"),
    "divided": (("scaled",), lambda k, op: k in COMMUNICATES),
    "multiplied": (("scaled", "double-reduction", "forgotten-op"), lambda k, op: k in COMMUNICATES),
    "out_over_x": (("zero-input", "missing-reduction"),
                   lambda k, op: k == "all_reduce" and op == "product"),
    "own_full_to_ties": (("tie", "missing-reduction"),
                         lambda k, op: k == "all_reduce" and op in ("min", "max")),
    "full_to_ties": (("tie", "forgotten-op"),
                     lambda k, op: k == "all_reduce" and op in ("min", "max")),
    "partial_sums_off_root": (("stale-or-aliased",), lambda k, op: k == "broadcast"),
    "own_part": (("missing-reduction", "no-gradient", "identity-backward"),
                 lambda k, op: (k in COMMUNICATES and k != "all_gather"
                                and (k, op) != ("all_reduce", "sum"))),
    "others_part": (("missing-reduction", "no-gradient"), lambda k, op: k in COMMUNICATES),
    "reduced_twice": (("double-reduction", "forgotten-op", "scaled"),
                      lambda k, op: k in ("all_gather", "all_to_all") or op not in LINEAR),
    "next_slice": (("wrong-slice", "other-backward", "group-rank"), has_rows),
    "previous_slice": (("wrong-slice", "other-backward", "group-rank"), has_rows),
    "mirrored_slice": (("wrong-slice", "other-backward", "group-rank"), has_rows),
    "first_slice": (("wrong-slice",), lambda k, op: k in JOINING),
    "own_slices_summed": (("wrong-slice",), lambda k, op: k == "all_gather"),
    "next_cotangent": (("wrong-slice", "group-rank"), has_columns),
    "previous_cotangent": (("wrong-slice", "group-rank"), has_columns),
    "mirrored_cotangent": (("wrong-slice", "group-rank"), has_columns),
    "first_place": (("wrong-slice",), lambda k, op: k == "slice"),
    "not_exchanged": (("wrong-slice",), lambda k, op: k in EXCHANGES),
    "sent_forward": (("wrong-slice",), lambda k, op: k == "send_recv"),
    "all_to_each_tie": (("tie",), lambda k, op: k != "all_reduce" and op in ("min", "max")),
    "all_to_first_tie": (("tie",), lambda k, op: op in ("min", "max")),
    "total_out_over_x_or_0": (("zero-input",), lambda k, op: op == "product"),
    "as_stored": (("contiguity",), lambda k, op: True),
    "operand_as_stored": (("contiguity",), lambda k, op: op not in LINEAR),
    "overwritten": (("stale-or-aliased",), lambda k, op: k in IN_PLACE),
    "in_float32": (("precision",), lambda k, op: True),
    "in_float16": (("precision",), lambda k, op: True),
    "in_bfloat16": (("precision",), lambda k, op: True),
    "none": (("no-gradient",), lambda k, op: True),
    "without": (("missing-reduction", "identity-backward", "own-slice", "no-gradient"),
                lambda k, op: k in COMMUNICATES and not TRAITS[k].only_on_root),
    "root": (("wrong-slice", "group-rank"),
             lambda k, op: k in ROOTED),
    "group": (("wrong-group",), lambda k, op: k in COMMUNICATES),
    "order": (("group-rank", "wrong-slice"), lambda k, op: k in COMMUNICATES),
    "linear": (("other-backward", "missing-reduction", "wrong-slice", "scaled", "no-gradient",
                "identity-backward"), lambda k, op: k in COMMUNICATES),
}


def mutants_of(rng, scenario, step, body):
    """Texts of what can go wrong in this step's backward: `without:2`, `identity`."""
    kind = next(k for k in KINDS if k in body)
    op = body.get("op", "sum") if kind in OPS else ""
    size = world_size_of(scenario)
    groups = [name for name in list(scenario.get("groups", {})) + list(scenario.get("mesh", {}))]
    texts = []
    for name, (_, applies) in MUTANTS.items():
        dtypes = NARROW.get(name, DTYPES)
        if not applies(kind, op) or scenario.get("dtype", "float64") not in dtypes:
            continue
        if name == "without":
            texts.append(f"without:{rng.randrange(size)}")
        elif name == "root":
            texts += [f"root:{r}" for r in range(2) if r != body.get("root", 0)]
        elif name == "group":
            texts += [f"group:{g}" for g in groups + ["world"] if g != body.get("group", "world")]
        elif name == "order":
            if body.get("group"):
                texts += [f"order:{o}" for o in ("sorted", "world_rank", "world_root")]
        elif name == "linear":
            texts.append(f"linear:{rng.randrange(1 << 20)}")
        else:
            texts.append(name)
    return kind, op, texts


def world_size_of(scenario):
    size = scenario.get("world_size")
    if size is None:
        size = 1
        for length in scenario["mesh"].values():
            size *= length
    return max(size) if isinstance(size, list) else size


def collectives_of(scenario):
    return [(name, body) for step in scenario["steps"] for name, body in step.items()
            if isinstance(body, dict)]


def mutate(rng, scenario, at_once, most):
    """Subjects for this scenario: text -> [(step, kind, op, mutant)]. Of several at once a few."""
    steps = collectives_of(scenario)
    choices = {name: mutants_of(rng, scenario, name, body) for name, body in steps}
    if at_once == 1:
        singles = [(name, kind, op, text) for name, (kind, op, texts) in choices.items()
                   for text in texts]
        return {subject_of([part]): [part] for part in rng.sample(singles, min(most, len(singles)))}
    subjects = {}
    usable = [name for name, (_, _, texts) in choices.items() if texts]
    for _ in range(most):
        if len(usable) < at_once:
            break
        parts = []
        for name in sorted(rng.sample(usable, at_once)):
            kind, op, texts = choices[name]
            parts.append((name, kind, op, rng.choice(texts)))
        subjects[subject_of(parts)] = parts
    return subjects


def without(parts, left_out):
    """The subject with all these mutants but one."""
    return subject_of([part for part in parts if part is not left_out])


def subject_of(parts):
    return "mutant:" + "+".join(f"{name}={text}" for name, _, _, text in parts)


def run_batch(options, folder):
    report = os.path.join(folder, "report.json")
    start = time.monotonic()
    subprocess.run([f"{options.build}/bin/distgrad", "run", "--quiet", "--json", report, folder],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    seconds = time.monotonic() - start
    with open(report, encoding="utf-8") as f:
        return json.load(f)["cases"], seconds


def sweep(options, files, at_once=1):
    """A row a subject whose every mutant moves some gradient; the time of all, in seconds; and how
    many cases were run."""
    rng = random.Random(options.seed)
    rows, folder = [], tempfile.mkdtemp()
    planted = {}
    for number, path in enumerate(files):
        with open(path, encoding="utf-8") as f:
            scenario = json.load(f)
        if world_size_of(scenario) < 3 or "sync" in scenario or not can_be_right(path):
            continue
        if "replicated" in json.dumps(scenario["objective"]):
            scenario["objective"] = "sum"  # of that one the adjoint itself is no right rule
        subjects = mutate(rng, scenario, at_once, options.mutants)
        if not subjects:
            continue
        alone = {without(parts, part) for parts in subjects.values() for part in parts
                 if at_once > 1}
        scenario["subjects"] = {subject: "match" for subject in {*subjects, *alone}}
        name = os.path.join(folder, f"{number}.json")
        with open(name, "w", encoding="utf-8") as f:
            json.dump(scenario, f)
        planted[name] = subjects
    cases, seconds = run_batch(options, folder)
    by_subject = {(case["file"], case["subject"]): case for case in cases}
    for file, subjects in planted.items():
        for subject, parts in subjects.items():
            case = by_subject[file, subject]
            if case["verdict"] == "error":
                print(f"error: {case['id']}: {case['error']}", file=sys.stderr)
            fewer = [by_subject[file, without(parts, part)] for part in parts if at_once > 1]
            if case["verdict"] == "mismatch" and all(gives_another_gradient(case, other)
                                                     for other in fewer):
                rows.append(row_of(case, parts))
    shutil.rmtree(folder)
    return rows, seconds, len(cases)


def gives_another_gradient(case, other):
    """Whether the mutant that only `case` has does anything beside the others: a call that gets no
    cotangent any more, or the same one for each slice, cannot be told from a right one."""
    if other["verdict"] not in ("match", "mismatch"):
        return False
    room = 1e-11 if case["dtype"] == "float64" else 1e-5
    for name, gradient in case["gradients"].items():
        ours = numbers_of(gradient["observed"])
        theirs = numbers_of(other["gradients"][name]["observed"])
        if len(ours) != len(theirs):
            return True
        largest = max((abs(v) for v in ours + theirs), default=0)
        if any(abs(a - b) > room * largest for a, b in zip(ours, theirs)):
            return True
    return False


def numbers_of(value):
    """All numbers in nested lists and objects, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for item in value for number in numbers_of(item)]
    return [value] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


def row_of(case, parts):
    found = [(f["rule"], f["step"]) for f in case["findings"]]
    named = [any(rule in MUTANTS[text.partition(":")[0]][0] and at == step for rule, at in found)
             for step, _, _, text in parts]
    blamed = {at for _, at in found if at}
    row = {"rule": "+".join(text.partition(":")[0] for _, _, _, text in parts),
           "finding": "+".join(MUTANTS[text.partition(":")[0]][0][0] for _, _, _, text in parts),
           "kind": parts[0][1], "caught": 1, "named": int(all(named)),
           "first": int(bool(found) and found[0][0] in MUTANTS[parts[0][3].partition(":")[0]][0]),
           "wrongly": int(bool(blamed - {step for step, _, _, _ in parts}))}
    if not row["named"] or row["wrongly"]:
        print(f"{case['id']}: {found}", file=sys.stderr)
    return row


def print_by_kind(rows):
    cells = collections.defaultdict(Tally)
    for row in rows:
        for rule in (row["rule"], "all"):
            for kind in (row["kind"], "all"):
                cells[rule, kind].add(row)
    finding = {row["rule"]: row["finding"] for row in rows}
    print("| mutant | finding | " + " | ".join(KINDS) + " | all |")
    print("| --- " * (len(KINDS) + 3) + "|")
    for rule in sorted(finding, key=lambda r: (finding[r], r)) + ["all"]:
        texts = [cells[rule, kind].text() for kind in KINDS + ("all",)]
        print(f"| {rule} | {finding.get(rule, '')} | " + " | ".join(texts) + " |")


def print_by_finding(rows):
    cells = collections.defaultdict(Tally)
    for row in rows:
        cells[row["finding"]].add(row)
        cells["all"].add(row)
    print("| finding | mutants | caught, % | named, % | named first, % |")
    print("| --- | --- | --- | --- | --- |")
    for name in sorted(cells, key=lambda n: (n == "all", n)):
        t = cells[name]
        print(f"| {name} | {t.all} | {percent(t.caught, t.all)} | {percent(t.named, t.all)} | "
              f"{percent(t.first, t.all)} |")


def print_summary(title, rows, seconds, cases):
    t = Tally()
    for row in rows:
        t.add(row)
    wrongly = sum(row["wrongly"] for row in rows)
    print(f"| {title} | {t.all} | {percent(t.named, t.all)} | {percent(t.first, t.all)} | {wrongly}"
          f" | {1000 * seconds / max(1, cases):.1f} |")


def varied(rng, scenario):
    """Another program of the same shape: other values and another dtype."""
    def other(value):
        if isinstance(value, list):
            return [other(v) for v in value]
        return (value + rng.choice((-1, -0.5, 0, 0, 0.25, 1))
                if isinstance(value, (int, float)) else value)

    result = json.loads(json.dumps(scenario))
    result["dtype"] = rng.choice(DTYPES)
    for name, spec in result["inputs"].items():
        if not isinstance(spec, dict):
            result["inputs"][name] = other(spec)
        elif "random" in spec:
            spec["random"]["seed"] = rng.randrange(1 << 30)
        else:
            for key in ("value", "by_rank"):
                if key in spec:
                    spec[key] = other(spec[key])
    return result


def can_be_right(path):
    """Not where an invariant input's gradient must be complete on each rank, as under Megatron's
    rules alone, nor where a sync divides a sum that is meant."""
    with open(path, encoding="utf-8") as f:
        scenario = json.load(f)
    averages = "mean" in json.dumps(scenario.get("sync", {}))
    return ("invariant" not in json.dumps(scenario["inputs"]) and
            (not averages or scenario["objective"] == "mean"))


def judge_right_programs(options, files, folder):
    """Verdicts on programs that right ranks ran on real processes, and how many were judged."""
    rng = random.Random(options.seed)
    files = [path for path in files if can_be_right(path)]
    counts = collections.Counter()
    while counts["judged"] < options.right:
        batch = os.path.join(folder, f"right{counts['batches']}")
        os.makedirs(batch)
        counts["batches"] += 1
        for i in range(2500):
            with open(rng.choice(files), encoding="utf-8") as f:
                scenario = varied(rng, json.load(f))
            with open(os.path.join(batch, f"{i}.json"), "w", encoding="utf-8") as f:
                json.dump(scenario, f)
        report = os.path.join(folder, "report.json")
        subprocess.run([f"{options.build}/bin/distgrad", "run", "--quiet", "--json", report, batch],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        with open(report, encoding="utf-8") as f:
            cases = json.load(f)["cases"]
        for case in cases:
            counts["judged"] += case["verdict"] != "skipped"
            counts[case["verdict"]] += 1
            if case["verdict"] in ("mismatch", "error"):
                print(f"accused: {json.dumps(case)[:2000]}", file=sys.stderr)
                with open(case["file"], encoding="utf-8") as f:
                    print(f.read(), file=sys.stderr)
        if not cases:
            sys.exit("no right program could be run")
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--python", default=sys.executable, help="has torch")
    parser.add_argument("--scenarios", default="", help="a folder of them, instead of new ones")
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutants", type=int, default=12, help="of each scenario, at most")
    parser.add_argument("--right", type=int, default=10000, help="right programs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scenarios = options.scenarios or os.path.join(folder, "scenarios")
        if not options.scenarios:
            tool = os.path.join(os.path.dirname(os.path.abspath(__file__)), "random_scenarios.py")
            subprocess.run([options.python, tool, "--count", str(options.count), "--seed",
                            str(options.seed), scenarios], check=True)
        files = sorted(glob.glob(os.path.join(scenarios, "*.json")))
        random.Random(options.seed).shuffle(files)
        aimed = write_directed(options.seed, os.path.join(folder, "directed"), 4)
        single, seconds, cases = sweep(options, aimed + files)
        print_by_kind(single)
        print()
        print_by_finding(single)
        print(
            "\n| at once | mutants | named, % | named first, % | right steps blamed | ms a case |\n"
            "| --- | --- | --- | --- | --- | --- |")
        print_summary("one", single, seconds, cases)
        several = write_composed(options.seed, os.path.join(folder, "composed"), options.count)
        for count, word in ((2, "two"), (3, "three"), (4, "four")):
            print_summary(word, *sweep(options, several, count))
        right = judge_right_programs(options, files, folder)
        print(
            f"\nRight programs on real ranks: {right['judged']}; match {right['match']}, disputed "
            f"{right['disputed']}, accused {right['mismatch']}, errors {right['error']}.")


if __name__ == "__main__":
    main()
