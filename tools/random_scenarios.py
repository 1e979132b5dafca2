#!/usr/bin/env python3
"""Random scenario files: small SPMD programs of every collective, from a seed.

    tools/random_scenarios.py --count 100 --seed 7 FOLDER     writes FOLDER/7.json, FOLDER/8.json,
                                                              ...

A program grows step by step. Each candidate step is evaluated with the oracle's forward functions,
and is kept where its shapes fit and its values stay small, so that every file is a valid scenario
whose gradients are of moderate size. The same seed gives the same file.
"""

import argparse
import json
import os
import random

import torch

import oracle
from collective_traits import COMMUNICATES, CUTTING, JOINING, KINDS, REDUCING, ROOTED, TRAITS
from oracle_rules import Call, Invalid

if set(oracle.COLLECTIVES) != set(KINDS):
    raise SystemExit("tools/oracle.py: COLLECTIVES lacks or invents "
                     + ", ".join(sorted(set(oracle.COLLECTIVES) ^ set(KINDS))))

LIMITS = {"float64": 1e3, "float32": 1e2, "bfloat16": 16, "float16": 16}
UNARY = [
    "torch.tanh({a})", "torch.exp(torch.tanh({a}))", "torch.sin({a})", "torch.sigmoid({a})",
    "torch.softmax({a}, {d})", "{a}.mean({d})", "{a}.sum({d})", "{a}.t()",
    "{a}.transpose(0, 1)", "{a}[0]", "{a}[1:]", "{a}[:, 1:]", "{a}[:, :-1]", "{a}[::2]",
    "{a}.flip([0])", "{a}.reshape([-1])", "{a}.unsqueeze({d})", "(-{a})", "({a} * {a})",
    "((rank + 1) * {a})", "({a} / (rank + 2))", "({a} / world_size)", "(0.5 * {a})",
    "({a} - {a}.mean())", "torch.logsumexp({a}, {d})", "torch.sqrt({a} * {a} + 1)",
    "{a}.expand([2, 3])", "{a}.unsqueeze(0).expand([2, -1])", "torch.cumsum({a}, 0)",
    "torch.cat([{a}, {a}], {d})", "torch.stack([{a}, 2 * {a}], {d})",
]
BINARY = [
    "({a} + {b})", "({a} * {b})", "({a} - {b})", "({a} / (2 + {b} * {b}))", "({a} @ {b})",
    "({a} @ {b}.t())", "torch.cat([{a}, {b}], {d})", "({a} * {b}.mean())", "({a} + {b}.sum())",
]
BRANCHING = ["torch.relu({a})", "torch.abs({a})", "torch.where({a} > 0, {a}, {b})",
             "{a}.amax({d})", "torch.maximum({a}, {b})"]
RANK_DEPENDENT = [
    "({a} if rank == {k} else 2 * {a})", "({a} if {g}_rank == 0 else -{a})",
    "({a} if rank % 2 == 0 else {b})", "({a} if rank == {k} else torch.zeros_like({a}))",
    "({a} if {g}_rank + 1 == {g}_size else {a}.detach())", "({g}_rank * {a})",
    "({a} * 0 if rank == {k} else {a})",
]
OPS = ("sum", "sum", "sum", "avg", "product", "max", "min", "premul_sum")


class Unsuitable(Exception):
    """The candidate does not fit; another one is tried."""


def composition(rng, total, parts):
    """`parts` numbers of at least 0 that add up to `total`."""
    cuts = sorted(rng.randint(0, total) for _ in range(parts - 1))
    return [b - a for a, b in zip([0] + cuts, cuts + [total])]


class Program:
    """A scenario as it grows, with every rank's values."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.branches = False
        self.scenario = {"note": f"random program {seed}", "timeout_s": 40}
        self.lay_out_world()
        self.scenario["dtype"] = self.rng.choices(
            ("float64", "float32", "bfloat16", "float16"), (6, 2, 1, 1))[0]
        self.limit = LIMITS[self.scenario["dtype"]]
        self.scenario["inputs"] = {}
        self.scenario["steps"] = []
        self.world = oracle.World(self.scenario, self.size)
        self.env = [dict(self.world.rank_names(r)) for r in range(self.size)]
        self.names = []
        for i in range(self.rng.randint(1, 3)):
            self.attempt(lambda: self.add_input(f"x{i}"))
        if not self.names:
            raise Unsuitable("no input")

    # -- the world ----------------------------------------------------------------------------

    def lay_out_world(self):
        rng, scenario = self.rng, self.scenario
        meshes = [{"dp": 2, "tp": 2}, {"dp": 2, "tp": 3}, {"dp": 3, "tp": 2}, {"dp": 1, "tp": 3},
                  {"dp": 2, "pp": 1, "tp": 2}, {"dp": 2, "tp": 1}, {"tp": 4}]
        if rng.random() < 0.35:
            scenario["mesh"] = mesh = rng.choice(meshes)
            self.size = 1
            for n in mesh.values():
                self.size *= n
        else:
            self.size = rng.choice((1, 2, 2, 2, 3, 3, 4, 4, 5, 6))
            scenario["world_size"] = self.size
        if rng.random() < 0.5:
            scenario["groups"] = {"part": self.partition()}

    def partition(self):
        rng, n = self.rng, self.size
        divisors = [d for d in range(1, n + 1) if n % d == 0]
        how = rng.random()
        if how < 0.2:
            return {"size": rng.choice(divisors)}
        if how < 0.4:
            return {"stride": rng.choice(divisors)}
        ranks = list(range(n))
        rng.shuffle(ranks)
        if how < 0.7:
            size = rng.choice(divisors)
            return [ranks[i:i + size] for i in range(0, n, size)]
        sizes = [s for s in composition(rng, n, min(n, 2)) if s]
        lists, at = [], 0
        for s in sizes:
            lists.append(ranks[at:at + s])
            at += s
        return lists

    # -- inputs -------------------------------------------------------------------------------

    def extent(self):
        n = self.size
        return self.rng.choice((1, 2, 3, 4, n, 2 * n, 6))

    def shape(self):
        return [self.extent() for _ in range(self.rng.choice((0, 1, 1, 2, 2, 2, 3)))]

    def layout(self, dims):
        rng = self.rng
        words = ["replicate", "replicate", "invariant"]
        shards = [{"shard": d} for d in range(dims)]
        axes = list(self.scenario.get("mesh", {}))
        if axes and rng.random() < 0.6:
            return {a: rng.choice(words + shards) for a in axes}
        return rng.choice(["local"] * 4 + words + shards)

    def literal(self, shape):
        if not shape:
            return self.rng.choice((-2, -1.5, -1, 0, 0.5, 1, 2, 3))
        return [self.literal(shape[1:]) for _ in range(shape[0])]

    def add_input(self, name):
        rng = self.rng
        shape = self.shape()
        layout = self.layout(len(shape))
        local, spec = layout == "local", {}
        how = rng.random()
        if how < 0.55:
            spec["random"] = {"shape": list(shape), "seed": rng.randint(0, 999),
                              "kind": rng.choice(("integers", "normal", "uniform"))}
            if spec["random"]["kind"] != "normal":
                spec["random"].update(low=-2, high=2)
            if local and shape and rng.random() < 0.25:
                d = rng.randrange(len(shape))
                spec["random"]["shape"][d] = rng.choice(("rank + 1", "rank % 2 + 1", "rank"))
        elif how < 0.7:
            spec["expr"] = (f"torch.ones({shape}) * (rank + 1)" if local else
                            f"torch.full({shape}, 0.5) / world_size")
        elif how < 0.85 and local:
            spec["by_rank"] = [self.literal(shape) for _ in range(self.size)]
        else:
            spec["value"] = self.literal(shape)
        if not local:
            spec["layout"] = layout
        if rng.random() < 0.1:
            spec["requires_grad"] = False
        case = type("", (), {"world": self.world, "dtype": self.scenario["dtype"]})
        with oracle.default_dtype(torch.float64):
            leaf = oracle.Input(case, name, spec)
            values = leaf.values if leaf.local else [
                leaf.view(leaf.values[0], r) for r in range(self.size)]
        self.bind(name, values)
        self.scenario["inputs"][name] = list(spec.values())[0] if list(spec) == ["value"] else spec
        replicated = (layout == "replicate" if isinstance(layout, str) else
                      [a for a in layout if layout[a] == "replicate"])
        if replicated and rng.random() < 0.4 and spec.get("requires_grad", True):
            how = rng.choice(("sum", "mean"))
            if isinstance(replicated, list):
                how = {a: rng.choice(("sum", "mean")) for a in replicated}
            self.scenario.setdefault("sync", {})[name] = how

    # -- expressions --------------------------------------------------------------------------

    def expression(self, depth):
        rng = self.rng
        if depth <= 0:
            return rng.choice(self.names + self.names[-2:])
        roll = rng.random()
        table = (UNARY if roll < 0.5 else BINARY if roll < 0.8 else
                 RANK_DEPENDENT if roll < 0.95 else BRANCHING)
        group = rng.choice(list(self.world.groups) or ["world"])
        text = rng.choice(table)
        if group == "world" and "{g}" in text:
            text = text.replace("{g}_rank", "rank").replace("{g}_size", "world_size")
        self.branches |= table is BRANCHING
        return text.format(a=self.expression(depth - 1), b=self.expression(depth - 1),
                           d=rng.choice((0, 0, 1, -1)), k=rng.randrange(self.size), g=group)

    def values_of(self, text):
        with oracle.default_dtype(torch.float64):
            return [oracle.evaluate_tensor(text, self.env[r]) for r in range(self.size)]

    def bind(self, name, values):
        for v in values:
            if v.numel() > 64 or v.dim() > 4 or not bool(torch.isfinite(v).all()):
                raise Unsuitable("too big, or not finite")
            if v.numel() and v.abs().max() > self.limit:
                raise Unsuitable("too large a value")
        for r, v in enumerate(values):
            self.env[r][name] = v.detach()
        self.names.append(name)

    def attempt(self, add):
        for _ in range(40):
            try:
                return add()
            except (Unsuitable, Invalid, RuntimeError, IndexError, ValueError):
                continue
        return None

    def add_expression(self, name):
        text = self.expression(self.rng.choice((1, 1, 2, 3)))
        self.bind(name, self.values_of(text))
        self.scenario["steps"].append({name: text})

    # -- collectives --------------------------------------------------------------------------

    def add_collective(self, name):
        rng = self.rng
        kind = rng.choice(KINDS + ("all_reduce", "all_gather", "reduce_scatter"))
        group = rng.choice([None] + list(self.world.groups) * 2)
        text = self.expression(rng.choice((0, 0, 1, 2)))
        operands = self.values_of(text)
        lists = self.world.members(group)
        options = self.options(kind, operands, lists)
        outputs = [None] * self.size
        for members in lists:
            self.require_shapes(kind, options, [operands[r] for r in members])
            call = Call(name, kind, options)
            for r, y in zip(members, call.forward([operands[r] for r in members])):
                outputs[r] = y
        body = {kind: text, **options}
        if group is not None:
            body["group"] = group
        self.bind(name, outputs)
        self.scenario["steps"].append({name: body})

    def options(self, kind, operands, lists):
        rng, options = self.rng, {}
        least = min(len(g) for g in lists)
        if kind in REDUCING:
            options["op"] = rng.choice(OPS)
            self.branches |= options["op"] in ("min", "max")
            if options["op"] == "premul_sum":
                options["factor"] = rng.choice((0.5, 2, -1.5))
        if kind in ROOTED and rng.random() < 0.7:
            options["root"] = rng.randrange(least)
        dims = operands[0].dim()
        if kind in JOINING and dims and rng.random() < 0.6:
            options["dim"] = rng.randrange(-dims, dims)
        if kind in CUTTING:
            if not dims:
                raise Unsuitable("nothing to cut")
            if rng.random() < 0.6:
                options["dim"] = rng.randrange(-dims, dims)
            if rng.random() < 0.5:
                options["splits"] = self.splits(kind, options.get("dim", 0), operands, lists)
        if "pairs" in TRAITS[kind].options:
            ranks = range(least)
            options["pairs"] = [[rng.choice(ranks), d] for d in ranks if rng.random() < 0.7]
        return options

    def splits(self, kind, dim, operands, lists):
        n = len(lists[0])
        if any(len(g) != n for g in lists):
            raise Unsuitable("splits need groups of one size")
        extents = [operands[r].shape[dim] for r in lists[0]]
        if TRAITS[kind].shape == "exchanged":
            return [composition(self.rng, e, n) for e in extents]
        return composition(self.rng, extents[0], n)

    @staticmethod
    def require_shapes(kind, options, x):
        if len({t.dim() for t in x}) != 1:
            raise Unsuitable("ranks disagree in the number of dimensions")
        dim = options.get("dim", 0)
        whole = (kind in COMMUNICATES
                 and TRAITS[kind].shape not in ("joined", "exchanged", "sender"))
        if whole or (kind in JOINING and "dim" not in options):
            if len({t.shape for t in x}) != 1:
                raise Unsuitable("ranks disagree in shape")
        elif TRAITS[kind].shape in ("joined", "exchanged"):
            others = {tuple(n for i, n in enumerate(t.shape) if i != dim % t.dim()) for t in x}
            if len(others) != 1:
                raise Unsuitable("ranks disagree in shape")

    # -- the loss and the objective -----------------------------------------------------------

    def term(self):
        rng = self.rng
        v = rng.choice(self.names + self.names[-1:] * 4)
        return rng.choice(("{v}.sum()", "({v} * {v}).sum()", "torch.tanh({v}).sum()",
                           "(rank + 1) * ({v} * {v}).sum()", "({v} * torch.sin({v})).sum()",
                           "torch.cumsum({v}.reshape([-1]), 0).sum()",
                           "({v} * {v}.detach()).sum()")).format(v=v)

    def loss_text(self):
        text = " + ".join(self.term() for _ in range(self.rng.randint(1, 3)))
        roll, k = self.rng.random(), self.rng.randrange(self.size)
        if roll < 0.15:
            text = f"{text} if rank == {k} else {self.term()}"
        elif roll < 0.2:
            text = f"{text} if rank != {k} else {self.term()} * 0"
        return text

    def add_loss(self):
        text = self.loss_text()
        values = self.values_of(text)
        if any(not torch.isfinite(v) or abs(v.item()) > 4 * self.limit for v in values):
            raise Unsuitable("the loss is not of moderate size")
        self.scenario["loss"] = text
        return True

    def choose_objective(self):
        """Where it is replicated, all_reduces at the end make the losses agree."""
        rng, axes = self.rng, list(self.scenario.get("mesh", {}))
        words = ("sum", "sum", "mean", "replicated")
        if rng.random() < 0.15:
            objective = {"rank": rng.randrange(self.size)}
        elif axes and rng.random() < 0.6:
            objective = {a: rng.choice(words) for a in axes}
        else:
            objective = rng.choice(words)
        self.scenario["objective"] = objective
        over = ([a for a in axes if objective.get(a) == "replicated"]
                if isinstance(objective, dict) else [None] if objective == "replicated" else [])
        if rng.random() < 0.03:
            return  # the losses may differ: the oracle decides whether the scenario is valid
        for i, axis in enumerate(over):
            body = {"all_reduce": self.scenario["loss"], "op": rng.choice(("sum", "avg"))}
            if axis:
                body["group"] = axis
            self.scenario["steps"].append({f"total{i}": body})
            self.scenario["loss"] = f"total{i}"
        if over and rng.random() < 0.3:
            self.scenario["loss"] = f"0.25 * {self.scenario['loss']} * {self.scenario['loss']}"


def moderate(scenario):
    """Whether the truth exists and is of moderate size; the oracle's Invalid passes through."""
    case = next(oracle.expand("", scenario))
    truths = oracle.Truths(case)
    limit = 8 * LIMITS[case.dtype]
    return all(not g.numel() or (bool(torch.isfinite(g).all()) and g.abs().max() < limit)
               for grads in truths.by_objective.values() for gs in grads.values() for g in gs)


def draw(seed):
    """(scenario, whether it has an inexact branch); None where the seed gives nothing suitable."""
    try:
        program = Program(seed)
    except Unsuitable:
        return None
    rng = program.rng
    for i in range(rng.randint(1, 5)):
        if rng.random() < 0.5:
            program.attempt(lambda: program.add_expression(f"e{i}"))
        program.attempt(lambda: program.add_collective(f"y{i}"))
    if not program.attempt(program.add_loss):
        return None
    inputs = program.scenario["inputs"].values()
    if not any(not isinstance(i, dict) or i.get("requires_grad", True) for i in inputs):
        return None
    program.choose_objective()
    scenario = program.scenario
    try:
        if not moderate(scenario):
            return None
    except Invalid as e:
        if "differ" not in str(e):
            return None
    return scenario, program.branches


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.makedirs(options.folder, exist_ok=True)
    for seed in range(options.seed, options.seed + options.count):
        drawn = draw(seed)
        if drawn:
            with open(os.path.join(options.folder, f"{seed}.json"), "w", encoding="utf-8") as f:
                json.dump(drawn[0], f, indent=1)


if __name__ == "__main__":
    main()
