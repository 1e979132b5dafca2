"""What check_step makes of what a step returns: placements, reductions, what is missing, the
report. On real ranks."""

import sys
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import distgrad  # noqa: E402

T = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -6.0], [7.0, 8.0, 0.25], [-1.0, 2.5, 9.0]],
                 dtype=torch.float64)
PARTS = [T * 0.5 + torch.eye(4, 3), -torch.eye(4, 3) + T, T * 0, T * -0.5]


def judged(parallel, truth=None, world_size=3, **options):
    """The report, of a failure, too."""
    try:
        return distgrad.check_step(parallel, {"w": T} if truth is None else truth, world_size,
                                   **options)
    except AssertionError as error:
        return error.report


# Many questions in one run of ranks: every parameter is one.
def plain_tensors(rank):
    other = T.clone()
    other[1, 1] += 1
    own = torch.zeros_like(T)
    own[rank] = T[rank]
    own[3] = T[3] if rank == 2 else 0
    bad = T.clone()
    bad[0, 0] = float("nan")
    share = PARTS[rank] if rank < 2 else PARTS[3]
    return {
        "right": T,
        "thrice": 3 * T,
        "ninth": T / 9,
        "negative": -T,
        "parts": share,
        "mean_parts": 3 * share,
        "own": own,
        "one_rank": other if rank == 1 else T,
        "one_scaled": 2 * T if rank == 2 else T,
        "none": None,
        "none_on_one": None if rank == 1 else T,
        "zero": 0 * T,
        "none_for_zero": None,
        "not_finite": bad,
        "both_not_finite": bad,
        "pieces": T.split([2, 1, 1])[rank],
        "columns": T.chunk(3, 1)[rank],
        "swapped": T.split([1, 1, 2])[rank][:1],
        "flat": T.flatten(),
        "scalar": torch.tensor(2.0),
        "empty": torch.zeros(0, 3),
        "complex": (1 + 2j) * T,
        "complex_wrong": (2 - 2j) * T,
        "extra": T,
        "by_rank": (rank + 1.137) * T,
        **({"missing_on_one": T} if rank else {}),
    }  # fmt: skip


PLAIN_TRUTH = ({name: T for name in plain_tensors(0)} | {
    "missing_on_one": T, "never": T, "none_for_zero": 0 * T,
    "both_not_finite": torch.full_like(T, torch.nan).where(T == 1, T), "scalar": torch.tensor(2.0),
    "empty": torch.zeros(0, 3), "complex": (1 + 2j) * T, "complex_wrong": (1 + 2j) * T})
del PLAIN_TRUTH["extra"]


class Plain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.report = judged(plain_tensors, PLAIN_TRUTH)

    def expect(self, finding, words, *names):
        for name in names:
            p = self.report.parameters[name]
            self.assertEqual(p.finding, finding, f"{name}: {p.text}")
            self.assertIn(words, p.text, name)

    def test_right(self):
        self.expect(None, "", "right", "none_for_zero", "both_not_finite", "pieces", "columns",
                    "flat", "scalar", "empty", "complex")

    def test_factors(self):
        self.expect("scaled", "3 times the reference (3 = the number of ranks)", "thrice")
        self.expect("scaled", "nothing here is 9; 9 = 3 x 3", "ninth")
        self.expect("scaled", "the negative", "negative")
        self.assertAlmostEqual(self.report.parameters["ninth"].factor, 1 / 9)
        self.expect("unsynchronised", "1.14 times the reference on rank 0, 2.14 times", "by_rank")

    def test_reductions(self):
        self.expect("missing-reduction", "needs a sum over ranks 0-2", "parts")
        self.expect("missing-reduction", "needs the average over ranks 0-2", "mean_parts")
        self.expect("own-slice", "own slice", "own")

    def test_one_rank(self):
        self.expect("unsynchronised", "wrong on rank 1, right on ranks 0, 2", "one_rank")
        self.assertEqual(self.report.parameters["one_scaled"].ranks, (2,))
        self.assertEqual(self.report.parameters["one_rank"].worst, "rank 1 [1, 1]: 5.0, truth 4.0")

    def test_missing(self):
        self.expect("no-gradient", "", "none", "none_on_one", "zero", "missing_on_one", "never")
        self.assertEqual(self.report.parameters["none_on_one"].ranks, (1,))
        self.assertIn("where the reference is zero",
                      str(self.report.parameters["none_for_zero"].notes))
        self.expect("unknown", "the reference has none", "extra")

    def test_the_rest(self):
        self.expect("unexplained", "NaN", "not_finite")
        self.expect("shape", "", "swapped")
        self.assertTrue(self.report.parameters["complex_wrong"].finding)
        self.assertIn("pieces of dimension 0, in the order of the ranks", str(self.report))

    def test_the_report_is_compares(self):
        self.assertEqual(self.report["kind"], "gradient-comparison")
        self.assertEqual(self.report["summary"]["not_right"], len(self.report.wrong))
        self.assertTrue(str(self.report).startswith(f"check_step: {len(self.report.wrong)} of"
                                                    f" {len(self.report.parameters)} gradients"))


def distributed_tensors(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = rank % 2, rank // 2
    share = PARTS[0] if tp == 0 else T - PARTS[0]

    def placed(local, *placements, full=None):
        return DTensor.from_local(local.clone(), mesh, placements, run_check=False, shape=full,
                                  stride=full and (full[1], 1))

    return {
        "sharded": placed(T.chunk(2)[tp], Replicate(), Shard(0)),
        "uneven": placed(T.chunk(2, 1)[tp], Replicate(), Shard(-1), full=(4, 3)),
        "scaled_piece": placed(T.chunk(2)[tp] * (4 if tp else 1), Replicate(), Shard(0)),
        "swapped": placed(T.chunk(2)[1 - tp], Replicate(), Shard(0)),
        "partial": placed(share, Replicate(), Partial()),
        "partial_max": placed(T - 2 + 2 * tp, Replicate(), Partial("max")),
        "averaged": placed(share, Replicate(), Partial("avg")),
        "not_summed": placed(share, Replicate(), Replicate()),
        "twice": placed(2 * T, Replicate(), Replicate()),
        "on_submesh": DTensor.from_local(T.clone(), mesh["tp"], [Replicate()]),
        "mixed": placed(T, Replicate(), Replicate()) if rank else T,
    }


class Distributed(unittest.TestCase):
    def test_placements(self):
        report = judged(distributed_tensors,
                        {name: T for name in ("sharded", "uneven", "scaled_piece", "swapped",
                                              "partial", "partial_max", "averaged", "not_summed",
                                              "twice", "on_submesh", "mixed")}, 4)
        found = {name: p.finding for name, p in report.parameters.items()}
        self.assertEqual(found, {"sharded": None, "uneven": None, "scaled_piece": "scaled",
                                 "swapped": "wrong-slice", "partial": None, "partial_max": None,
                                 "averaged": "scaled", "not_summed": "missing-reduction",
                                 "twice": "scaled", "on_submesh": None, "mixed": "unclear"})
        texts = {name: p.text for name, p in report.parameters.items()}
        self.assertEqual(report.parameters["scaled_piece"].ranks, (1, 3))
        self.assertIn("needs a sum over tp (ranks 0, 1; ranks 2, 3)", texts["not_summed"])
        self.assertIn("2 times the reference (2 = the size of dp or tp)", texts["twice"])


def stages(rank):
    return {"first": T} if rank == 0 else {"second": 2 * T,
                                           **({"third": T, "fourth": T} if rank == 1 else {})}


def pieces(rank):
    """Experts, [4, 2, 6], are cut over ep in dim 0 and over tp in dim 2."""
    whole = torch.arange(48.0).reshape(4, 2, 6).cos()
    return {"experts": whole.chunk(2)[rank // 2].chunk(2, 2)[rank % 2], "counted": whole * 6,
            "a.sum": PARTS[rank], "b.mean": 4 * PARTS[rank], "c.sum": 4 * PARTS[rank]}


class Holding(unittest.TestCase):
    def test_stages_are_found_and_lesser_ranks_are_not(self):
        report = judged(stages, {"first": T, "second": 2 * T, "third": T, "fourth": T},
                        partly_held=["four*"])
        self.assertEqual([p.name for p in report.wrong], ["third"])
        self.assertEqual(report.parameters["third"].text, "missing on rank 2, right on rank 1")
        self.assertIn("1 parameter on rank 0 alone", str(report))

    def test_a_pattern_that_fits_no_parameter_is_refused(self):
        truth = dict.fromkeys(("first", "second", "third", "fourth"), T)
        for options in ({"partly_held": ["forth"]}, {"reduce": {"forth": "sum"}}):
            with self.assertRaisesRegex(ValueError, "\"forth\" fits no parameter; did you mean"
                                                    " \"fourth\"\\? There are first, "):
                judged(stages, truth, **options)

    def test_names_with_a_prefix_are_told_without_an_option_of_the_command_line(self):
        truth = {f"model.{name}": T for name in ("first", "second", "third", "fourth")}
        with self.assertRaisesRegex(ValueError, 'but for "model." the names are the same$'):
            judged(stages, truth)

    def test_pieces_of_two_axes_counts_and_reductions(self):
        whole = pieces(0)["counted"] / 6
        truth = {"experts": whole, "counted": whole} | dict.fromkeys(("a.sum", "b.mean",
                                                                      "c.sum"), T)
        report = judged(pieces, truth, 4, counts={"micro-batches": 6},
                        reduce={"*.sum": "sum", "b*": "mean"})
        self.assertEqual({p.name: p.factor for p in report.wrong}, {"counted": 6, "c.sum": 4})
        self.assertIn("6 times the reference (6 = the number of micro-batches)",
                      report.parameters["counted"].text)


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.Linear(10, 4)).double()


def data_parallel(kind, same_batch):
    from torch.distributed.fsdp import fully_shard

    model = make_model()
    model = nn.parallel.DistributedDataParallel(model) if kind == "ddp" else fully_shard(model)
    x = torch.randn(2, 6,
                    generator=torch.Generator().manual_seed(0 if same_batch else dist.get_rank()),
                    dtype=torch.float64)
    model(x).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters()}


def single(world_size, same_batch):
    model = make_model()
    for rank in range(world_size):
        x = torch.randn(2, 6, generator=torch.Generator().manual_seed(0 if same_batch else rank),
                        dtype=torch.float64)
        (model(x).square().mean() / world_size).backward()
    return {name: p.grad for name, p in model.named_parameters()}


class Vacuous(unittest.TestCase):
    def test_the_same_batch_on_every_rank(self):
        for kind, same in (("ddp", True), ("ddp", False), ("fsdp", True)):
            with self.subTest(kind=kind, same=same):
                report = judged(lambda: data_parallel(kind, same), single(3, same))
                self.assertEqual(report.wrong, [])
                self.assertEqual(bool(report.vacuous), same)
                self.assertEqual("give each rank data of its own" in str(report), same)

    def test_it_fails_when_strict(self):
        with self.assertRaisesRegex(AssertionError, "vacuous: every gradient is zero") as raised:
            distgrad.check_step(lambda: {"w": 0 * T}, {"w": 0 * T}, 2, strict=True)
        self.assertEqual(raised.exception.report.wrong, [])

    def test_backward_passes_are_counted(self):
        def accumulated():
            model = make_model()
            x = torch.randn(6, 6, generator=torch.Generator().manual_seed(dist.get_rank()),
                            dtype=torch.float64)
            for part in x.chunk(3):
                model(part).square().mean().backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= 2
            return {name: p.grad for name, p in model.named_parameters()}

        def one():
            model = make_model()
            for rank in range(2):
                x = torch.randn(6, 6, generator=torch.Generator().manual_seed(rank),
                                dtype=torch.float64)
                (model(x).square().mean() / 2).backward()
            return {name: p.grad for name, p in model.named_parameters()}

        report = judged(accumulated, one, 2)
        self.assertEqual(
            {p.text for p in report.parameters.values()},
            {"3 times the reference (3 = the number of backward passes) on every rank"})


class Errors(unittest.TestCase):
    def test_the_exception_has_the_report_and_hides_its_frames(self):
        with self.assertRaises(AssertionError) as raised:
            distgrad.check_step(lambda: {"w": 2 * T}, {"w": T}, 2)
        self.assertEqual(raised.exception.report.parameters["w"].factor, 2)
        self.assertEqual(str(raised.exception), str(raised.exception.report))
        frames, frame = [], raised.exception.__traceback__
        while frame:
            frames.append(frame.tb_frame)
            frame = frame.tb_next
        self.assertTrue(all(f.f_locals.get("__tracebackhide__") for f in frames
                            if "distgrad/stepping" in f.f_code.co_filename))

    def test_nothing_returned_is_no_gradient(self):
        report = judged(dict, {"w": T}, 2)
        self.assertEqual(report.parameters["w"].finding, "no-gradient")

    def test_a_compiled_step_is_watched_without_harm(self):
        def compiled():
            model = make_model()
            x = torch.randn(2, 6, generator=torch.Generator().manual_seed(dist.get_rank()),
                            dtype=torch.float64)
            torch.compile(nn.parallel.DistributedDataParallel(model),
                          backend="aot_eager")(x).square().mean().backward()
            return {name: p.grad for name, p in model.named_parameters()}

        report = judged(compiled, single(2, False), 2)
        self.assertEqual((report.wrong, report.vacuous), ([], None))


if __name__ == "__main__":
    unittest.main()
