"""Which verdict and finding the ranks' gradients get, without processes."""

import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from distgrad.explaining import explain  # noqa: E402

T = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -6.0], [7.0, 8.0, 0.25], [-1.0, 2.5, 9.0]], dtype=torch.float64)
N = 4


def plain(value):
    return {"tensor": value}


def distributed(value, index, rank, shape=(4, 3), mesh=(0, 1, 2, 3), partial=()):
    return {"tensor": value, "index": index, "shape": list(shape), "mesh": list(mesh), "axes": ["tp"], "coordinate": [rank],
            "partial": [list(p) for p in partial], "placements": ""}


def judged(ranks, truth=T, **options):
    """The ParameterReport of `w`, of which each rank holds such a piece (a tensor is a plain one, None no gradient)."""
    pieces = [{} if r == "absent" else {"w": {} if r is None else plain(r) if isinstance(r, torch.Tensor) else r} for r in ranks]
    single = {"w": {} if truth is None else plain(truth)}
    return explain(single, pieces, world_size=len(ranks), backend="gloo", **options).parameters["w"]


def rows(rank, parts=N):
    return torch.arange(T.numel()).reshape(T.shape).chunk(parts)[rank]


class Plain(unittest.TestCase):
    def test_equal_is_right(self):
        self.assertIsNone(judged([T] * N).finding)

    def test_every_factor_is_named(self):
        for factor, words in ((4, "4 being the world size"), (0.25, "1/4 of the truth"), (1 / 16, "the world size squared"),
                              (2, "a group of 2"), (-1, "wrong sign"), (1.5, "1.5 times")):
            with self.subTest(factor):
                report = judged([T * factor] * N)
                self.assertEqual(report.finding, "scaled")
                self.assertAlmostEqual(report.factor, factor)
                self.assertIn(words, report.text)

    def test_one_number_is_a_multiple_of_any_other(self):
        self.assertEqual(judged([torch.tensor([7.0])] * 2, torch.tensor([3.0])).finding, "unexplained")
        self.assertEqual(judged([torch.tensor([6.0])] * 2, torch.tensor([3.0])).finding, "scaled")

    def test_parts_that_sum_up(self):
        parts = [T * 0.5 + torch.eye(4, 3), -torch.eye(4, 3) + T, T * 0, T * -0.5]
        report = judged(parts)
        self.assertEqual(report.finding, "missing-reduction")
        self.assertIn("the sum over the ranks", report.text)
        report = judged([4 * p for p in parts])
        self.assertEqual(report.finding, "missing-reduction")
        self.assertIn("the mean over the ranks", report.text)
        self.assertIsNone(judged(parts, reduce={"w": "sum"}).finding)
        self.assertIsNone(judged([4 * p for p in parts], reduce={"*": "mean"}).finding)
        self.assertEqual(judged([4 * p for p in parts], reduce={"*": "sum"}).finding, "scaled")

    def test_parts_that_sum_up_within_groups(self):
        a = torch.eye(4, 3)
        report = judged([T - a, a, T - 2 * a, 2 * a])
        self.assertEqual(report.finding, "missing-reduction")
        self.assertIn("blocks of 2 ranks", report.text)
        report = judged([T - a, T - 2 * a, a, 2 * a])
        self.assertIn("every 2nd rank", report.text)

    def test_own_slices_and_zeros(self):
        parts = [torch.zeros_like(T) for _ in range(N)]
        for rank, part in enumerate(parts):
            part[rank] = T[rank]
        self.assertEqual(judged(parts).finding, "own-slice")

    def test_one_rank_off(self):
        report = judged([T, T, T * 2, T])
        self.assertEqual((report.finding, report.ranks), ("unsynchronised", (2,)))
        other = T.clone()
        other[1, 1] += 1
        report = judged([T, other, T, T])
        self.assertEqual((report.finding, report.ranks), ("unsynchronised", (1,)))
        self.assertIn("rank 1 [1, 1]: 5, truth 4", report.worst)

    def test_missing(self):
        self.assertEqual(judged([None] * N).finding, "no-gradient")
        self.assertEqual(judged([T, T, None, T]).ranks, (2,))
        self.assertEqual(judged([T, T, "absent", T]).finding, "no-gradient")
        self.assertIsNone(judged([T, T, "absent", T], partly_held=["w"]).finding)
        self.assertEqual(judged(["absent"] * N, partly_held=["w"]).finding, "no-gradient")
        self.assertEqual(judged([T * 0] * N).finding, "no-gradient")
        zero = judged([None] * N, T * 0)
        self.assertIsNone(zero.finding)
        self.assertIn("where the truth is zero", zero.notes[0])
        self.assertIsNone(judged([None] * N, None).finding)
        self.assertEqual(judged([T] * N, None).finding, "unknown")

    def test_not_finite(self):
        bad = T.clone()
        bad[0, 0] = float("nan")
        self.assertEqual(judged([bad] * N).finding, "unexplained")
        same = judged([bad] * N, bad)
        self.assertIsNone(same.finding)
        self.assertIn("not finite", same.notes[0])
        self.assertIsNotNone(judged([T] * N, bad).finding)

    def test_shapes(self):
        self.assertIsNone(judged(list(T.split([2, 0, 1, 1]))).finding)
        self.assertIn("joined along dim 0", judged(list(T.chunk(N))).notes[0])
        self.assertIsNone(judged(list(T.split([1, 2], 1))).finding)
        self.assertEqual(judged(list(reversed(T.chunk(N)))).finding, "wrong-slice")
        self.assertEqual(judged([T[:2]] * N).finding, "shape")
        self.assertEqual(judged([T.flatten()] * N).finding, "shape")

    def test_nothing_and_scalars(self):
        self.assertIsNone(judged([torch.zeros(0, 3)] * N, torch.zeros(0, 3)).finding)
        self.assertIsNone(judged([torch.tensor(2.0)] * N, torch.tensor(2.0)).finding)
        self.assertIsNone(judged([T]).finding)


class Distributed(unittest.TestCase):
    def test_shards_are_joined_where_they_say(self):
        order = (2, 0, 3, 1)
        self.assertIsNone(judged([distributed(T[r:r + 1], rows(r), i) for i, r in enumerate(order)]).finding)

    def test_a_shard_that_is_scaled(self):
        report = judged([distributed(T[r:r + 1] * (4 if r == 1 else 1), rows(r), r) for r in range(N)])
        self.assertEqual((report.finding, report.ranks), ("scaled", (1,)))

    def test_shards_of_other_ranks(self):
        report = judged([distributed(T[(r + 1) % N:][:1], rows(r), r) for r in range(N)])
        self.assertEqual(report.finding, "wrong-slice")

    def test_an_element_that_nobody_has(self):
        report = judged([distributed(T[r:r + 1], rows(r), r) for r in (0, 1, 3)] + [{"outside": True}])
        self.assertEqual(report.finding, "shape")
        self.assertIn("3 of its 12 elements", report.text)

    def test_replicas_that_differ(self):
        whole = torch.arange(T.numel()).reshape(T.shape)
        parts = [T - 3, T * 0 + 1, T * 0 + 1, T * 0 + 1]
        report = judged([distributed(p, whole, r) for r, p in enumerate(parts)])
        self.assertEqual(report.finding, "missing-reduction")
        self.assertIsNone(judged([distributed(p, whole, r, partial=[(0, "sum")]) for r, p in enumerate(parts)]).finding)
        report = judged([distributed(p, whole, r, partial=[(0, "avg")]) for r, p in enumerate(parts)])
        self.assertEqual((report.finding, report.factor), ("scaled", 0.25))


class Tolerance(unittest.TestCase):
    def test_rounding_passes_and_a_part_in_a_thousand_does_not(self):
        for dtype in (torch.float64, torch.float32):
            eps = torch.finfo(dtype).eps
            truth = T.to(dtype)
            self.assertIsNone(judged([truth * (1 + 8 * eps)] * N, truth).finding)
            noisy = truth + 1e-3 * torch.tensor([1.0, -1.0, 1.0])
            self.assertEqual(judged([noisy] * N, truth).finding, "precision")
            self.assertIsNone(judged([noisy] * N, truth, rtol=1e-2).finding)

    def test_what_is_zero_but_for_rounding_is_not_judged(self):
        # As a bias in front of a normalisation: beside gradients around 9 it is noise on both sides.
        single = {"w": plain(T.float()), "b": plain(torch.tensor([3e-8, -1e-8]))}
        ranks = [{"w": plain(T.float()), "b": plain(torch.tensor([-2e-8, 4e-8]))}] * 2
        report = explain(single, ranks, world_size=2, backend="gloo")
        self.assertEqual(report.wrong, [])
        self.assertIn("not judged: b", str(report))


class Text(unittest.TestCase):
    def test_alike_mistakes_are_told_together_worst_first(self):
        single = {name: plain(T) for name in ("a", "b", "c", "d")}
        ranks = [{"module.a": plain(T), "module.b": plain(2 * T), "module.c": plain(2 * T), "module.d": plain(0.5 * T)}] * 2
        text = str(explain(single, ranks, world_size=2, backend="gloo"))
        self.assertTrue(text.startswith("check_step: 3 of 4 gradients are wrong, on 2 ranks (gloo)\n"), text)
        self.assertEqual(text.count("scaled"), 2)
        self.assertLess(text.index("scaled (2 gradients): 2 times"), text.index("scaled: 1/2 of"))

    def test_names_that_only_differ_by_a_wrapper_are_kept_apart(self):
        single = {"module.w": plain(T), "w": plain(2 * T)}
        report = explain(single, [single] * 2, world_size=2, backend="gloo")
        self.assertEqual((len(report.parameters), report.wrong), (2, []))

    def test_wrappers_are_no_part_of_a_name(self):
        ranks = [{"_orig_mod.module.a.w": plain(T), "module.b._checkpoint_wrapped_module.module.w": plain(T)}] * 2
        report = explain({"a.w": plain(T), "b.module.w": plain(T)}, ranks, world_size=2, backend="gloo")
        self.assertEqual(report.wrong, [])

    def test_a_name_that_the_single_run_lacks(self):
        report = explain({"w": plain(T)}, [{"w": plain(T), "v": plain(T)}] * 2, world_size=2, backend="gloo")
        self.assertEqual([p.name for p in report.wrong], ["v"])


if __name__ == "__main__":
    unittest.main()
