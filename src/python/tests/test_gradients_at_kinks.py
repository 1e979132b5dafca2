"""Tests that check_gradients takes kinks, which moves in float32 cross in every net with ReLUs, for
no mistake, and rounding in DDP's first buckets neither.

    python src/python/tests/test_gradients_at_kinks.py
"""

import sys
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.functional import cross_entropy, l1_loss
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gradchecks import ranks  # noqa: E402

import distgrad  # noqa: E402

RANKS = 3
# Moves of these nets, (norms, seed, loss), cross kinks that look like errors of up to 7 %.
CASES = ((False, 103, cross_entropy), (False, 103, l1_loss), (False, 107, l1_loss),
         (False, 115, cross_entropy), (True, 101, cross_entropy), (True, 103, l1_loss),
         (True, 119, cross_entropy), (True, 125, l1_loss))


def net(norms, width):
    if norms:
        return nn.Sequential(nn.Linear(8, width), nn.LayerNorm(width), nn.ReLU(),
                             nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU(),
                             nn.Linear(width, 4))
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                         nn.Linear(width, width), nn.LeakyReLU(), nn.Linear(width, 4))


def judged(norms, seed, loss_of, change=lambda gradient: None):
    torch.manual_seed(seed)
    model = DistributedDataParallel(net(norms, (8, 12, 24)[seed % 3]))
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    x = torch.randn(16, 8, generator=generator)
    classes = torch.randint(4, (16,), generator=generator)
    target = classes if loss_of is cross_entropy else torch.randn(16, 4, generator=generator)

    def step():
        model.zero_grad()
        loss = loss_of(model(x), target)
        loss.backward()
        change(model.module[3 if norms else 2].weight.grad)
        return loss

    return distgrad.check_gradients(model, step, raise_exception=False)


def squares_of(model, x):
    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


def compressed():
    """Sends float16 in buckets that DDP, after its first step, makes anew."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(
        nn.Linear(8, 12), nn.Tanh(), nn.LayerNorm(12), nn.Linear(12, 4)).double())
    model.register_comm_hook(None, fp16_compress_hook)
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(100 + dist.get_rank())).double()
    return distgrad.check_gradients(model, squares_of(model, x), raise_exception=False)


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        return self.used(x)


def with_unused():
    torch.manual_seed(0)
    model = DistributedDataParallel(Unused(), find_unused_parameters=True)
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
    return distgrad.check_gradients(model, squares_of(model, x), raise_exception=False)


def everything():
    right = [judged(*case) for case in CASES]
    wrong = [judged(*case, change=lambda g: g.copy_(g.flip(0))) for case in CASES[::3]]
    return right, wrong, compressed(), with_unused()


class Kinks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.right, cls.wrong, cls.compressed, cls.unused = ranks.run(everything, RANKS)[0]

    def test_right_steps_are_right(self):
        for case, report in zip(CASES, self.right):
            with self.subTest(case=case[:2]):
                self.assertEqual(report.verdict, "right", str(report))

    def test_wrong_steps_are_wrong(self):
        for (norms, *_), report in zip(CASES[::3], self.wrong):
            name = "3.weight" if norms else "2.weight"
            self.assertEqual([w.parameters for w in report.wrong], [[name]], str(report))

    def test_what_no_bit_of_the_loss_depends_on_is_right_without_a_gradient(self):
        self.assertEqual((self.unused.verdict, self.unused.too_small), ("right", []),
                         str(self.unused))

    def test_rounding_in_the_first_buckets_is_no_mistake(self):
        self.assertEqual(self.compressed.verdict, "right", str(self.compressed))


if __name__ == "__main__":
    unittest.main()
