"""Subjects on real process groups over Gloo: values and gradients against a simulation of all ranks
in one graph."""

import json
import os
import signal
import sys
import time
import traceback
import unittest
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # noqa: F401  before the forks: it takes its time
import torch.distributed.nn.functional  # noqa: F401
import torch.fx.experimental.symbolic_shapes  # noqa: F401  which backward with a cotangent imports

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from distgrad.ranks import warned  # noqa: E402
from distgrad.ranks.call import Call, NotOffered, RankGroup, SubjectError  # noqa: E402
from distgrad.ranks.subjects import load_subject  # noqa: E402

SUBJECTS = FOLDER / "subjects"
NN = "python:torch.distributed.nn.functional"
FUNCTIONAL = "python:torch.distributed._functional_collectives"


class World:
    """What a test's function gets on its rank."""

    def __init__(self, rank, size, partitions):
        self.rank, self.size = rank, size
        self.groups = {"": RankGroup("", tuple(range(size)), rank, dist.group.WORLD)}
        for name, partition in partitions.items():
            for ranks in partition:
                process_group = dist.new_group(ranks)
                if rank in ranks:
                    self.groups[name] = RankGroup(name, tuple(ranks), ranks.index(rank),
                                                  process_group)

    def call(self, kind, group="", op="sum", factor=None, root=0, dim=None, splits=None, pairs=None,
             step="y"):
        return Call(kind, step, op, factor, root, dim, splits, pairs, self.groups[group])

    def run(self, subject, call, x, cotangent):
        """(value, gradient of the operand), or the text of NotOffered."""
        x = x.clone().requires_grad_()
        try:
            subject.check(call)
            y = subject(call, x * 1.0)
        except NotOffered as reason:
            return str(reason)
        y.backward(cotangent(y))
        return y.detach(), x.grad


def in_world(size, function, partitions=None, timeout_s=60):
    """Runs function(World) on `size` forked ranks; returns what it gave, by rank, through JSON. An
    exception on any rank fails the test with its traceback."""
    ports, ranks = os.pipe(), []
    for rank in range(size):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_rank(rank, size, function, partitions or {}, ports, write, timeout_s)
        os.close(write)
        ranks.append((pid, read))
    for end in ports:
        os.close(end)
    texts = []
    for pid, read in ranks:
        with os.fdopen(read) as stream:
            texts.append(stream.read())
        os.waitpid(pid, 0)
    answers = [json.loads(text) if text else {"raised": "the rank died"} for text in texts]
    raised = [f"rank {r}: {a['raised']}" for r, a in enumerate(answers) if "raised" in a]
    if raised:
        raise AssertionError("\n".join(raised))
    return [a["result"] for a in answers]


def _be_rank(rank, size, function, partitions, ports, write, timeout_s):
    signal.alarm(timeout_s)
    torch.set_num_threads(1)
    # New memory is filled with NaN, as in ranks. The function that torch documents for it imports
    # the inductor: 2 s.
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    warnings.simplefilter("ignore")
    try:
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False)
            os.write(ports[1], f"{store.port:>8}".encode() * (size - 1))
        else:
            store = dist.TCPStore("127.0.0.1", int(os.read(ports[0], 8)), size, False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        answer = {"result": function(World(rank, size, partitions))}
        dist.barrier()  # rank 0 holds the store
    except BaseException:
        answer = {"raised": traceback.format_exc()}
    os.write(write, json.dumps(answer).encode())
    os._exit(0)


# The oracle: every rank computes what all of them should have, in one graph.

def value_of(rank, shape, seed):
    """Small integers, different on every rank, so that sums are exact."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(-4, 5, shape, generator=generator).to(torch.float64)


def results_of(call, xs):
    """The collective's outputs, by rank of the group."""
    n, dim = len(xs), call.dim or 0
    if call.kind in ("all_reduce", "reduce", "reduce_scatter"):
        stacked = torch.stack(xs)
        total = {"sum": stacked.sum, "avg": stacked.mean, "max": stacked.amax,
                 "product": stacked.prod}[call.op](0)
    if call.kind == "all_reduce":
        return [total] * n
    if call.kind == "reduce":
        return [total if r == call.root else total * 0 for r in range(n)]
    if call.kind == "broadcast":
        return [xs[call.root]] * n
    if call.kind in ("all_gather", "gather"):
        joined = torch.stack(xs) if call.dim is None else torch.cat(xs, call.dim)
        return [joined if call.kind == "all_gather" or r == call.root else joined * 0
                for r in range(n)]
    if call.kind in ("scatter", "reduce_scatter"):
        whole = xs[call.root] if call.kind == "scatter" else total
        return list(whole.split(list(call.splits[0]) if call.splits else whole.shape[dim] // n,
                                dim))
    if call.kind == "all_to_all":
        pieces = [x.split(list(call.splits[r]) if call.splits else x.shape[dim] // n, dim)
                  for r, x in enumerate(xs)]
        return [torch.cat([pieces[s][r] for s in range(n)], dim) for r in range(n)]
    raise ValueError(call.kind)


def truth(call, shapes):
    """(own output, own operand's gradient) of rank call.group.rank, cotangents being ones times
    rank + 2."""
    xs = [value_of(r, shape, 1).requires_grad_() for r, shape in enumerate(shapes)]
    ys = results_of(call, xs)
    loss = sum(((r + 2.0) * y).sum() for r, y in enumerate(ys))
    grads = torch.autograd.grad(loss, xs, allow_unused=True)
    own = call.group.rank
    return ys[own].detach(), torch.zeros_like(xs[own]) if grads[own] is None else grads[own]


def compared(world, subject, call, shapes):
    """"ok", NotOffered's text, or what differs."""
    own = call.group.rank
    outcome = world.run(subject, call, value_of(own, shapes[own], 1),
                        lambda y: torch.full_like(y, own + 2.0))
    if isinstance(outcome, str):
        return outcome
    for what, got, wanted in zip(("value", "gradient"), outcome, truth(call, shapes)):
        if got is None:
            return f"{what} None is not {wanted.tolist()}"
        if got.shape != wanted.shape or not torch.equal(got, wanted):
            return f"{what} {got.tolist()} is not {wanted.tolist()}"
    return "ok"


class Case(unittest.TestCase):
    def assert_all(self, results, wanted="ok"):
        """Every rank's outcome is `wanted`, or contains it."""
        for rank, result in enumerate(results):
            self.assertIn(wanted, result, f"rank {rank}")


class TorchModules(Case):
    """What a rule set says of torch's own modules is what they do: right where it says adjoint, and
    else another thing."""

    def test_nn_is_the_adjoint_where_it_should_be(self):
        calls = [(dict(kind="all_reduce"), [(2, 3)] * 3), (dict(kind="all_reduce"), [()] * 3),
                 (dict(kind="reduce", root=2), [(2,)] * 3),
                 (dict(kind="broadcast", root=1), [(2, 2)] * 3),
                 (dict(kind="all_gather"), [()] * 3), (dict(kind="all_gather"), [(2, 3)] * 3),
                 (dict(kind="all_gather", dim=-1), [(2, 3)] * 3),
                 (dict(kind="all_gather", dim=0), [(0, 3)] * 3),
                 (dict(kind="gather", root=1), [(2,)] * 3),
                 (dict(kind="gather", root=2, dim=1), [(2, 3)] * 3),
                 (dict(kind="reduce_scatter"), [(6, 2)] * 3),
                 (dict(kind="reduce_scatter", dim=1), [(2, 6)] * 3),
                 (dict(kind="reduce_scatter", splits=((2, 2, 2),)), [(6,)] * 3),
                 (dict(kind="scatter", root=1), [(3, 2)] * 3),
                 (dict(kind="scatter", root=2, dim=-1), [(2, 3)] * 3),
                 (dict(kind="all_to_all"), [(6,)] * 3),
                 (dict(kind="all_to_all", dim=1), [(2, 3)] * 3),
                 (dict(kind="all_to_all", splits=((1, 2, 0), (0, 1, 1), (2, 0, 3))),
                  [(3, 2), (2, 2), (5, 2)])]
        self.check_calls(NN, calls)

    def test_functional_is_the_adjoint_where_it_should_be(self):
        calls = [
            (dict(kind="all_reduce"), [(2, 3)] * 3),
            (dict(kind="all_gather"), [()] * 3),
            (dict(kind="all_gather"), [(2, 3)] * 3),
            (dict(kind="all_gather", dim=1), [(2, 3)] * 3),
            (dict(kind="all_gather", dim=1), [(1, 2)] * 3),  # a view of what was received
            (dict(kind="all_gather", dim=-2), [(2, 3)] * 3),
            (dict(kind="reduce_scatter"), [(6, 2)] * 3),
            (dict(kind="reduce_scatter", dim=1), [(2, 6)] * 3),
            (dict(kind="all_to_all", dim=1), [(2, 3)] * 3),
            (dict(kind="all_to_all", splits=((1, 2, 0), (0, 1, 1), (2, 0, 3))),
             [(3, 2), (2, 2), (5, 2)]),
        ]
        self.check_calls(FUNCTIONAL, calls)

    def check_calls(self, text, calls):
        def on_rank(world):
            subject = load_subject(text)
            return [compared(world, subject, world.call(**options), shapes)
                    for options, shapes in calls]

        for results in in_world(3, on_rank):
            for (options, shapes), result in zip(calls, results):
                self.assertEqual(result, "ok", f"{text} {options} {shapes}")

    def test_nn_applies_the_op_to_the_cotangents(self):
        def on_rank(world):
            call = world.call("all_reduce", op="product")
            x = torch.tensor([2.0 + world.rank], dtype=torch.float64)
            y, gradient = world.run(load_subject(NN), call, x, torch.ones_like)
            return [y.item(), gradient.item()]

        self.assertEqual(in_world(2, on_rank), [[6.0, 1.0], [6.0, 1.0]])

    def test_functional_raises_in_backward_for_what_it_has_no_backward_of(self):
        def on_rank(world):
            x = torch.ones(2, requires_grad=True)
            y = load_subject(FUNCTIONAL)(world.call("all_reduce", op="product"), x)
            try:
                y.sum().backward()
            except RuntimeError as error:
                return str(error)
            return "no error"

        self.assert_all(in_world(2, on_rank), "backward only supports")

    def test_what_they_do_not_have_is_not_offered(self):
        def on_rank(world):
            nn, functional = load_subject(NN), load_subject(FUNCTIONAL)
            return [
                compared(world, functional, world.call("send_recv", pairs=((0, 1),)), [(2,)] * 2),
                compared(world, functional, world.call("gather"), [(2,)] * 2),
                compared(world, nn, world.call("send_recv", pairs=((0, 1),)), [(2,)] * 2),
                compared(world, nn, world.call("scatter", splits=((1, 2),)), [(3,)] * 2),
                compared(world, nn, world.call("all_gather", dim=0), [(1,), (2,)]),
                compared(world, functional, world.call("all_gather", dim=0), [(1,), (2,)]),
                compared(world, nn, world.call("all_reduce", op="premul_sum", factor=2.0),
                         [(1,)] * 2),
                compared(world, functional, world.call("all_reduce", op="premul_sum", factor=2.0),
                         [(1,)] * 2),
            ]

        wanted = ["takes a permutation", "has no gather", "has no send_recv", "one size",
                  "one shape", "one shape", "premul_sum", "premul_sum"]
        for results in in_world(2, on_rank):
            for result, text in zip(results, wanted):
                self.assertIn(text, result)

    def test_subgroups_get_torchs_numbering_of_the_root(self):
        def on_rank(world):
            call = world.call("reduce", group="tp", root=1)
            return compared(world, load_subject(NN), call, [(2,)] * 2)

        self.assert_all(in_world(4, on_rank, {"tp": [[0, 1], [2, 3]]}))


class UserFunctions(Case):
    def test_simclr_and_vissl(self):
        def on_rank(world):
            simclr = load_subject(f"all_gather=python:{SUBJECTS}/simclr.py:GatherLayer.apply")
            vissl = load_subject(f"all_gather=python:{SUBJECTS}/simclr.py:VisslGather")
            method = load_subject(f"all_gather=python:{SUBJECTS}/simclr.py:Contrastive.gather_all")
            call = world.call("all_gather")
            _, own_slice = world.run(simclr, call, torch.ones(2),
                                     lambda y: torch.full_like(y, world.rank + 2.0))
            value, _ = world.run(method, call,
                                 value_of(world.rank, (2, 2), 1).float(), torch.ones_like)
            return [own_slice.tolist(), compared(world, vissl, call, [(2, 2)] * 2),
                    compared(world, vissl, world.call("all_gather", dim=1), [(2, 3)] * 2),
                    torch.equal(value,
                                torch.stack([value_of(r, (2, 2), 1).float() for r in range(2)])),
                    compared(world, method, world.call("all_gather", dim=1), [(2, 2)] * 2),
                    compared(world, method, call, [()] * 2)]

        for rank, result in enumerate(in_world(2, on_rank)):
            own_slice, stacked, joined, method, other_dim, scalar = result
            # Not 5, the sum: SimCLR's mistake is seen
            self.assertEqual(own_slice, [rank + 2.0] * 2)
            self.assertEqual((stacked, joined, method), ("ok", "ok", True))
            self.assertIn("works along 0, not 1", other_dim)
            self.assertIn("no dimension", scalar)

    def test_a_function_along_the_last_dimension_gives_the_steps_concatenation_and_stack(self):
        def on_rank(world):
            subject = load_subject(f"all_gather=python:{SUBJECTS}/misshapen.py:joined_along_1")
            x = torch.arange(6.0).reshape(2, 3) + 10 * world.rank
            return [subject(world.call("all_gather", dim=dim), x).tolist() for dim in (0, None, -1)]

        parts = [(torch.arange(6.0).reshape(2, 3) + 10 * rank) for rank in range(2)]
        right = [torch.cat(parts).tolist(), torch.stack(parts).tolist(),
                 torch.cat(parts, 1).tolist()]
        self.assertEqual(in_world(2, on_rank), [right] * 2)

    def test_that_a_function_returned_none_is_said(self):
        def on_rank(world):
            said = []
            for kind, name in (("all_reduce", "forgets_to_return"), ("all_reduce", "in_place"),
                               ("all_gather", "forgets_to_return")):
                subject = load_subject(f"{kind}=python:{SUBJECTS}/misshapen.py:{name}")
                with warned.caught() as found:
                    try:
                        subject(world.call(kind), torch.ones(2))
                    except SubjectError as error:
                        said.append(str(error))
                said += warned.texts_of(found)
            return said

        for rank, (forgotten, gathered) in enumerate(in_world(2, on_rank)):
            self.assertRegex(forgotten, "misshapen.py:forgets_to_return returned None and left its"
                                        " operand as it was, which is taken for its result$")
            self.assertIn(f"forgets_to_return returned None on rank {rank}, where a tensor or",
                          gathered)

    def test_a_long_text_of_an_exception_takes_no_minute(self):
        def on_rank(world):
            subject = load_subject(f"all_reduce=python:{SUBJECTS}/misshapen.py:says_much")
            begin = time.monotonic()
            with self.assertRaises(RuntimeError):
                subject(world.call("all_reduce"), torch.ones(2))
            return time.monotonic() - begin

        self.assertLess(max(in_world(2, on_rank, timeout_s=100)), 30)

    def test_setup_gives_groups_to_global_state(self):
        def on_rank(world):
            subject = load_subject(f"python:{SUBJECTS}/megatron.py")
            subject.setup(world.groups)
            subject.setup(world.groups)
            module = next(m for n, m in sys.modules.items() if n.endswith("megatron_py"))
            x = torch.ones(2, 3)
            reduced = subject(world.call("all_reduce", group="tp"), x)
            return {
                "set up": module.SET_UP,
                "reduced": reduced[0, 0].item(),
                "operand": x[0, 0].item(),
                "world": compared(world, subject, world.call("all_reduce"), [(2,)] * 4),
                "gather": compared(world, subject, world.call("gather", group="tp"), [(2,)] * 2),
                "slice": list(
                    subject(world.call("slice", group="tp", dim=-1), torch.ones(2, 4)).shape),
                "identity": world.run(subject, world.call("all_reduce", group="tp"), x,
                                      torch.ones_like)[1][0, 0].item(),
                "copy": world.run(subject, world.call("copy", group="tp"), x,
                                  torch.ones_like)[1][0, 0].item(),
                "joined": list(subject(world.call("all_gather", group="tp", dim=1), x).shape),
            }

        for result in in_world(4, on_rank, {"tp": [[0, 1], [2, 3]]}):
            self.assertEqual(result["set up"], [["", "tp"]])
            # In place, on a copy
            self.assertEqual((result["reduced"], result["operand"]), (2.0, 1.0))
            self.assertIn("does not provide for the whole world", result["world"])
            self.assertIn("has no gather", result["gather"])
            self.assertEqual((result["slice"], result["joined"]), ([2, 2], [2, 6]))
            self.assertEqual((result["identity"], result["copy"]), (1.0, 2.0))

    def test_all_to_all_in_four_styles(self):
        uneven = ((1, 2), (3, 0))

        def on_rank(world):
            results = {}
            for name in ("MegatronAllToAll.apply", "DeepSpeedAllToAll", "colossal_all_to_all",
                         "exchange"):
                subject = load_subject(f"all_to_all=python:{SUBJECTS}/all_to_all.py:{name}")
                results[name] = [
                    compared(world, subject, world.call("all_to_all"), [(4, 2)] * 2),
                    compared(world, subject, world.call("all_to_all", dim=1), [(4, 2)] * 2),
                ]
                if name in ("MegatronAllToAll.apply", "DeepSpeedAllToAll"):
                    exchange = world.call("all_to_all", splits=uneven)
                    results[name].append(compared(world, subject, exchange, [(3,), (3,)]))
            return results

        for results in in_world(2, on_rank):
            even, dim_1, by_splits = results["MegatronAllToAll.apply"]
            self.assertEqual((even, by_splits), ("ok", "ok"))
            self.assertIn("no parameter for the dimension", dim_1)
            even, dim_1, by_splits = results["DeepSpeedAllToAll"]
            self.assertEqual(even, "ok")
            self.assertIn("no parameter for the dimension", dim_1)
            self.assertIn("no parameter for splits", by_splits)
            # dist.all_to_all has no gradient, and Gloo of old none
            for name in ("colossal_all_to_all", "exchange"):
                for result in results[name]:
                    self.assertRegex(result, "^gradient|Backend gloo does not support")

    def test_all_to_all_along_two_dimensions(self):
        def outcome(world, subject, dim):
            try:
                return compared(world, subject, world.call("all_to_all", dim=dim), [(4, 4)] * 2)
            except RuntimeError as error:  # of a gradient of another shape
                return f"raised {error}"

        def on_rank(world):
            def outcomes(name):
                place = f"all_to_all=python:{SUBJECTS}/all_to_all.py:{name}"
                return [outcome(world, load_subject(place), dim) for dim in (0, 1, -1)]

            return {name: outcomes(name) for name in ("SeqAllToAll", "SeqAllToAllBackTheSameWay")}

        for results in in_world(2, on_rank):
            for result in results["SeqAllToAll"]:
                self.assertRegex(result, "^ok|Backend gloo does not support")
            for result in results["SeqAllToAllBackTheSameWay"]:
                self.assertRegex(result, "^raised|Backend gloo does not support")

    def test_what_is_off_the_root_is_zeros_in_the_graph(self):
        def on_rank(world):
            text = f"python:{SUBJECTS}/rooted.py"
            subject = load_subject(f"reduce={text}:reduce+gather={text}:gather")
            results = [compared(world, subject, world.call("reduce", root=root), [(2,)] * 3)
                       for root in (0, 2)]
            results.append(compared(world, subject, world.call("gather", root=1), [(2,)] * 3))
            value, _ = world.run(load_subject(f"broadcast={text}:broadcast"),
                                 world.call("broadcast", root=1), torch.tensor([float(world.rank)]),
                                 torch.ones_like)
            return results + ["ok" if value.item() == 1.0 else f"broadcast gave {value}"]

        for results in in_world(3, on_rank):
            self.assertEqual(results, ["ok"] * 4)

    def test_roots_count_in_the_group_or_in_the_world_as_their_names_say(self):
        def on_rank(world):
            text = f"python:{SUBJECTS}/rooted.py"
            subject = load_subject(f"reduce={text}:reduce+gather={text}:gather")
            return [compared(world, subject, world.call(kind, group="tp", root=1), [(2,)] * 2)
                    for kind in ("reduce", "gather")]

        for results in in_world(4, on_rank, {"tp": [[0, 1], [2, 3]]}):
            self.assertEqual(results, ["ok", "ok"])

    def test_modules_are_made_for_each_call_and_instances_are_called(self):
        def on_rank(world):
            subject = load_subject(f"all_reduce=python:{SUBJECTS}/modules.py:AllReduce")
            module = next(m for n, m in sys.modules.items() if n.endswith("modules_py"))
            results = [compared(world, subject, world.call("all_reduce", step=step), [(2,)] * 2)
                       for step in "yz"]
            made = module.AllReduce.made - 1  # the file itself makes one
            instance = load_subject(f"python:{SUBJECTS}/modules.py:all_reduce")
            tripled, _ = world.run(instance, world.call("all_reduce"), torch.ones(1),
                                   torch.ones_like)
            separate = load_subject(f"all_reduce=python:{SUBJECTS}/modules.py:sum_with_context")
            results.append(compared(world, separate, world.call("all_reduce"), [(2,)] * 2))
            return [results, made, tripled.item()]

        for results, made, tripled in in_world(2, on_rank):
            self.assertEqual(results, ["ok"] * 3)
            self.assertEqual((made, tripled), (2, 6.0))

    def test_a_buffer_to_fill_is_made(self):
        def on_rank(world):
            subject = load_subject(f"all_gather=python:{SUBJECTS}/misshapen.py:fill")
            stacked = subject(world.call("all_gather"), torch.full((2,), float(world.rank)))
            return stacked.tolist()

        self.assertEqual(in_world(2, on_rank), [[[0.0, 0.0], [1.0, 1.0]]] * 2)

    def test_strides_of_the_operand_reach_the_function(self):
        """One that is wrong for tensors that are not contiguous must be seen to be."""
        def on_rank(world):
            strides = []
            subject = load_subject(f"all_reduce=python:{SUBJECTS}/observer.py:all_reduce")
            module = next(m for n, m in sys.modules.items() if n.endswith("observer_py"))
            x = torch.arange(24.0).reshape(4, 6)
            for operand in (x.t(), x[:, ::2], x[1:2].expand(3, 6), x[:0], torch.tensor(1.0)):
                value = subject(world.call("all_reduce"), operand)
                strides.append([list(module.seen[-1]) == list(operand.stride())
                                or operand.numel() == 0, torch.equal(value, operand)])
            return strides

        self.assertEqual(in_world(1, on_rank), [[[True, True]] * 5])

    def test_what_is_no_result_is_reported(self):
        def on_rank(world):
            subject = load_subject(f"python:{SUBJECTS}/misshapen.py:all_gather")
            try:
                subject(world.call("all_gather"), torch.ones(2))
            except SubjectError as error:
                return str(error)
            return "no error"

        self.assert_all(in_world(2, on_rank),
                        "returned (a Tensor, a Tensor, a str), where tensors are expected")

    def test_averages_are_asked_for_by_flag(self):
        def on_rank(world):
            subject = load_subject(f"all_reduce=python:{SUBJECTS}/misshapen.py:reduce_mean")
            values = [subject(world.call("all_reduce", op=op), torch.ones(1)).item()
                      for op in ("sum", "avg")]
            return values + [compared(world, subject, world.call("all_reduce", op="max"),
                                      [(1,)] * 2)]

        for total, mean, refused in in_world(2, on_rank):
            self.assertEqual((total, mean), (2.0, 1.0))
            self.assertIn("sum and avg only", refused)


if __name__ == "__main__":
    unittest.main()
