"""Tests what check_gradients says of small language models on DistributedDataParallel, in float32
and under autocast: many parameters, small gradients, and some that are 0 on paper.

    python src/python/tests/test_gradients_of_transformers.py
"""

import sys
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gradchecks import ranks  # noqa: E402

import distgrad  # noqa: E402

RANKS = 3
WORDS = 50
# A bias that adds the same to all of a row's scores changes no softmax.
ZERO = {f"blocks.{i}.key.bias" for i in range(2)}


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        y = self.norm(x)
        heads = (f(y).unflatten(-1, (4, -1)).transpose(1, 2)
                 for f in (self.query, self.key, self.value))
        y = scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(y))
        return x + self.dropout(self.down(gelu(self.up(self.norm2(x)))))


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def judged(dtype, divisor=1, factor=1.0, is_reduced=True, change=lambda model: None):
    """Returns the report of a step whose loss is divided by `divisor` for backward, and one of
    whose gradients is multiplied by `factor`."""
    torch.manual_seed(0)
    model = Model()
    change(model)
    called = DistributedDataParallel(model) if is_reduced else model
    tokens = torch.randint(WORDS, (4, 12),
                           generator=torch.Generator().manual_seed(100 + dist.get_rank()))

    def step():
        model.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            logits = called(tokens[:, :-1]).flatten(0, 1).float()
            loss = cross_entropy(logits, tokens[:, 1:].flatten())
        (loss / divisor).backward()
        model.blocks[1].up.weight.grad.mul_(factor)
        return loss

    return distgrad.check_gradients(model, step, raise_exception=False)


def triple_in_bfloat16(model):
    """Multiplies the cotangent of a module by 3, but only in bfloat16."""
    def hook(module, inputs, output):
        if output.requires_grad:
            output.register_hook(lambda g: 3 * g if g.dtype == torch.bfloat16 else g)

    model.blocks[0].up.register_forward_hook(hook)


def everything():
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        found[dtype] = {"right": judged(dtype), "divided": judged(dtype, divisor=RANKS),
                        "one": judged(dtype, factor=1.2),
                        "unreduced": judged(dtype, is_reduced=False)}
    found["tripled"] = judged(torch.bfloat16, change=triple_in_bfloat16)
    found["twice"] = judged(torch.float32, divisor=0.5, change=lambda model: model.bfloat16())
    return {key: value if isinstance(value, dict) else {"": value}
            for key, value in found.items()} if dist.get_rank() == 0 else None


class Transformers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.found = ranks.run(everything, RANKS)[0]

    def reports(self, name):
        for dtype in (torch.float32, torch.bfloat16):
            with self.subTest(dtype=dtype):
                yield self.found[dtype][name]

    def test_right_ones_are_right_and_so_is_what_is_0_on_paper(self):
        for report in self.reports("right"):
            self.assertEqual(report.verdict, "right", str(report))
            self.assertFalse(report.too_small or report.blind, str(report))
            self.assertLess(report.runs, 40)

    def test_casts_are_named(self):
        self.assertRegex(" ".join(self.found[torch.bfloat16]["right"].notes),
                         r"casts to bfloat16 in \S+\.py:\d+: the step was judged without that")

    def test_a_loss_divided_twice_is_told_of_all(self):
        for report in self.reports("divided"):
            self.assertEqual(len(report.wrong), 1, str(report))
            self.assertEqual(set(report.wrong[0].parameters), set(report.parameters) - ZERO)
            self.assertAlmostEqual(report.wrong[0].factor, 1 / RANKS, places=4)
            self.assertIn("1 over the number of ranks", str(report))
            self.assertLess(report.runs, 150)

    def test_one_gradient_of_many_is_found_and_its_factor_told(self):
        for report in self.reports("one"):
            self.assertEqual([w.parameters for w in report.wrong], [["blocks.1.up.weight"]],
                             str(report))
            self.assertAlmostEqual(report.wrong[0].factor, 1.2, places=4)

    def test_gradients_that_nothing_reduces_are_told_of_all(self):
        for report in self.reports("unreduced"):
            self.assertEqual(len(report.wrong), 1, str(report))
            self.assertEqual(set(report.wrong[0].parameters), set(report.parameters) - ZERO)
            self.assertIn("The mean of p.grad over ranks 0, 1, 2 is the derivative",
                          " ".join(str(report).split()))
            self.assertLess(report.runs, 200)

    def test_twice_the_gradients_of_weights_in_bfloat16_are_told(self):
        report = self.found["twice"][""]
        self.assertEqual(report.verdict, "wrong", str(report))
        told = [name for w in report.wrong for name in w.parameters]
        self.assertGreaterEqual(set(told), set(report.parameters) - ZERO, str(report))
        for factor in (f for w in report.wrong for f in w.factors.values()):
            self.assertAlmostEqual(factor, 2, delta=0.02, msg=str(report))

    def test_what_is_other_without_casts_is_not_decided(self):
        report = self.found["tripled"][""]
        self.assertIn("blocks.0.up.weight", report.undecided, str(report))
        self.assertIn("differs from what it is in float64", str(report))
        self.assertNotIn("blocks.1.down.weight", report.undecided)


if __name__ == "__main__":
    unittest.main()
