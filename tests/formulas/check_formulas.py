#!/usr/bin/env python3
"""Random linear backwards, which have no name, on real ranks: is each described exactly?

    tests/formulas/check_formulas.py --distgrad build/release-2.15.0/bin/distgrad --count 400 --seed
    7

The formula that the tool prints is read back (formula.py), and must give the gradient that the
ranks computed, from the cotangents that arrived: of the loss below, the outputs' own derivative.
"""

import argparse
import collections
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))

import formula  # noqa: E402
from collective_traits import COMMUNICATES, JOINING, REDUCING, ROOTED, TRAITS  # noqa: E402


OF_PIECES = re.compile(r"ȳ_(\{[^}]*\}|\w)\[|Σ_b")


def scenario(rng, kind, number):
    size = rng.choice((3, 4, 6))
    ranks, result = size, {"world_size": size, "dtype": "float64"}
    body = {kind: "x"}
    if size != 3 and rng.random() < 0.5:
        ranks, body["group"] = size // 2, "part"
        order = rng.sample(range(size), size)
        result["groups"] = {"part": [order[:ranks], order[ranks:]]}
    if kind in ROOTED:
        body["root"] = rng.randrange(ranks)
    if kind in JOINING:
        body["dim"] = 0
    if kind in REDUCING:
        body["op"] = rng.choice(("sum", "avg"))
    if "pairs" in TRAITS[kind].options:
        body["pairs"] = [[j, (j + 1) % ranks] for j in range(ranks)]
    result["inputs"] = {"x": {"random": {"shape": [2 * ranks, 1], "seed": number,
                                         "kind": "normal"}}}
    # What arrives differs by rank and by element, and is known without the tool.
    rows = "torch.arange(y.numel(), dtype=torch.float64).reshape(y.shape)"
    result["steps"] = [{"y": body}]
    result["loss"] = f"(((rank * 5 + 3 * {rows} + {rows} * {rows}) % 11 - 4) * y).sum()"
    result["objective"] = "sum"
    result["subjects"] = {f"mutant:y=linear:{rng.randrange(1 << 20)}": "match"}
    return result


def cotangent(rank, size):
    return [math.fmod(rank * 5 + 3 * e + e * e, 11) - 4 for e in range(size)]


def ranks_described(case, spec):
    """The ranks, of the world, that the formula's ranks 0, 1, ... may stand for: those of each
    group, or the world's."""
    count = len(case["findings"][0]["measured"]["ranks"])
    groups = spec.get("groups", {}).get("part", [])
    return groups if groups and count < spec["world_size"] else [list(range(spec["world_size"]))]


def is_rebuilt(case, spec, kind):
    measured = case["findings"][0]["measured"]
    text, size = measured["formula"], spec["world_size"]
    group = len(spec["groups"]["part"][0]) if "groups" in spec else size
    operand = 2 * group
    output = {"joined": operand * group, "chunk": 2}.get(TRAITS[kind].shape, operand)
    by_element = ",0]" in text
    pieces_in = operand if by_element else group if "[" in text.split(" = ")[0] else 1
    pieces_out = output if by_element else group if OF_PIECES.search(text) else 1
    seen = case["gradients"]["x"]["observed"]["by_rank"]
    for ranks in ranks_described(case, spec):
        numbers = formula.numbers_of(text, len(ranks), pieces_in, pieces_out)
        for place, rank in enumerate(ranks):
            for e in range(operand):
                piece, inside = divmod(e, operand // pieces_in)
                wanted = sum(
                    number * cotangent(ranks[k], output)[b * (output // pieces_out) + inside]
                    for (k, b), number in numbers[place, piece].items() if number)
                if abs(wanted - seen[rank][e][0]) > 1e-4 * max(1, abs(wanted)):
                    return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--distgrad", required=True)
    parser.add_argument("--count", type=int, default=54)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        specs = {}
        for i in range(options.count):
            kind = COMMUNICATES[i % len(COMMUNICATES)]
            path = os.path.join(folder, f"{i}-{kind}.json")
            specs[path] = (scenario(rng, kind, i), kind)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(specs[path][0], file)
        report = os.path.join(folder, "report.json")
        subprocess.run([options.distgrad, "run", "--quiet", "--json", report, *specs], check=False,
                       stdout=subprocess.DEVNULL)
        with open(report, encoding="utf-8") as file:
            cases = json.load(file)["cases"]
    for case in cases:
        if case["verdict"] == "match":  # the numbers drawn are those of the adjoint
            counts["right"] += 1
        elif case["verdict"] == "mismatch" and is_rebuilt(case, *specs[case["file"]]):
            counts["described"] += 1
        else:
            counts["wrong"] += 1
            print(f"{case['id']} {case['subject']}: {case['verdict']} {case['findings'][:1]}")
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    sys.exit(counts["wrong"] > 0 or counts["described"] < options.count // 2)


if __name__ == "__main__":
    main()
