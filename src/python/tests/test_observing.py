"""Collective calls observed on real ranks: what is reported of each is right, and nothing else is
another than without."""

import sys
import unittest
from pathlib import Path

import torch

from small_driver import DriverTest

SUBJECTS = Path(__file__).resolve().parent / "subjects"
sys.path.insert(0, str(SUBJECTS))
HOSTILE = f"python:{SUBJECTS}/hostile.py:"
NN = "python:torch.distributed.nn.functional"
FUNCTIONAL = "python:torch.distributed._functional_collectives"

LOCAL = [{"axis": "", "kind": "local"}]
INVARIANT = [{"axis": "", "kind": "invariant"}]


def expression(text):
    return {"text": text, "pointer": ""}


def collective(name, operand, kind="all_reduce", group="", **more):
    call = {"kind": kind, "group": group, "op": "sum", "factor": 1.0, "root": 0, **more}
    return {"name": name, "pointer": "", "collective": {**call, "operand": expression(operand)}}


def step(name, text):
    return {"name": name, "pointer": "", "expr": expression(text)}


def program(steps, loss, x=None, size=3, groups=(), **more):
    """`x`: by rank; else numbers that differ by rank and element."""
    x = [number_grid(rank) for rank in range(size)] if x is None else x
    weight = {"name": "w", "pointer": "", "layout": INVARIANT, "value": torch.tensor(1.5),
              "sync": [{"axis": "", "op": "sum"}]}
    return {"world_size": size, "dtype": "float64", "groups": list(groups),
            "inputs": [{"name": "x", "pointer": "", "layout": LOCAL, "by_rank": x}, weight],
            "steps": steps, "loss": expression(loss), **more}


def number_grid(rank):
    return torch.arange(6.0, dtype=torch.float64).reshape(2, 3) * (rank + 1) - 4 * rank + 0.25


PAIRS = [{"name": "tp", "partition": [[0, 1], [3, 2]], "is_mesh_axis": False}]
# Operands and cotangents of all layouts; one cotangent that two steps share, one that is expanded,
# one value used three times.
CHAIN = program([collective("a", "w * x * (rank + 1)"), collective("b", "a.t()"),
                 step("h", "torch.tanh(a[:, ::2] * 0.125)"), collective("c", "h"),
                 collective("d", "a")],
                "((a + b.t()) * x).sum() + (c * c).sum() * (rank + 2) + torch.sum(d) + 0 * b[0, 0]")
SHARED = program([collective("a", "x"), collective("b", "2 * x"),
                  collective("c", "torch.ones(2, 1) * x[0]"), collective("d", "x[0].expand(2, 3)")],
                 "((a + b) * x).sum() + ((c + d) * (rank - 2.0)).sum()")
SUBGROUPS = program([collective("a", "w * x", group="tp"), collective("b", "a * a * (rank - 1.5)"),
                     step("e", "a.t()"), collective("c", "e.t()[:, 1:]", group="tp")],
                    "(b * x).sum() + c.sum() * rank", size=4, groups=PAIRS)
# Contiguous, all of it: what works in place has nothing to stumble on.
DENSE = program([collective("a", "w * x"), collective("b", "2 * a"), collective("c", "a")],
                "((a + b) * x).sum() + (c * c).sum() * (rank + 2)")
PROGRAMS = {"chain": CHAIN, "shared": SHARED, "dense": DENSE, "subgroups": SUBGROUPS}

FUNCTIONS = ("right overwrites clears doubles identity writes_the_same expanded through_a_view"
             " in_place unknown_to_autograd returns_operand hook_on_operand hook_on_result twice"
             " thrice residual first_of_two both_of_two none none_and_own detached Scaled metric"
             " remembers warns own_times_n own_twice sign_turned prefix_sum rolled"
             " operator").split()
MISTAKES = ("overwritten cleared stale narrower as_stored strided none_on_last prescaled"
            " prescaled_identity never_written").split()
SURROUNDINGS = ("right casts skips_when_recomputed returns_handle returns_before_wait"
                " differentiable_once").split()
MODULES = "sum_with_context AllReduce".split()
IN_MODES = ("right overwrites through_a_view in_place unknown_to_autograd hook_on_operand"
            " hook_on_result residual both_of_two none detached metric remembers").split()
# These do no harm to the cotangent.
HARMLESS = ("right identity writes_the_same twice thrice both_of_two metric remembers"
            " in_place").split()
MODES = ("@checkpoint", "@checkpoint-reentrant", "@autocast")


def of_file(file, names):
    return [f"all_reduce=python:{SUBJECTS}/{file}.py:{name}" for name in names]




def case(name, subject, **more):
    return {"program": PROGRAMS[name], "subject": subject,
            "weights": [1.0, 10.0, 100.0, 1000.0][:PROGRAMS[name]["world_size"]], **more}


def bits(value):
    """Something that is equal where all bits are."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.contiguous().view(torch.int64).flatten().tolist()
    return [bits(v) for v in value] if isinstance(value, list) else value


class Changes(DriverTest):
    """With and without, on two teams: in all that a subject could tell, they are alike."""

    def compare(self, size, cases):
        plain, observed = (self.driver.run(size, [{**c, **more} for c in cases])
                           for more in ({}, {"observe": True}))
        for asked, before, after in zip(cases, plain, observed):
            for rank, (a, b) in enumerate(zip(before, after)):
                with self.subTest(asked["subject"], rank=rank,
                                  steps=[s["name"] for s in asked["program"]["steps"]]):
                    for key in ("output", "loss", "loss_shape", "steps", "gradients", "warnings",
                                "composed", "skipped"):
                        self.assertEqual(bits(a[key]), bits(b[key]), key)
                    if not b["skipped"]:
                        names = [s["name"] for s in asked["program"]["steps"] if "collective" in s]
                        self.assertEqual([entry["step"] for entry in b["observed"]], names)
        return observed

    def test_for_all_kinds_of_subjects_in_all_modes(self):
        """On one pair of teams, as some of torch's modules take seconds to import."""
        everywhere = of_file("surroundings", SURROUNDINGS) + ["python:reference", "python:in_place"]
        cases = [case("chain", subject) for subject in everywhere]
        cases += [case(name, s) for name in ("chain", "shared")
                  for s in [*of_file("hostile", FUNCTIONS), NN, FUNCTIONAL]]
        cases += [case("dense", subject)
                  for subject in of_file("mistakes", MISTAKES) + of_file("modules", MODULES)]
        cases += [case("chain", s + mode) for mode in MODES
                  for s in [*of_file("hostile", IN_MODES), *everywhere]]
        cases += [case("dense", s + "@async")
                  for s in [*of_file("surroundings", ["returns_handle"]), FUNCTIONAL]]
        cases += [case("chain", subject + "@compile")
                  for subject in of_file("surroundings", ["local_when_compiled"])]
        cases += [case("dense", subject + "@compile")
                  for subject in of_file("hostile", ["operator"])]
        observed = self.compare(3, cases)
        self.assertTrue(any("hook [2, 3] (0, 0)" in r["output"] for r, *_ in observed))
        self.assertTrue(any(r["warnings"] == ["of the user's"] for r, *_ in observed))

    def test_in_groups(self):
        self.compare(4, [case("subgroups", s) for s in [*of_file("hostile", IN_MODES),
                                                        "python:reference", "python:in_place"]])


def groups_of(asked, name):
    call = next(s["collective"] for s in asked["steps"] if s["name"] == name)
    if not call["group"]:
        return [list(range(asked["world_size"]))]
    return next(g["partition"] for g in asked["groups"] if g["name"] == call["group"])


def observed_by_step(replies):
    """By step the entries by rank."""
    return {entry["step"]: [reply["observed"][i] for reply in replies]
            for i, entry in enumerate(replies[0]["observed"])}


def simulated(asked, weights):
    """By step (operands, cotangents, given), each by rank, of CHAIN or SUBGROUPS with a right
    all_reduce: all ranks in one graph."""
    size = asked["world_size"]
    xs = [x.clone() for x in asked["inputs"][0]["by_rank"]]
    w = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    values = [{"x": x, "w": w, "rank": rank, "torch": torch} for rank, x in enumerate(xs)]
    seen = {}
    for s in asked["steps"]:
        if "expr" in s:
            for scope in values:
                scope[s["name"]] = eval(s["expr"]["text"], scope)
            continue
        operands = [eval(s["collective"]["operand"]["text"], scope) * 1.0 for scope in values]
        results = [None] * size
        for ranks in groups_of(asked, s["name"]):
            total = sum(operands[rank] for rank in ranks)
            for rank in ranks:
                results[rank] = total * 1.0
        for rank, scope in enumerate(values):
            scope[s["name"]] = results[rank]
        for x in operands + results:
            x.retain_grad()
        seen[s["name"]] = operands, results
    sum(weight * eval(asked["loss"]["text"], scope)
        for weight, scope in zip(weights, values)).backward()
    return {name: ([x.detach() for x in operands], [y.grad for y in ys], [x.grad for x in operands])
            for name, (operands, ys) in seen.items()}


class Values(DriverTest):
    """What is reported is what there was."""

    def observe(self, name, subjects):
        asked = [case(name, subject, observe=True) for subject in subjects]
        return dict(zip(subjects, self.driver.run(PROGRAMS[name]["world_size"], asked)))

    def close(self, a, b, *what):
        self.assertEqual(a.shape, b.shape, what)
        self.assertLess(float((a - b).abs().max()), 1e-9 * float(1 + b.abs().max()), what)

    def test_of_right_calls_it_is_what_the_mathematics_says(self):
        modes = ["", *MODES[:2]]
        subjects = [s + m for s in of_file("hostile", ["right", "in_place", "operator"])
                    + ["python:reference"] for m in modes]
        for name in ("chain", "subgroups"):
            asked = PROGRAMS[name]
            right = simulated(asked, case(name, "")["weights"])
            for subject, replies in self.observe(
                    name, [*subjects, NN, FUNCTIONAL, FUNCTIONAL + "@async"]).items():
                for step_name, entries in observed_by_step(replies).items():
                    for rank, entry in enumerate(entries):
                        for key, by_rank in zip(("operand", "cotangent", "given"),
                                                right[step_name]):
                            self.close(entry[key], by_rank[rank], subject, step_name, rank, key)
                        self.assertNotIn("cotangent_after", entry)

    def test_strides_are_those_of_the_tensors(self):
        replies = self.observe(
            "chain", ["all_reduce=" + HOSTILE + "right"])["all_reduce=" + HOSTILE + "right"]
        entries = {e["step"]: e for e in replies[0]["observed"]}
        strides = {name: (e["operand_strides"], e["cotangent_strides"])
                   for name, e in entries.items()}
        self.assertEqual(strides["b"][0], [1, 3])
        self.assertEqual(strides["d"][1], [0, 0])
        lines = [line for line in replies[0]["output"].splitlines()
                 if line.startswith(("forward", "backward"))]
        reported = [f"forward {list(e['operand'].shape)} {tuple(e['operand_strides'])} "
                    for e in entries.values()]
        reported += [f"backward {list(e['cotangent'].shape)} {tuple(e['cotangent_strides'])} "
                     for e in reversed(entries.values())]
        self.assertEqual([line.startswith(text) for line, text in zip(lines, reported)], [True] * 8,
                         (lines, reported))

    def test_wrong_backwards_are_seen_to_give_what_they_give(self):
        from hostile import PLANTED

        for name in ("chain", "subgroups"):
            planted = dict(zip(of_file("hostile", PLANTED), PLANTED.values()))
            for subject, replies in self.observe(name, list(planted)).items():
                last = simulated(PROGRAMS[name], case(name, "")["weights"])["c"][1]
                for step_name, entries in observed_by_step(replies).items():
                    for ranks in groups_of(PROGRAMS[name], step_name):
                        cotangents = [entries[rank]["cotangent"] for rank in ranks]
                        for place, rank in enumerate(ranks):
                            wanted = planted[subject](cotangents, place)
                            self.assertTrue(torch.equal(entries[rank]["given"], wanted),
                                            (subject, step_name, rank))
                            if step_name == "c":  # which no wrong backward comes before
                                self.close(entries[rank]["cotangent"], last[rank])

    def test_shares_are_the_gradients_before_they_are_summed(self):
        (replies,) = self.observe("chain", ["python:reference"]).values()
        shares = [reply["shares"] for reply in replies]
        self.assertEqual([torch.equal(s[0], r["gradients"][0]) for s, r in zip(shares, replies)],
                         [True] * 3)
        self.assertEqual(len({float(s[1]) for s in shares}), 3)
        for reply in replies:
            self.close(sum(s[1] for s in shares), reply["gradients"][1])

    def test_what_comes_of_several_nodes_is_added(self):
        names = ["twice", "thrice", "residual", "both_of_two", "first_of_two", "none_and_own",
                 "hook_on_result", "hook_on_operand"]
        for subject, replies in self.observe("shared", of_file("hostile", names)).items():
            for step_name, entries in observed_by_step(replies).items():
                cotangents = [e["cotangent"] for e in entries]
                total, shared = sum(cotangents), 0 in entries[0]["cotangent_strides"]
                for rank, entry in enumerate(entries):
                    own = cotangents[rank]
                    wanted = {
                        "twice": total + 3 * own,
                        "thrice": total + own * entry["operand"] + 2 * total,
                        "residual": total + (own if shared else total),
                        "both_of_two": total + 2 * own,
                        "first_of_two": total,
                        "none_and_own": own,
                        "hook_on_result": 2 * total,
                        "hook_on_operand": own if shared else total,
                    }[subject.rpartition(":")[2]]
                    self.close(entry["given"], wanted, subject, step_name, rank)

    def test_what_is_missing_is_null(self):
        for subject, replies in self.observe("shared",
                                             of_file("hostile", ["none", "detached"])).items():
            for reply in replies:
                for entry in reply["observed"]:
                    self.assertIsNone(entry["given"])
                    self.assertEqual(entry["cotangent"] is None, subject.endswith("detached"))
                self.assertEqual([share is None for share in reply["shares"]], [False, True])

    def test_a_cotangent_of_none_counts_as_zeros(self):
        """As for torch, where the backward of the call behind gives None."""
        asked = program([collective("a", "x"), collective("b", "a")], "(b * x).sum()")
        subjects = of_file("hostile", ["none", "none_in_every_second"])
        replies = self.driver.run(
            3, [{"program": asked, "subject": s, "observe": True} for s in subjects])
        for (reply, *_), given in zip(replies, (None, 0.0)):
            entry = reply["observed"][0]
            self.assertEqual((float(entry["cotangent"].abs().max()), entry["cotangent_strides"]),
                             (0.0, []))
            self.assertEqual(entry["given"] if given is None else float(entry["given"].abs().max()),
                             given)

    def test_writes_to_the_cotangent_are_seen(self):
        """And only these: not that autograd adds in place to what it alone holds."""
        names = ["overwrites", "clears", "doubles", "through_a_view", "residual", "hook_on_operand"]
        for where in ("dense", "chain"):
            for subject, replies in self.observe(where, of_file("hostile", names)).items():
                for step_name, entries in observed_by_step(replies).items():
                    total = sum(e["cotangent"] for e in entries)
                    for entry in entries:
                        if 0 in entry["cotangent_strides"]:
                            self.assertNotIn("cotangent_after", entry, subject)
                            continue
                        own = entry["cotangent"]
                        wanted = {"doubles": 2 * own, "clears": 0 * own}.get(
                            subject.rpartition(":")[2], total)
                        self.close(entry["cotangent_after"], wanted, subject, step_name)
        subjects = [f"all_reduce={HOSTILE}{name}{mode}" for mode in ("", *MODES)
                    for name in HARMLESS]
        for replies in self.driver.run(3, [case(where, s, observe=True)
                                           for where in ("chain", "dense") for s in subjects]):
            for reply in replies:
                self.assertEqual([e["step"] for e in reply["observed"] if "cotangent_after" in e],
                                 [])

    def test_nothing_is_told_where_a_backward_runs_twice(self):
        twice = program([collective("y", "x")], "squared_gradient_norm((y * y).sum())")
        ((norm, *_),) = self.driver.run(
            3, [{"program": twice, "subject": "all_reduce=" + HOSTILE + "right", "observe": True}])
        self.assertEqual((norm["observed"] if "observed" in norm else [], len(norm["shares"])),
                         ([], 2))


if __name__ == "__main__":
    unittest.main()
