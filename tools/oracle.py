#!/usr/bin/env python3
"""An independent oracle for scenario files: the right gradients, and what known rules give.

It is written from the documents alone and shares no code with distgrad, so that the two can be held
against each other. Like re2's backtracking engine it is slow and obviously right: one autograd
graph over N virtual ranks in one process, no communication, no hand-written adjoint.

    tools/oracle.py PATH...           a line for each case: ok or FAIL, with the reason
    tools/oracle.py --json PATH...    losses, truth and observed gradients by rank, as JSON
    tools/oracle.py --torchscript ... reads the expressions as TorchScript instead of Python

It needs Python 3.9 or later and torch.
"""

import argparse
import ast
import itertools
import json
import keyword
import math
import os
import sys

import torch

from oracle_rules import (REPLAYS, SUBJECTS, Call, Invalid, Joint, NotOffered, Raises, adjoint,
                          none, rule_of)

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


# ---------------------------------------------------------------------------------------------
# Random inputs: counter-based, so that a value depends on the file alone and not on the order in
# which inputs are made, and without libm, so that every machine gives the same bits.

MASK = (1 << 64) - 1


def fnv1a(text):
    h = 0xCBF29CE484222325
    for byte in text.encode("utf-8"):
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def splitmix64(h, counter):
    z = (h + (counter + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def unit(h, counter):
    return (splitmix64(h, counter) >> 11) * 2.0**-53


def random_values(spec, shape, name, rank):
    """The elements in row-major order; `rank` is the empty text for a layout other than local."""
    h = fnv1a(f"{spec.get('seed', 0)}/{name}/{rank}")
    kind, low, high = spec["kind"], spec.get("low", -4), spec.get("high", 4)
    count = math.prod(shape)
    if kind == "integers":
        values = [low + splitmix64(h, i) % (high - low + 1) for i in range(count)]
    elif kind == "uniform":
        values = [low + (high - low) * unit(h, i) for i in range(count)]
    elif kind == "normal":  # Irwin-Hall: the sum of twelve uniforms has variance one
        values = []
        for i in range(count):
            total = 0.0
            for k in range(12):
                total += unit(h, 12 * i + k)
            values.append(total - 6.0)
    else:
        raise Invalid(f"inputs/{name}: unknown random kind {kind!r}")
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


# ---------------------------------------------------------------------------------------------
# The scenario and its cases.

RESERVED = {"rank", "world_size", "torch"}
COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "reduce_scatter",
               "scatter", "all_to_all", "send_recv", "copy", "slice")
KEYS = ("format", "name", "note", "world_size", "mesh", "groups", "dtype", "backend", "inputs",
        "steps", "loss", "objective", "sync", "tolerance", "truth", "single_device", "subjects",
        "timeout_s")


def no_duplicates(pairs):
    keys = [k for k, _ in pairs]
    if len(set(keys)) != len(keys):
        raise Invalid(f"duplicate key among {keys}")
    return dict(pairs)


def as_list(value):
    return value if isinstance(value, list) else [value]


class World:
    """The ranks of one case: mesh axes, groups and coordinates."""

    def __init__(self, scenario, size):
        self.size = size
        mesh = scenario.get("mesh")
        self.axes = list(mesh.items()) if mesh else [("world", size)]
        if math.prod(n for _, n in self.axes) != size:
            raise Invalid(f"world_size {size} is not the mesh's {mesh}")
        self.coordinates = list(itertools.product(*(range(n) for _, n in self.axes)))
        self.groups = {}
        for name, spec in scenario.get("groups", {}).items():
            self.groups[name] = self.partition(name, spec)
        if mesh:
            for axis, (name, _) in enumerate(self.axes):
                rows = {}
                for rank, c in enumerate(self.coordinates):
                    rows.setdefault(c[:axis] + c[axis + 1:], []).append(rank)
                self.groups[name] = list(rows.values())

    def partition(self, name, spec):
        if isinstance(spec, list):
            if sorted(r for g in spec for r in g) != list(range(self.size)):
                raise Invalid(f"groups/{name}: every rank must be in exactly one list")
            return spec
        if "size" in spec:
            if self.size % spec["size"]:
                raise Invalid(f"groups/{name}: {spec['size']} does not divide {self.size}")
            return [list(range(s, s + spec["size"])) for s in range(0, self.size, spec["size"])]
        return [list(range(s, self.size, spec["stride"]))
                for s in range(min(spec["stride"], self.size))]

    def members(self, group):
        return [list(range(self.size))] if group is None else self.groups[group]

    def rank_names(self, rank):
        names = {"rank": rank, "world_size": self.size}
        for name, lists in self.groups.items():
            for g in lists:
                if rank in g:
                    names[f"{name}_rank"], names[f"{name}_size"] = g.index(rank), len(g)
        return names

    def full_names(self):
        names = {"world_size": self.size}
        for name, lists in self.groups.items():
            if len({len(g) for g in lists}) == 1:
                names[f"{name}_size"] = len(lists[0])
        return names


def tensor_of(value):
    def walk(v):
        if isinstance(v, list):
            return [walk(e) for e in v]
        if isinstance(v, str):
            return WORDS[v]
        return v
    return torch.tensor(walk(value), dtype=torch.float64)


def as_torchscript(text, names):
    """The expression as TorchScript compiles and runs it, which must be what Python gives."""
    used = {n.id for n in ast.walk(ast.parse(text, mode="eval")) if isinstance(n, ast.Name)}
    values = {n: v for n, v in names.items() if n in used}
    types = {n: "int" if isinstance(v, int) else
             "List[Tensor]" if isinstance(v, list) else "Tensor" for n, v in values.items()}
    signature = ", ".join(f"{n}: {t}" for n, t in types.items())
    key = (signature, text)
    if key not in as_torchscript.compiled:
        source = f"def f({signature}):\n    return {text}\n"
        as_torchscript.compiled[key] = torch.jit.CompilationUnit(source)
    return as_torchscript.compiled[key].f(*values.values())


as_torchscript.compiled = {}


def as_python(text, names):
    return eval(compile(text, "<expression>", "eval"), {"torch": torch, **names})


interpret = as_python


def evaluate(text, names):
    try:
        return interpret(text, names)
    except Exception as e:
        raise Invalid(f"expression {text!r}: {str(e).strip()}") from e


def evaluate_tensor(text, names):
    value = evaluate(text, names)
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=torch.get_default_dtype())


class Input:
    """A leaf: its logical value (or the ranks' values, where local) and its layout."""

    def __init__(self, case, name, spec):
        self.case, self.name = case, name
        spec = spec if isinstance(spec, dict) else {"value": spec}
        self.requires_grad = spec.get("requires_grad", True)
        layout = spec.get("layout", "local")
        world = case.world
        self.local = layout == "local"
        if isinstance(layout, dict) and set(layout) != {"shard"}:
            if set(layout) != {n for n, _ in world.axes}:
                raise Invalid(f"inputs/{name}/layout: one word for every mesh axis")
            self.layout = [(a, n, layout[a]) for a, n in world.axes]
        elif isinstance(layout, dict) or self.local:
            self.layout = [("world", world.size, layout)]  # cut over the whole world
        else:
            self.layout = [(a, n, layout) for a, n in world.axes]
        if self.local:
            self.values = [self.read(spec, r) for r in range(world.size)]
        else:
            if "by_rank" in spec:
                raise Invalid(f"inputs/{name}: by_rank needs the layout local")
            self.values = [self.read(spec, None)]

    def read(self, spec, rank):
        world = self.case.world
        names = world.full_names() if rank is None else world.rank_names(rank)
        if "value" in spec:
            value = tensor_of(spec["value"])
        elif "by_rank" in spec:
            if len(spec["by_rank"]) != world.size:
                raise Invalid(f"inputs/{self.name}/by_rank: not one value for each rank")
            value = tensor_of(spec["by_rank"][rank])
        elif "expr" in spec:
            value = evaluate_tensor(spec["expr"], names)
        else:
            shape = [evaluate(e, names) if isinstance(e, str) else e
                     for e in spec["random"]["shape"]]
            value = random_values(spec["random"], shape, self.name, "" if rank is None else rank)
        return value.to(DTYPES[self.case.dtype]).to(torch.float64)

    def coordinate(self, axis, rank):
        if self.layout[axis][0] == "world":
            return rank
        return self.case.world.coordinates[rank][axis]

    def view(self, logical, rank):
        """What `rank` holds of the logical tensor."""
        piece = logical
        for axis, (_, size, kind) in enumerate(self.layout):
            if isinstance(kind, dict):
                dim = kind["shard"]
                extent = piece.shape[dim]
                step = -(-extent // size)  # torch.chunk's
                start = min(self.coordinate(axis, rank) * step, extent)
                piece = piece.narrow(dim, start, min(step, extent - start))
        return piece

    def joined(self, grads, synced):
        """The full gradients to compare: one for each place that must hold it by itself."""
        held = {tuple(self.coordinate(a, r) for a in range(len(self.layout))): g
                for r, g in enumerate(grads)}
        empty = {tuple(self.coordinate(a, r) for a in range(len(self.layout))):
                 torch.zeros_like(self.view(self.values[0], r)) for r in range(len(grads))}
        alone = [a for a, (axis, _, kind) in enumerate(self.layout)
                 if kind == "invariant" or axis in synced]
        results = []
        for fixed in sorted({tuple(c[a] for a in alone) for c in held}):
            part = {c: g for c, g in held.items() if tuple(c[a] for a in alone) == fixed}
            if any(g is not None for g in part.values()):  # who has none contributes nothing
                part = {c: empty[c] if g is None else g for c, g in part.items()}
            for axis in reversed(range(len(self.layout))):
                groups = {}
                for c, g in part.items():
                    groups.setdefault(c[:axis], []).append(g)
                kind = self.layout[axis][2]
                part = {c: self.combine(gs, kind) for c, gs in groups.items()}
            results.append(part[()])
        return results

    @staticmethod
    def combine(grads, kind):
        if len(grads) == 1:
            return grads[0]
        if all(g is None for g in grads):
            return None
        return torch.cat(grads, kind["shard"]) if isinstance(kind, dict) else sum(grads)


class Case:
    def __init__(self, path, scenario, subject, expectation, world_size, dtype, backend):
        self.path, self.scenario = path, scenario
        self.subject, self.expectation = subject, expectation
        self.dtype, self.backend = dtype, backend
        self.world = World(scenario, world_size)
        self.calls = {}
        with default_dtype(torch.float64):
            self.inputs = {n: Input(self, n, s) for n, s in scenario["inputs"].items()}
        self.objective = parse_objective(scenario["objective"], self.world)
        self.sync = {}
        for name, how in scenario.get("sync", {}).items():
            axes = {a for a, _, kind in self.inputs[name].layout if kind == "replicate"}
            how = how if isinstance(how, dict) else {a: how for a in axes}
            if not set(how) <= axes:
                raise Invalid(f"sync/{name}: only along axes where the layout is replicate")
            self.sync[name] = how

    @property
    def id(self):
        s, fields = self.scenario, []
        if len(subjects_of(s)) > 1:
            fields.append(f"subject={self.subject}")
        for key, value in (("world_size", self.world.size), ("dtype", self.dtype),
                           ("backend", self.backend)):
            if isinstance(s.get(key), list) and len(s[key]) > 1:
                fields.append(f"{key}={value}")
        return self.path + (":" + ",".join(fields) if fields else "")


class default_dtype:
    """Tensor constructors in expressions give the dtype of the run."""

    def __init__(self, dtype):
        self.dtype = dtype

    def __enter__(self):
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *_):
        torch.set_default_dtype(self.before)


def subjects_of(scenario):
    return scenario.get("subjects", {"reference": "match"})


def load(path):
    with open(path, encoding="utf-8") as f:
        scenario = json.load(f, object_pairs_hook=no_duplicates)
    unknown = set(scenario) - set(KEYS)
    if unknown:
        raise Invalid(f"unknown keys {sorted(unknown)}")
    for key in ("inputs", "steps", "loss", "objective"):
        if key not in scenario:
            raise Invalid(f"{key} is required")
    names = list(scenario["inputs"]) + [n for step in scenario["steps"] for n in step]
    groups = list(scenario.get("groups", {})) + list(scenario.get("mesh", {}))
    derived = {f"{g}_{what}" for g in groups for what in ("rank", "size")}
    for name in names + groups:
        if not name.isidentifier() or keyword.iskeyword(name) or name in RESERVED | derived:
            raise Invalid(f"{name!r} cannot be a name")
    if len(set(names + groups)) != len(names + groups):
        raise Invalid("a name is bound twice")
    return scenario


def expand(path, scenario):
    if "world_size" in scenario:
        sizes = as_list(scenario["world_size"])
    elif "mesh" in scenario:
        sizes = [math.prod(scenario["mesh"].values())]
    else:
        raise Invalid("world_size is required")
    for subject, expectation in subjects_of(scenario).items():
        for size in sizes:
            for dtype in as_list(scenario.get("dtype", "float64")):
                for backend in as_list(scenario.get("backend", "gloo")):
                    yield Case(path, scenario, subject, expectation, size, dtype, backend)


def parse_objective(objective, world):
    """A word for every axis, or {"rank": k}."""
    if isinstance(objective, str):
        return {axis: objective for axis, _ in world.axes}
    if set(objective) == {"rank"} and not any(a == "rank" for a, _ in world.axes):
        return objective
    if set(objective) != {a for a, _ in world.axes}:
        raise Invalid("objective: one word for every mesh axis")
    return objective


def objectives_of(world):
    words = ("sum", "mean", "replicated")
    for combination in itertools.product(words, repeat=len(world.axes)):
        kinds = {a: w for (a, _), w in zip(world.axes, combination)}
        name = (combination[0] if len(set(combination)) == 1 else
                "+".join(f"{a}={w}" for a, w in kinds.items()))
        yield name, kinds
    for k in range(world.size):
        yield f"rank:{k}", {"rank": k}


def truth_weight(objective, world, rank):
    if "rank" in objective:
        return 1.0 if rank == objective["rank"] else 0.0
    weight = 1.0
    for (axis, size), c in zip(world.axes, world.coordinates[rank]):
        word = objective[axis]
        if word == "mean":
            weight /= size
        elif word == "replicated" and c != 0:
            weight = 0.0
    return weight


# ---------------------------------------------------------------------------------------------
# Running the program.


def run_program(case, leaves, rules):
    """Lock-step over the ranks; `rules` maps (step, call) to a rule. Returns the ranks' losses."""
    world, scenario = case.world, case.scenario
    env = [dict(world.rank_names(r)) for r in range(world.size)]
    for name in case.inputs:
        for r in range(world.size):
            env[r][name] = leaves[name][r]
    for step in scenario["steps"]:
        (name, body), = step.items()
        if isinstance(body, str):
            for r in range(world.size):
                env[r][name] = evaluate_tensor(body, env[r])
            continue
        kinds = [k for k in body if k in COLLECTIVES]
        if len(kinds) != 1:
            raise Invalid(f"step {name}: exactly one collective")
        kind = kinds[0]
        options = {k: v for k, v in body.items() if k not in (kind, "group")}
        operands = [evaluate_tensor(body[kind], env[r]) for r in range(world.size)]
        for members in world.members(body.get("group")):
            call = Call(name, kind, options)
            rule = rules(call)
            x = [operands[r] for r in members]
            if rule is None:
                outputs = call.forward(x)
            elif rule is none:
                outputs = [o.detach() for o in call.forward(x)]
            else:
                outputs = Joint.apply(call, rule, *x)
            for r, y in zip(members, outputs):
                env[r][name] = y
    losses = []
    for r in range(world.size):
        loss = evaluate_tensor(scenario["loss"], env[r])
        if loss.numel() != 1:
            raise Invalid(f"loss has shape {list(loss.shape)} on rank {r}; one element is needed")
        losses.append(loss.reshape(()))
    return losses


def logical_leaves(case):
    """One leaf for each logical tensor, and the ranks' views of it: what defines truth."""
    leaves, views = {}, {}
    for name, spec in case.inputs.items():
        leaves[name] = [v.clone().requires_grad_(spec.requires_grad) for v in spec.values]
        views[name] = (leaves[name] if spec.local else
                       [spec.view(leaves[name][0], r) for r in range(case.world.size)])
    return leaves, views


def differentiate(scalar, leaves, inputs):
    wanted = [(n, i) for n, spec in inputs.items() if spec.requires_grad
              for i in range(len(leaves[n]))]
    grads = [None] * len(wanted)
    if scalar.requires_grad:
        grads = torch.autograd.grad(scalar, [leaves[n][i] for n, i in wanted], retain_graph=True,
                                    allow_unused=True)
    result = {}
    for (n, i), g in zip(wanted, grads):
        result.setdefault(n, []).append(torch.zeros_like(leaves[n][i]) if g is None else g)
    return result


class Truths:
    """Losses and gradients of every objective that is defined for the case."""

    def __init__(self, case):
        with default_dtype(torch.float64):
            leaves, views = logical_leaves(case)
            losses = run_program(case, views, lambda call: None)
            self.losses = [l.item() for l in losses]
            each = [differentiate(l, leaves, case.inputs) for l in losses]
        self.leaves, self.by_objective, self.undefined = leaves, {}, {}
        for name, objective in objectives_of(case.world):
            why = self.disagreement(case.world, objective, each)
            if why:
                self.undefined[name] = why
                continue
            weights = [truth_weight(objective, case.world, r) for r in range(case.world.size)]
            self.by_objective[name] = combine_truth(weights, each)
        declared = next(n for n, o in objectives_of(case.world) if o == case.objective)
        if declared in self.undefined:
            raise Invalid(self.undefined[declared])
        self.declared = declared
        self.gradients = self.by_objective[declared]
        weights = [truth_weight(case.objective, case.world, r) for r in range(case.world.size)]
        self.objective_value = sum(w * l for w, l in zip(weights, self.losses) if w)

    def disagreement(self, world, objective, each):
        """`replicated` needs the same loss, and the same gradient, along its axes."""
        if "rank" in objective or "replicated" not in objective.values():
            return ""
        for r, c in enumerate(world.coordinates):
            first = tuple(0 if objective[a] == "replicated" else i
                          for i, (a, _) in zip(c, world.axes))
            r0 = world.coordinates.index(first)
            if not close(torch.tensor(self.losses[r]), torch.tensor(self.losses[r0])):
                return f"losses of ranks {r0} and {r} differ: {self.losses[r0]}, {self.losses[r]}"
            for name in each[r]:
                if not all(close(a, b) for a, b in zip(each[r][name], each[r0][name])):
                    return f"gradients of ranks {r0} and {r} differ in {name}"
        return ""


def combine_truth(weights, each):
    result = {}
    for w, grads in zip(weights, each):
        for name, parts in grads.items():
            terms = [w * g if w else torch.zeros_like(g) for g in parts]
            result[name] = terms if name not in result else [
                a + b for a, b in zip(result[name], terms)]
    return result


def close(a, b, dtype="float64"):
    if a.shape != b.shape:
        return False
    eps = torch.finfo(DTYPES[dtype]).eps
    slack = 64 if eps < 1e-6 else 4  # a wrong rule is off by far more than rounding
    scale = torch.cat([a.reshape(-1), b.reshape(-1)]).abs()
    scale = scale[torch.isfinite(scale)]
    atol = slack * eps * (scale.max().item() if scale.numel() else 0.0) + eps * 1e-3
    return torch.allclose(a, b, rtol=slack * eps, atol=atol, equal_nan=True)


def run_weights(case, divides_replicated):
    """The cotangent each rank passes to backward, and the axes whose division is left to sync."""
    objective, world = case.objective, case.world
    if "rank" in objective:
        return [truth_weight(objective, world, r) for r in range(world.size)], set()
    averaged = {a for how in case.sync.values() for a, word in how.items() if word == "mean"}
    weight, left = 1.0, set()
    for axis, size in world.axes:
        divides = objective[axis] == "mean" or (
            objective[axis] == "replicated" and divides_replicated)
        if divides and axis in averaged:
            left.add(axis)
        elif divides:
            weight /= size
    return [weight] * world.size, left


def observe(case, rules, divides_replicated, dtype):
    """The distributed run in one process: every rank has its own leaves and its own backward."""
    world, torch_dtype = case.world, DTYPES[dtype]
    leaves = {}
    for name, spec in case.inputs.items():
        leaves[name] = []
        for r in range(world.size):
            value = spec.values[r] if spec.local else spec.view(spec.values[0], r)
            leaf = value.clone().to(torch_dtype).requires_grad_(spec.requires_grad)
            leaves[name].append(leaf)
    with default_dtype(torch_dtype):
        losses = run_program(case, leaves, rules)
        weights, left = run_weights(case, divides_replicated)
        alive = [(l, torch.tensor(w, dtype=l.dtype)) for l, w in zip(losses, weights)
                 if l.requires_grad]
        if alive:
            torch.autograd.backward([l for l, _ in alive], [w for _, w in alive])
    grads = {n: [leaf.grad for leaf in leaves[n]]
             for n, spec in case.inputs.items() if spec.requires_grad}
    for name in grads:
        grads[name] = [None if g is None else g.to(torch.float64) for g in grads[name]]
    synchronise(case, grads, left)
    return [l.item() for l in losses], grads


def synchronise(case, grads, left):
    world = case.world
    sizes = dict(world.axes)
    for name in grads:
        how = case.sync.get(name, {})
        for axis, word in how.items():
            index = [a for a, _ in world.axes].index(axis)
            rows = {}
            for r, c in enumerate(world.coordinates):
                rows.setdefault(c[:index] + c[index + 1:], []).append(r)
            for members in rows.values():
                parts = [grads[name][r] for r in members if grads[name][r] is not None]
                if not parts:
                    continue
                total = sum(parts) / (len(members) if word == "mean" else 1)
                for r in members:
                    grads[name][r] = total
        factor = math.prod(sizes[a] for a in left if how.get(a) != "mean")
        grads[name] = [None if g is None else g / factor for g in grads[name]]


# ---------------------------------------------------------------------------------------------
# Judging.


def compare(case, grads, truth, dtype):
    """Names of inputs whose gradient differs, and those that have none though they need one."""
    wrong, missing = set(), set()
    for name, expected in truth.items():
        spec = case.inputs[name]
        if spec.local:
            pairs = list(zip(grads[name], expected))
        else:
            full = spec.joined(grads[name], set(case.sync.get(name, {})))
            pairs = [(f, expected[0]) for f in full]
        for got, want in pairs:
            if got is None:
                if bool((want != 0).any()):
                    missing.add(name)
            elif not close(got, want, dtype):
                absent = not spec.local and any(
                    g is None and bool((spec.view(want, r) != 0).any())
                    for r, g in enumerate(grads[name]))
                (missing if absent else wrong).add(name)
    return wrong, missing


def factors(case, grads, truth):
    """Observed over truth where that is one number for the input, else None."""
    result = {}
    for name, expected in truth.items():
        spec = case.inputs[name]
        if any(g is None for g in grads[name]):
            return {}
        got = grads[name] if spec.local else spec.joined(
            grads[name], set(case.sync.get(name, {})))
        want = expected if spec.local else expected * len(got)
        a = torch.cat([t.reshape(-1) for t in got])
        b = torch.cat([t.reshape(-1) for t in want])
        if not bool((b != 0).any()):
            result[name] = 1.0 if not bool((a != 0).any()) else None
            continue
        at = int(b.abs().argmax())
        factor = (a[at] / b[at]).item()
        result[name] = factor if close(a, b * factor) else None
    return result


def find(case, truths, grads, wrong, missing):
    """Every finding that the oracle can establish by itself."""
    findings = set()
    if missing:
        findings.add("no-gradient")
    if wrong or missing:
        for name, truth in truths.by_objective.items():
            if name != truths.declared and not any(compare(case, grads, truth, case.dtype)):
                findings.add("objective")
        by_input = factors(case, grads, truths.gradients)
        if by_input and None not in by_input.values() and any(
                abs(f - 1) > 1e-9 for f in by_input.values()):
            findings.add("scaled")
        for finding, (rule, kinds) in REPLAYS.items():
            if replay_explains(case, grads, rule, kinds):
                findings.add(finding)
        if not findings:
            findings.add("unexplained")
    return findings


def replay_explains(case, grads, rule, kinds):
    steps = [n for step in case.scenario["steps"] for n, body in step.items()
             if isinstance(body, dict) and any(k in body for k in kinds)]
    for chosen in [set(steps)] + [{s} for s in steps]:
        if not chosen:
            continue
        divides = case.subject == "reference"
        try:
            _, replayed = observe(
                case, lambda call: rule if call.step in chosen else adjoint, divides, "float64")
        except Exception:  # a rule that does not fit the shapes explains nothing
            continue
        if all(same(a, b, case.dtype) for n in grads for a, b in zip(grads[n], replayed[n])):
            return True
    return False


def same(a, b, dtype):
    if a is None or b is None:
        return a is None and b is None
    return close(a, b, dtype)


def check_truth(case, truths):
    for name, value in case.scenario.get("truth", {}).items():
        spec = case.inputs[name]
        leaves = truths.leaves
        for i, got in enumerate(truths.gradients[name]):
            if isinstance(value, str):
                names = case.world.rank_names(i) if spec.local else case.world.full_names()
                for other, other_spec in case.inputs.items():
                    if other_spec.local and not spec.local:
                        continue
                    names[other] = leaves[other][i if other_spec.local else 0].detach()
                with default_dtype(torch.float64):
                    want = (torch.tensor(WORDS[value]) if value in WORDS else
                            evaluate_tensor(value, names)).to(torch.float64)
                want = want.expand(got.shape) if want.dim() == 0 else want
            else:
                if spec.local and len(value) != case.world.size:
                    return f"truth/{name} has not one value for each rank"
                want = tensor_of(value[i] if spec.local else value)
                if want.numel() == 0:
                    want = want.reshape(got.shape)
            if not close(got, want, "float64"):
                where = f" on rank {i}" if spec.local else ""
                return f"truth of {name}{where} is {got.tolist()}, the file says {want.tolist()}"
    return ""


def check_single_device(case, truths):
    single = case.scenario.get("single_device")
    if not single:
        return ""
    with default_dtype(torch.float64):
        leaves = {n: [v.clone().requires_grad_(s.requires_grad) for v in s.values]
                  for n, s in case.inputs.items()}
        env = {n: leaves[n] if case.inputs[n].local else leaves[n][0] for n in leaves}
        for step in single["steps"]:
            (name, body), = step.items()
            env[name] = evaluate_tensor(body, env)
        loss = evaluate_tensor(single["loss"], env).reshape(())
        grads = differentiate(loss, leaves, case.inputs)
    value = torch.tensor(truths.objective_value, dtype=torch.float64)
    if not close(loss.detach(), value):
        return f"single_device's loss is {loss.item()}, the objective {value.item()}"
    for name in grads:
        for a, b in zip(grads[name], truths.gradients[name]):
            if not close(a, b):
                return f"single_device's gradient of {name} is {a.tolist()}, the truth {b.tolist()}"
    return ""


def expectation_for(case):
    for entry in as_list(case.expectation):
        if isinstance(entry, str):
            return {"verdict": entry}
        when = entry.get("when", {})
        facts = {"world_size": case.world.size, "dtype": case.dtype, "backend": case.backend}
        if all(applies(k, v, facts) for k, v in when.items()):
            return entry
    return {"verdict": "match"}


def applies(key, value, facts):
    if key == "torch":
        have = tuple(int(p) for p in torch.__version__.split("+")[0].split(".")[:2])
        for text, holds in ((">=", lambda a, b: a >= b), ("<", lambda a, b: a < b)):
            if value.startswith(text):
                return holds(have, tuple(int(p) for p in value[len(text):].split(".")[:2]))
        return True
    return facts[key] in as_list(value)


def check_pinned(case, pinned, grads):
    for name, by_rank in pinned.items():
        for r, want in enumerate(by_rank):
            got = grads[name][r]
            if (want is None) != (got is None):
                return f"{name} on rank {r} is {got}, pinned {want}"
            if want is not None and not close(got, tensor_of(want).reshape(got.shape), case.dtype):
                return f"{name} on rank {r} is {got.tolist()}, pinned {want}"
    return ""


class Result:
    def __init__(self, case):
        self.case, self.verdict, self.why, self.findings = case, "", "", set()
        self.losses = self.truth = self.observed = None

    def judge(self):
        case = self.case
        truths = Truths(case)
        self.losses, self.truth = truths.losses, truths.by_objective
        problems = {"truth": check_truth(case, truths),
                    "program": check_single_device(case, truths)}
        self.findings = {f for f, why in problems.items() if why}
        self.why = "; ".join(w for w in problems.values() if w)
        if case.subject not in SUBJECTS:
            self.verdict = "unknown"
            return
        try:
            _, grads = observe(case, lambda call: rule_of(case.subject, call),
                               case.subject == "reference", case.dtype)
        except NotOffered as e:
            self.verdict, self.why = "skipped", str(e)
            return
        except Raises as e:
            self.verdict = "unknown" if "not emulated" in str(e) else "error"
            self.why = str(e)
            return
        self.observed = grads
        wrong, missing = compare(case, grads, truths.gradients, case.dtype)
        self.findings |= find(case, truths, grads, wrong, missing)
        self.verdict = "mismatch" if self.findings else "match"
        if wrong or missing:
            self.why += f" differs in {sorted(wrong)}, missing in {sorted(missing)}"

    def failure(self):
        """Why the case is not as the file expects, or an empty text."""
        expected = expectation_for(self.case)
        if self.verdict == "unknown":
            return ""
        verdict = expected.get("verdict", "match")
        if verdict == "disputed":  # needs error bounds, which the oracle does not have
            verdict = self.verdict
        if verdict != self.verdict:
            return f"expected {verdict}, got {self.verdict} {sorted(self.findings)} {self.why}"
        known = set(REPLAYS) | {"objective", "scaled", "no-gradient", "program", "truth"}
        finding = expected.get("finding")
        if finding in known and finding not in self.findings:
            return f"expected finding {finding}, got {sorted(self.findings)}"
        if "gradients" in expected and self.observed is not None:
            return check_pinned(self.case, expected["gradients"], self.observed)
        return ""


# ---------------------------------------------------------------------------------------------


def plain(value):
    """Tensors as nested lists; non-finite numbers as the words of the format."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, torch.Tensor):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def files_of(paths):
    for path in paths:
        if os.path.isdir(path):
            for folder, subfolders, names in os.walk(path):
                subfolders.sort()
                for name in sorted(names):
                    if name.endswith(".json"):
                        yield os.path.join(folder, name)
        else:
            yield path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", default=["scenarios"], metavar="PATH")
    parser.add_argument("--json", action="store_true", help="print every figure instead of lines")
    parser.add_argument("--torchscript", action="store_true",
                        help="read expressions as TorchScript")
    parser.add_argument("--quiet", action="store_true", help="print only what failed")
    parser.add_argument("--filter", default="", metavar="TEXT", help="cases whose name has TEXT")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.torchscript:
        global interpret
        interpret = as_torchscript
    rows, counts = [], {"ok": 0, "FAIL": 0, "invalid": 0}
    for path in files_of(options.paths):
        try:
            scenario = load(path)
            cases = list(expand(path, scenario))
            results = []
            for case in cases:
                if options.filter in case.id:
                    results.append(Result(case))
                    results[-1].judge()
        except (Invalid, json.JSONDecodeError) as e:
            counts["invalid"] += 1
            print(f"invalid {path}: {e}", file=sys.stderr)
            continue
        for result in results:
            failure = result.failure()
            counts["FAIL" if failure else "ok"] += 1
            if options.json:
                rows.append(plain({
                    "id": result.case.id, "subject": result.case.subject,
                    "verdict": result.verdict, "findings": sorted(result.findings),
                    "why": result.why, "failure": failure, "losses": result.losses,
                    "truth": result.truth, "observed": result.observed}))
            elif failure:
                print(f"FAIL  {result.case.id}   {failure}")
            elif not options.quiet:
                print(f"ok    {result.case.id}   {result.verdict} "
                      f"{' '.join(sorted(result.findings))}")
    if options.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
    print(", ".join(f"{n} {what}" for what, n in counts.items()), file=sys.stderr)
    return 1 if counts["FAIL"] or counts["invalid"] else 0


if __name__ == "__main__":
    sys.exit(main())
