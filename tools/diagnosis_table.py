#!/usr/bin/env python3
"""The tables of docs/diagnosis.md: how well wrong backward rules are caught and named.

    cmake --build build --target diagnosis_sweep distgrad distgrad-rank
    tools/diagnosis_table.py --build build --python build/torch-2.15.0/bin/python

Random scenarios (tools/random_scenarios.py) are mutated in every collective by every hypothesis of
the diagnosis (build/bench/diagnosis_sweep): alone, two at once, and on real ranks. Then variants of
the scenarios are run by right ranks, none of which may be accused. Printed is Markdown; what was not
caught or not named goes to standard error, as does any right program that was accused.
"""

import argparse
import collections
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

KINDS = ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "reduce_scatter", "scatter",
         "all_to_all", "send_recv", "copy", "slice")
COLUMNS = KINDS + ("sync",)  # what is done with a gradient after backward
DTYPES = ("float64", "float64", "float32", "bfloat16", "float16")


OPS = {kind: ("sum", "avg", "product", "min", "max", "premul_sum")
       for kind in ("all_reduce", "reduce", "reduce_scatter")}


def directed(rng, kind, op):
    """A program in which what random ones seldom have is frequent: ties, zeros, transposed cotangents
    and operands, cotangents that two consumers share, groups in another order than the world's."""
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
    if kind in ("reduce", "broadcast", "gather", "scatter"):
        body["root"] = rng.randrange(n)
    if kind == "send_recv":
        body["pairs"] = [[i, (i + 1) % n] for i in range(n)]
    if kind in ("all_gather", "gather") and rng.random() < 0.5:
        body["dim"] = rng.randrange(2)
    if group:
        body["group"] = group
    scenario["inputs"] = {"x": {"random": values}, "w": {"random": {
        "shape": values["shape"], "seed": values["seed"] + 1, "kind": "normal"}}}
    shared = [{"s": "y + w"}] if kind in ("all_reduce", "reduce", "broadcast", "copy") else [{"s": "y * 2"}]
    scenario["steps"] = [{"y": body}, *shared]
    use = "s.transpose(0, 1)"
    scenario["loss"] = rng.choice((f"((rank + 1) * {use} * {use}).sum()", f"(torch.sin({use} + rank) * {use}).sum()"))
    scenario["objective"] = "sum"
    return scenario


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


def sweep(options, files, *flags):
    command = [f"{options.build}/bench/diagnosis_sweep", "--seconds", str(options.seconds),
               "--seed", str(options.seed), *flags, *files]
    output = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    names = ("rule", "finding", "kind", "op", "caught", "named", "first", "simpler", "us", "found", "where")
    rows = []
    for line in output.splitlines():
        row = dict(zip(names, line.split("\t")))
        for name in ("caught", "named", "first", "simpler", "us"):
            row[name] = int(row[name])
        if not row["caught"] or not (row["named"] or row["simpler"]):
            print(f"{' '.join(flags) or 'single'}: {row}", file=sys.stderr)
        rows.append(row)
    return rows


def print_by_kind(rows):
    cells = collections.defaultdict(Tally)
    for row in rows:
        for rule in (row["rule"], "all"):
            for kind in (row["kind"], "all"):
                cells[rule, kind].add(row)
    finding = {row["rule"]: row["finding"] for row in rows}
    print("| mutant | finding | " + " | ".join(COLUMNS) + " | all |")
    print("| --- " * (len(COLUMNS) + 3) + "|")
    for rule in sorted(finding, key=lambda r: (finding[r], r)) + ["all"]:
        texts = [cells[rule, kind].text() for kind in COLUMNS + ("all",)]
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


def print_summary(title, rows):
    t = Tally()
    for row in rows:
        t.add(row)
    times = sorted(row["us"] for row in rows) or [0]
    at = lambda q: f"{times[min(len(times) - 1, int(q * len(times)))] / 1000:.0f}"
    print(f"| {title} | {t.all} | {percent(t.caught, t.all)} | {percent(t.named, t.all)} | "
          f"{percent(t.first, t.all)} | {at(0.5)} | {at(0.95)} | {at(1)} |")


def varied(rng, scenario):
    """Another program of the same shape: other values and another dtype."""
    def other(value):
        if isinstance(value, list):
            return [other(v) for v in value]
        return value + rng.choice((-1, -0.5, 0, 0, 0.25, 1)) if isinstance(value, (int, float)) else value

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
    """Not where an invariant input's gradient must be complete on each rank, as under Megatron's rules
    alone, nor where a sync divides a sum that is meant."""
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
    parser.add_argument("--seconds", type=int, default=50, help="for each of the five sweeps")
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
        single = sweep(options, aimed) + sweep(options, files)
        pairs = sweep(options, files, "--pairs")
        ranks = sweep(options, aimed, "--ranks") + sweep(options, files, "--ranks")
        print_by_kind(single)
        print()
        print_by_finding(single)
        print("\n| sweep | mutants | caught, % | named, % | named first, % | median, ms | 95 %, ms |"
              " longest, ms |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
        print_summary("one collective, simulated", single)
        print_summary("two collectives, simulated", [row for row in pairs if not row["simpler"]])
        print_summary("the same that one mistake explains, too", [row for row in pairs if row["simpler"]])
        print_summary("one collective, real ranks", ranks)
        right = judge_right_programs(options, files, folder)
        print(f"\nRight programs on real ranks: {right['judged']}; match {right['match']}, disputed "
              f"{right['disputed']}, accused {right['mismatch']}, errors {right['error']}.")


if __name__ == "__main__":
    main()
