"""An all_to_all of uneven splits, as in mixtures of experts, whose backward has to swap them."""
import sys
import unittest
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import distgrad  # noqa: E402

# Of check()'s programs those of other shapes are what this is about.
WITHOUT = ["dtype", "cotangent", "operand", "graph", "groups", "dim"]


def exchange(x, send, receive, group):
    rows = sum(receive) if receive else x.shape[0]
    out = x.new_empty((rows, *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), receive, send, group=group)
    return out


class Swaps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, output_split_sizes=None, input_split_sizes=None, group=None):
        ctx.sizes, ctx.group = (output_split_sizes, input_split_sizes), group
        return exchange(x, input_split_sizes, output_split_sizes, group)

    @staticmethod
    def backward(ctx, g):
        received, sent = ctx.sizes
        return exchange(g, received, sent, ctx.group), None, None, None


class Forgets(Swaps):
    """Right as long as all experts get the same number of tokens."""

    @staticmethod
    def backward(ctx, g):
        received, sent = ctx.sizes
        return exchange(g, sent, received, ctx.group), None, None, None


class UnevenExchange(unittest.TestCase):
    def test_swapped_splits_pass(self):
        report = distgrad.check(Swaps.apply, "all_to_all", world_size=3, without=WITHOUT,
                                strict=True)
        self.assertIn("uneven", " ".join(case["file"] for case in report["cases"]))

    def test_forgotten_swap_is_wrong(self):
        with self.assertRaises(AssertionError) as raised:
            distgrad.check(Forgets.apply, "all_to_all", world_size=3, without=WITHOUT)
        text = str(raised.exception)
        self.assertIn("uneven.json", text)
        self.assertIn("Split sizes", text)  # raised in backward
        self.assertRegex(text, r"FAIL +uneven-but-as-much-in-as-out.json +mismatch")
        with self.assertRaises(AssertionError) as raised:
            distgrad.audit(Forgets.apply, "all_to_all", world_size=3, without=WITHOUT)
        self.assertIn("1 collective offered, 1 wrong", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
