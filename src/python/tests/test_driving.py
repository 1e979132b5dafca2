"""One call driven again and again on real ranks: what comes back is the linear map that its
backward is."""

import socket
import sys
import unittest
from pathlib import Path

import torch

from small_driver import DriverTest

SUBJECTS = Path(__file__).resolve().parent / "subjects"
sys.path.insert(0, str(SUBJECTS))

from distgrad.ranks.call import Call, RankGroup  # noqa: E402
from distgrad.ranks.collectives import MODULES, options_of  # noqa: E402

LOCAL = [{"axis": "", "kind": "local"}]
PAIRS = [{"name": "tp", "partition": [[0, 2], [3, 1]], "is_mesh_axis": False}]
MODES = ("@checkpoint", "@checkpoint-reentrant", "@autocast")
ORDERS = {"contiguous": ((3, 1), (3, 1)), "transposed": ((1, 2), (1, 2)),
          "sliced": ((12, 2), (7, 1)), "mixed": ((1, 4), (3, 1))}


def hostile(name):
    return f"all_reduce=python:{SUBJECTS}/hostile.py:{name}"


def mistake(name):
    return f"all_reduce=python:{SUBJECTS}/mistakes.py:{name}"


def operand(rank, shape=(2, 3)):
    return torch.arange(float(torch.Size(shape).numel()),
                        dtype=torch.float64).reshape(shape) * (rank - 1.5) + rank + 1


def basis(shapes):
    """By rank: all cotangents that are 1 in one element of one rank."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    ones = torch.eye(sum(sizes), dtype=torch.float64).split(sizes, 1)
    return [part.reshape(-1, *shape) for part, shape in zip(ones, shapes)]


def driven(subject, cotangents, operands=None, strides=None, **call):
    """A case for Driver.run. `strides`: of the operand and of a cotangent, or none."""
    size = len(cotangents)
    call = {"kind": "all_reduce", "group": "", "op": "sum", "factor": 1.0, "root": 0, **call,
            "operand": {"text": "x", "pointer": ""}}
    by_rank = operands or [operand(rank) for rank in range(size)]
    program = {"world_size": size, "dtype": "float64", "groups": PAIRS if call["group"] else [],
               "inputs": [{"name": "x", "pointer": "", "layout": LOCAL, "by_rank": by_rank},
                          {"name": "c", "pointer": "", "layout": LOCAL, "by_rank": cotangents,
                           "requires_grad": False}],
               "steps": [{"name": "y", "pointer": "", "collective": call}],
               "loss": {"text": "", "pointer": ""}}
    of_operand, of_cotangent = strides or ((), ())
    return {"program": program, "subject": subject,
            "drive": {"cotangents": "c",
                      "operand_strides": [list(of_operand)] * size if of_operand else [],
                      "cotangent_strides": [list(of_cotangent)] * size}}


def matrix(replies):
    """M: a row for each element of the operands, rank by rank, a column for each cotangent."""
    return torch.cat([reply["gradients"][0].flatten(1) for reply in replies], 1).t()


def planted_matrix(rule, size, shape=(2, 3), parts=None):
    parts = parts or [list(range(size))]
    cotangents = basis([shape] * size)
    given = [None] * size
    for ranks in parts:
        for place, rank in enumerate(ranks):
            each = [rule([cotangents[r][k] for r in ranks], place)
                    for k in range(len(cotangents[0]))]
            given[rank] = torch.stack(each)
    return torch.cat([g.flatten(1) for g in given], 1).t()


def right_matrix(call, operands):
    """M*, by autograd through the joint function of all ranks' operands; and the outputs."""
    xs = [x.clone().requires_grad_() for x in operands]
    ys = getattr(MODULES[call.kind], f"simulated_{call.kind}")(xs, **options_of(call))
    cotangents = basis([y.shape for y in ys])
    columns = []
    for k in range(len(cotangents[0])):
        total = sum((y * c[k]).sum() for y, c in zip(ys, cotangents))
        columns.append(torch.cat([g.flatten() for g in torch.autograd.grad(
            total, xs, retain_graph=True, materialize_grads=True)]))
    return torch.stack(columns, 1), [y.detach() for y in ys]


class Matrices(DriverTest):
    def equal(self, a, b, *what):
        self.assertTrue(torch.equal(a, b), (*what, a, b))

    def test_the_planted_map_comes_back(self):
        from hostile import PLANTED

        subjects = {hostile(name): rule for name, rule in PLANTED.items()}
        subjects[hostile("identity")] = lambda gs, rank: gs[rank]
        subjects["python:reference"] = lambda gs, rank: sum(gs)
        subjects["python:in_place"] = lambda gs, rank: gs[rank]
        for size, layouts in ((3, ORDERS), (4, ["mixed"])):
            cotangents = basis([(2, 3)] * size)
            cases = [(s, rule, layout) for s, rule in subjects.items() for layout in layouts]
            replies = self.driver.run(
                size, [driven(s, cotangents, strides=ORDERS[layout]) for s, _, layout in cases])
            for (subject, rule, layout), by_rank in zip(cases, replies):
                self.equal(matrix(by_rank), planted_matrix(rule, size), subject, layout, size)
                total = sum(operand(rank) for rank in range(size))
                for reply in by_rank:
                    self.equal(reply["steps"][0], total, subject, layout)

    def test_in_groups_and_under_every_mode(self):
        from hostile import PLANTED

        names = ["sign_turned", "rolled"]
        cases = [(name, mode) for mode in ("", *MODES) for name in names]
        subjects = [hostile(name) + mode for name, mode in cases]
        cotangents = basis([(2, 3)] * 4)
        in_groups = self.driver.run(
            4, [driven(s, cotangents, group="tp", strides=ORDERS["mixed"]) for s in subjects])
        for (name, mode), replies in zip(cases, in_groups):
            wanted = planted_matrix(PLANTED[name], 4, parts=PAIRS[0]["partition"])
            self.equal(matrix(replies), wanted, name, mode)

    def test_asynchronous_and_compiled(self):
        """One that ignores what is compiled, and one that is local when it is; its map is another
        from the first call to the last."""
        cotangents = basis([(2,)] * 3)
        operands = [operand(rank, (2,)) for rank in range(3)]
        here, total = torch.eye(6, dtype=torch.float64), torch.eye(2, dtype=torch.float64).repeat(3,
                                                                                                  3)
        file = f"all_reduce=python:{SUBJECTS}/surroundings.py:"
        wanted = {file + "returns_handle@async": total, file + "local_when_compiled": total,
                  file + "local_when_compiled@compile": here}
        replies = self.driver.run(3, [driven(s, cotangents, operands) for s in wanted])
        for (subject, m), by_rank in zip(wanted.items(), replies):
            self.equal(matrix(by_rank), m, subject)

    def test_a_module_is_compiled_for_as_often_as_it_is_called(self):
        """torch gives up to compile what it has compiled eight times."""
        cotangents = basis([(2, 3)] * 2)
        subject = hostile("LocalWhenCompiled") + "@compile"
        (replies,) = self.driver.run(2, [driven(subject, cotangents)])
        self.equal(matrix(replies), torch.eye(12, dtype=torch.float64))

    def test_all_kinds_are_right_in_reference(self):
        world = RankGroup("", (0, 1, 2), 0, None)

        def call(kind, **more):
            return Call(**{**dict(kind=kind, step="y", op="sum", factor=None, root=0, dim=None,
                                  splits=None, pairs=None, group=world), **more})

        rows, wide = [(2, 3)] * 3, [(3, 2)] * 3
        calls = [(call("all_reduce", op="product"), rows), (call("all_reduce", op="max"), rows),
                 (call("reduce", root=2), rows), (call("broadcast", root=1), rows),
                 (call("all_gather"), rows), (call("all_gather", dim=0), [(1, 2), (3, 2), (2, 2)]),
                 (call("gather", root=1, dim=1), rows),
                 (call("reduce_scatter", dim=1), rows), (call("scatter", root=2, dim=0), wide),
                 (call("all_to_all", splits=((1, 2, 0), (0, 1, 1), (2, 0, 3)), dim=0),
                  [(3, 2), (2, 2), (5, 2)]),
                 (call("send_recv", pairs=((0, 1), (1, 2))), rows),
                 (call("copy"), rows), (call("slice", dim=1), rows)]
        cases, wanted = [], []
        for made, shapes in calls:
            operands = [operand(rank, shape) for rank, shape in enumerate(shapes)]
            m, ys = right_matrix(made, operands)
            wanted.append((made, m, ys))
            options = {key: getattr(made, key) for key in ("kind", "op", "root", "dim",
                                                           "splits", "pairs")
                       if getattr(made, key) is not None}
            cases.append(
                driven("python:reference", basis([y.shape for y in ys]), operands, **options))
        for (made, m, ys), replies in zip(wanted, self.driver.run(3, cases)):
            # What others owe a copied value is not in its joint function, which is local
            if made.kind == "copy":
                m = torch.eye(len(m), dtype=torch.float64)
            self.assertLess(float((matrix(replies) - m).abs().max()), 1e-12, made)
            for reply, y in zip(replies, ys):
                self.equal(reply["steps"][0], y, made)

    def test_operand_and_cotangent_lie_as_asked(self):
        """The subject tells what it sees."""
        layouts = {**ORDERS, "expanded": ((0, 1), (3, 0)), "one element": ((0, 0), (0, 0)),
                   "none": None}
        cotangents = [operand(rank + 3).unsqueeze(0) for rank in range(2)]
        replies = self.driver.run(2, [driven(hostile("right"), cotangents, strides=strides)
                                      for strides in layouts.values()])
        for (name, strides), by_rank in zip(layouts.items(), replies):
            of_operand, of_cotangent = strides or ((3, 1), (3, 1))
            firsts = [tuple(slice(0, 1) if stride == 0 else slice(None) for stride in of)
                      for of in (of_operand, of_cotangent)]
            for reply in by_rank:
                seen = [line.split(" 0 ")[0] for line in reply["output"].splitlines()]
                self.assertEqual(seen[:2], [f"forward [2, 3] {of_operand}",
                                            f"backward [2, 3] {of_cotangent}"], name)
                self.equal(reply["steps"][0],
                           sum(operand(rank)[firsts[0]] for rank in range(2)).expand(2, 3), name)
                self.equal(reply["gradients"][0][0],
                           sum(operand(rank + 3)[firsts[1]] for rank in range(2)).expand(2, 3),
                           name)

    def test_layouts_that_matter_are_seen_to(self):
        cotangents = [operand(rank).unsqueeze(0) for rank in range(3)]
        strides = [ORDERS["contiguous"], ORDERS["transposed"]]
        plain, transposed = self.driver.run(
            3, [driven(mistake("as_stored"), cotangents, strides=s) for s in strides])
        total = sum(operand(rank) for rank in range(3))
        self.equal(plain[0]["gradients"][0][0], total)
        self.equal(transposed[0]["gradients"][0][0], total.t().reshape(2, 3))

    def test_what_is_none(self):
        cotangents = basis([(2, 3)] * 3)
        names = ["none", "detached", "none_in_every_second"]
        cases = [driven(s, cotangents) for s in [*map(hostile, names), mistake("none_on_last")]]
        none, detached, second, last = self.driver.run(3, cases)
        for reply in [*none, *detached]:
            self.assertEqual(reply["gradients"], [None])
            self.equal(reply["steps"][0], sum(operand(rank) for rank in range(3)))
        total = torch.eye(6, dtype=torch.float64).repeat(3, 3)
        every_second = torch.arange(18) % 2 == 0
        self.equal(matrix(second), total * every_second)
        self.assertEqual(last[2]["gradients"], [None])
        self.equal(matrix(last[:2]), total[:12])

    def test_what_a_backward_writes_is_of_no_other_call(self):
        """Each has an operand and a cotangent of its own."""
        cotangents = basis([(2, 3)] * 3)
        names = ["overwrites", "clears", "doubles", "in_place", "metric"]
        replies = self.driver.run(3, [driven(hostile(name), cotangents) for name in names])
        for name, by_rank in zip(names, replies):
            self.equal(matrix(by_rank), torch.eye(6, dtype=torch.float64).repeat(3, 3), name)

    def test_warnings_and_what_was_composed_are_told_once(self):
        cotangents = basis([(2, 3)] * 2)
        warned, composed = self.driver.run(2, [driven(hostile("warns"), cotangents),
                                               driven("python:reference", cotangents, op="max")])
        self.assertEqual([reply["warnings"] for reply in warned], [["of the user's"]] * 2)
        self.assertEqual([reply["composed"] for reply in composed],
                         [["all_reduce max of float64: composed of all_gather"]] * 2)

    def test_a_collective_that_only_some_ranks_make_is_not_paired_with_one_of_the_next_call(self):
        """What hangs in a training step hangs here: the map of anything else would be none of its
        backward's."""
        ranks, _ = self.driver.team(3)
        for rank in ranks:
            rank.request(**driven(hostile("skips_zeros"), basis([(2, 3)] * 3)))
        ranks[0].channel._socket.settimeout(1.5)
        with self.assertRaises(socket.timeout):
            ranks[0].reply()
        for rank in ranks:
            self.driver.send(kind="kill", worker=rank.forked["worker"])
            self.assertEqual(self.driver.event()["kind"], "exited")


if __name__ == "__main__":
    unittest.main()
