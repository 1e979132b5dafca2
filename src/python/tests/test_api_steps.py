"""check_step on real training steps: right ones pass, wrong ones are named."""

import os
import re
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import distgrad  # noqa: E402
from distgrad.step_report import StepReport  # noqa: E402


def make_model():
    torch.manual_seed(3)
    # The last dimension is 7 for uneven shards.
    return nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.ReLU(), nn.Linear(10, 7)).double()


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 6, generator=generator, dtype=torch.float64)


def my_batch():
    return batch().chunk(dist.get_world_size())[dist.get_rank()]


def loss_of(model, x):
    return (model(x) ** 2).mean()


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters()}


def single():
    model = make_model()
    loss_of(model, batch()).backward()
    return gradients(model)


def data_parallel(scale=1.0):
    model = nn.parallel.DistributedDataParallel(make_model())
    first, second = my_batch().chunk(2)
    with model.no_sync():
        (loss_of(model, first) / 2 * scale).backward()
    (loss_of(model, second) / 2 * scale).backward()
    return gradients(model)


def loss_times_world_size():
    return data_parallel(dist.get_world_size())


def divided_twice():
    return data_parallel(1 / dist.get_world_size())


def without_all_reduce():
    model = make_model()
    loss_of(model, my_batch()).backward()
    return gradients(model)


def loss_in_float32(model, x):
    return (model(x).float()**2).mean()


def data_parallel_in_float32():
    model = nn.parallel.DistributedDataParallel(make_model())
    loss_in_float32(model, my_batch()).backward()
    return gradients(model)


def scrambled():
    """Each gradient wrong in its own way, by nothing that numbers show."""
    model = make_model()
    loss_of(model, batch()).backward()
    return {name: grad * torch.randn_like(grad) for name, grad in gradients(model).items()}


def single_in_float32():
    model = make_model()
    loss_in_float32(model, batch()).backward()
    return gradients(model)


def reduced_in_bfloat16():
    """Where nothing is in a gradient's way: a hook that compresses what is exchanged."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    model = nn.parallel.DistributedDataParallel(make_model())
    model.register_comm_hook(None, bf16_compress_hook)
    loss_of(model, my_batch()).backward()
    return gradients(model)


def an_epsilon_off(copies=False):
    """All in float64, and off by a percent."""
    model = make_model()
    model[1].eps = 5e-3
    if copies:
        my_batch().float()
    model = nn.parallel.DistributedDataParallel(model)
    loss_of(model, my_batch()).backward()
    return gradients(model)


def an_epsilon_off_with_a_copy_in_float32():
    return an_epsilon_off(True)


def in_autocast(model, x, scale=1.0):
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model.float(), x.float()) * scale
    loss.backward()
    return gradients(model)


def data_parallel_in_autocast(scale=1.0):
    model = make_model().float()
    in_autocast(nn.parallel.DistributedDataParallel(model), my_batch(), scale)
    return gradients(model)


def fully_sharded():
    from torch.distributed.fsdp import fully_shard

    model = make_model()
    for layer in (model[0], model[3], model):
        fully_shard(layer)
    first, second = my_batch().chunk(2)
    model.set_requires_gradient_sync(False)
    (loss_of(model, first) / 2).backward()
    model.set_requires_gradient_sync(True)
    (loss_of(model, second) / 2).backward()
    return gradients(model)


def tensor_parallel(shard_data=True):
    """On a mesh of 2 x 2: the two Linears as DTensors over tp, and all of it in FSDP over dp."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = two_linears()
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if shard_data:
        fully_shard(model, mesh=mesh["dp"])
    loss_of(model, batch().chunk(2)[mesh.get_local_rank("dp")]).backward()
    return gradients(model)


def tensor_without_data_parallel():
    return tensor_parallel(shard_data=False)


def two_linears():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 7)).double()


def single_two_linears():
    model = two_linears()
    loss_of(model, batch()).backward()
    return gradients(model)


def sequence_parallel(reduce_norm):
    """A norm on each rank's part of the sequence: its gradient is a part, and the training step is
    to sum the parts."""
    norm = nn.LayerNorm(6).double()
    (norm(my_batch()) * my_batch().cos()).sum().backward()
    if reduce_norm:
        for p in norm.parameters():
            dist.all_reduce(p.grad)
    return {f"norm.{name}": grad for name, grad in gradients(norm).items()}


def norm_reduced():
    return sequence_parallel(True)


def norm_not_reduced():
    return sequence_parallel(False)


def single_norm():
    norm = nn.LayerNorm(6).double()
    (norm(batch()) * batch().cos()).sum().backward()
    return {f"norm.{name}": grad for name, grad in gradients(norm).items()}


def terms(model, x, weight=1.0):
    y = model(x)
    return {"square": (y**2).mean(), "size": weight * y.abs().mean(),
            "bias": model[3].bias.square().sum()}


def terms_of_the_whole():
    model = make_model()
    losses = terms(model, batch())
    sum(losses.values()).backward()
    return gradients(model), losses


def sizes_count_thrice():
    model = nn.parallel.DistributedDataParallel(make_model())
    sum(terms(model.module, my_batch(), 3.0).values()).backward()
    averaged(model)
    return gradients(model)


def rows_of_the_whole():
    model = make_model()
    losses = (model(batch()) ** 2).mean(1)
    losses.mean().backward()
    return gradients(model), losses


def row_3_left_out():
    model = make_model()
    rows = (model(my_batch()) ** 2).mean(1) * torch.tensor([1.0, dist.get_rank() != 1])
    rows.mean().backward()
    averaged(model)
    return gradients(model)


def model_and_step(times=1):
    model = nn.parallel.DistributedDataParallel(make_model())

    def step():
        model.zero_grad()
        loss = (model(my_batch()) ** 2).mean()
        (times * loss).backward()
        return loss

    return model, step


def averaged(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


class Steps(unittest.TestCase):
    def test_which_terms_and_rows_of_the_loss_count(self):
        report = self.report_of(sizes_count_thrice, terms_of_the_whole)
        self.assertTrue(any("the term square counts 1 times, the term size counts 3 times" in line
                            for line in report.where["text"]), report)
        report = self.report_of(row_3_left_out, rows_of_the_whole)
        self.assertTrue(any("loss 3 counts 0 times" in line for line in report.where["text"]),
                        report)
        distgrad.check_step(data_parallel, rows_of_the_whole, world_size=4)

    def test_without_a_single_run_gradients_are_held_to_the_loss(self):
        report = distgrad.check_step(model_and_step, world_size=3)
        self.assertEqual((report.verdict, report.ranks), ("right", 3), str(report))
        with self.assertRaises(AssertionError) as caught:
            distgrad.check_step(lambda: model_and_step(times=2), world_size=3,
                                objective=lambda losses: sum(losses) / len(losses))
        self.assertIn("check_step: 6 of 6 gradients are wrong, on 3 ranks", str(caught.exception))
        self.assertAlmostEqual(caught.exception.report.wrong[0].factor, 2, delta=1e-4)
        with self.assertRaisesRegex(distgrad.RankError, "it is to return .model, step"):
            distgrad.check_step(data_parallel, world_size=2)
        with self.assertRaisesRegex(ValueError, "reduce, rtol: without `single` nothing is"):
            distgrad.check_step(model_and_step, reduce={"a": "sum"}, rtol=1)
        with self.assertRaisesRegex(ValueError, "copies: with `single` nothing is measured"):
            distgrad.check_step(model_and_step, {}, copies="a")

    def report_of(self, parallel, single):
        with self.assertRaises(AssertionError) as caught:
            distgrad.check_step(parallel, single, world_size=4)
        return caught.exception.report

    def test_parameters_that_nothing_is_known_to_pass_for_are_refused_before_anything_starts(self):
        for parallel, single in ((lambda r, n: {}, dict), (lambda rank: {}, lambda device: {})):
            with self.assertRaisesRegex(TypeError,
                                        "what to pass for `(r`, `n|device)` is not known"):
                distgrad.check_step(parallel, single)

    def assert_wrong(self, finding, words, parallel, one, world_size, how="wrong", **options):
        """All parameters have the same finding."""
        with self.assertRaises(AssertionError) as raised:
            distgrad.check_step(parallel, one, world_size, **options)
        report = raised.exception.report
        self.assertEqual({p.finding for p in report.parameters.values()}, {finding})
        self.assertIn(f"{len(report.wrong)} of {len(report.wrong)} gradients are {how}",
                      str(report))
        self.assertIn(words, " ".join(str(report).split()))  # lines are wrapped
        return str(report)

    def test_data_parallel_with_accumulation(self):
        report = distgrad.check_step(data_parallel, single, 2)
        self.assertEqual(len(report.parameters), 6)
        self.assertIn("6 gradients, all right, on 2 ranks (gloo)", str(report))

    def test_fully_sharded_with_accumulation_and_uneven_shards(self):
        self.assertEqual(len(distgrad.check_step(fully_sharded, single, 4).parameters), 6)

    def test_tensor_parallel_and_fully_sharded(self):
        self.assertEqual(
            len(distgrad.check_step(tensor_parallel, single_two_linears, 4).parameters), 4)

    def test_tensor_parallel_without_the_data_parallel_reduction(self):
        with self.assertRaises(AssertionError) as raised:
            distgrad.check_step(tensor_without_data_parallel, single_two_linears, 4)
        self.assertIn("4 of 4 gradients are wrong", str(raised.exception))

    def test_a_step_that_destroys_its_process_group_is_judged_on_every_rank(self):
        def destroying(rank=0, factor_on_rank_0=1):
            found = data_parallel()
            dist.destroy_process_group()
            factor = factor_on_rank_0 if rank == 0 else 1
            return {name: gradient * factor for name, gradient in found.items()}

        def wrong_on_rank_0(rank):
            return destroying(rank, 7)

        self.assertIn("6 gradients, all right, on 2 ranks (gloo)",
                      str(distgrad.check_step(destroying, single, 2)))
        with self.assertRaises(AssertionError) as raised:
            distgrad.check_step(wrong_on_rank_0, single, 2)
        self.assertIn("7 times the reference on rank 0, right on rank 1", str(raised.exception))

    def test_a_loss_that_is_scaled_twice(self):
        self.assert_wrong("scaled", "2 times the reference (2 = the number of ranks, or the number"
                          " of backward passes)", loss_times_world_size, single, 2)

    def test_a_mean_that_is_divided_twice(self):
        self.assert_wrong("scaled", "1/2 of the reference (2 = the number of ranks", divided_twice,
                          single, 2)

    def test_a_truth_that_is_computed_in_float32_is_no_more_exact_than_that(self):
        text = str(distgrad.check_step(data_parallel, single_in_float32, 2))
        self.assertIn("6 gradients, all right", text)
        self.assertRegex(text, r"The single run computes in float32 \(test_api_steps.py:\d+\)")
        with self.assertRaises(AssertionError) as raised:  # by the ranks alone
            distgrad.check_step(data_parallel_in_float32, single, 2)
        self.assertIn("differs by more than the tolerance", str(raised.exception))

    def test_precision_is_named_where_a_short_dtype_was_on_the_way(self):
        few = "off by a few percent at most"
        report = self.assert_wrong("precision", "shorter dtype", reduced_in_bfloat16, single, 2,
                                   few)
        self.assertNotIn("no sum of that", report)
        self.assert_wrong("precision", "shorter dtype", data_parallel_in_float32, single, 2, few)
        for parallel in (an_epsilon_off, an_epsilon_off_with_a_copy_in_float32):
            report = self.assert_wrong("unexplained", "rounds as far as that.", parallel, single, 2)
            self.assertNotIn("precision", report)

    def test_what_computes_in_bfloat16_is_no_more_exact_than_that(self):
        def whole():
            return in_autocast(make_model(), batch())

        text = str(distgrad.check_step(data_parallel_in_autocast, whole, 2))
        self.assertIn("6 gradients, all right", text)
        self.assertRegex(text, r"Both runs compute in bfloat16 \(test_api_steps.py:\d+\)")
        with self.assertRaises(AssertionError) as raised:
            distgrad.check_step(lambda: data_parallel_in_autocast(1.5), whole, 2)
        self.assertIn("6 of 6 gradients are wrong", str(raised.exception))
        self.assertIn("3/2 times the reference", str(raised.exception))

    def test_no_reduction_at_all_with_reports_for_ci(self):
        with tempfile.TemporaryDirectory() as folder:
            junit, html = os.path.join(folder, "step.xml"), os.path.join(folder, "step.html")
            self.assert_wrong("missing-reduction", "the average over ranks 0, 1",
                              without_all_reduce, single, 2, junit=junit, html=html)
            self.assertIn('tests="6" failures="6"', Path(junit).read_text())
            page = Path(html).read_text()
            self.assertIn("Parameters by ranks", page)
            self.assertIn("wrong, on 2 ranks (gloo)\n\nWhere:\n- ", page)
            self.assertLess(page.index("\n\nWhere:\n"), page.index("Parameters by ranks"))
            run = re.findall("<dt>(command|took)</dt><dd>(.*?)</dd>", page)
            self.assertEqual([name for name, _ in run], ["command", "took"])
            self.assertNotIn("distgrad compare", run[0][1])
            self.assertIn("test_api_steps", run[0][1])
            self.assertGreater(float(run[1][1].removesuffix(" s")), 0.1, "that of the runs")
            self.assertNotIn("neither be measured nor recognised", page)

    def test_a_page_does_not_say_unknown_below_what_was_printed(self):
        with tempfile.TemporaryDirectory() as folder:
            html = os.path.join(folder, "step.html")
            self.assert_wrong("unexplained", "Where:", scrambled, single, 3, html=html)
            page = Path(html).read_text()
            self.assertIn("#finding=unexplained", page)
            self.assertNotIn("neither be measured nor recognised", page)
            self.assertNotIn("none of the known ones", page)

    def test_a_norm_in_tensor_parallel(self):
        self.assertFalse(distgrad.check_step(norm_reduced, single_norm, 2).wrong)
        text = self.assert_wrong("missing-reduction", "needs a sum over ranks 0, 1",
                                 norm_not_reduced, single_norm, 2)
        self.assertIn("norm.weight", text)

    def test_functions_made_in_the_test(self):
        scale = torch.tensor(2.0)

        def squares(x):
            return (scale * x * x).sum()

        def parallel(rank, world_size):
            w = torch.rand(4, requires_grad=True)  # the same on all ranks: they are seeded alike
            squares(w).backward()
            return {"w": w.grad.chunk(world_size)[rank]}

        def one():
            w = torch.rand(4, requires_grad=True)
            squares(w).backward()
            return {"w": w.grad}

        report = distgrad.check_step(parallel, one, 2)
        self.assertIn("pieces of dimension 0", str(report))
        self.assertFalse(distgrad.check_step(parallel, {"w": _seeded()}, 2).wrong)

    def test_the_text_is_as_wide_as_columns_says(self):
        fields = {"world_size": 2, "vacuous": None, "parameters": []}
        where = {"text": ["a word " * 60]}
        for columns, width in (("60", 60), ("0", 100), ("", 100), ("1000", 200), ("x", 100)):
            with mock.patch.dict(os.environ, COLUMNS=columns):
                text = str(StepReport(fields, "", "gloo", where))
            widest = max(map(len, text.splitlines()))
            self.assertTrue(width - 8 < widest <= width, (columns, widest))


def _seeded():
    torch.manual_seed(0)
    return 4 * torch.rand(4)


if __name__ == "__main__":
    unittest.main()
