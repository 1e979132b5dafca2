"""Tests that check_gradients judges steps in float32, which hides small errors, as if they ran in
float64: under DDP, FSDP and DTensor plans, with modules that insist on one dtype and random ones.

    python src/python/tests/test_gradients_in_float64.py
"""

import sys
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                               parallelize_module)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gradchecks import ranks  # noqa: E402

import distgrad  # noqa: E402

RANKS = 3
FACTOR = 1.02  # Float32 cannot tell it from 1 in most of these.


class Words(nn.Module):
    """Has a pad token, of which torch keeps the gradient 0, in its input."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=1)
        self.lstm = nn.LSTM(8, 12, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.up = (nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6),
                                         nn.ConvTranspose2d(6, 4, 2))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, dropout=0.1)
        self.act, self.head = nn.PReLU(), nn.Linear(4, 5)

    def forward(self, x):
        x = self.up(F.max_pool2d(F.relu(self.norm(self.conv(x.view(-1, 1, 8, 8)))), 2))
        x = x.flatten(2).transpose(1, 2)
        return self.head(self.act(self.attention(x, x, x)[0].mean(1)))


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 15), nn.Linear(15, 5)

    def forward(self, x):
        x = F.dropout(F.relu(self.up(x)), 0.3)
        return self.down(x + 0.1 * torch.randn_like(x) + torch.rand(15))


class Insists(nn.Linear):
    def forward(self, x):
        assert x.dtype == self.weight.dtype == torch.float32
        return F.relu(super().forward(x))


def insisting():
    return nn.Sequential(Insists(64, 6), Insists(6, 5))


class InsistsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        assert g.dtype == torch.float32
        return g


class InsistingLater(nn.Linear):
    """Breaks off backward when DDP has begun to reduce."""

    def __init__(self):
        super().__init__(64, 6)
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        return self.head(InsistsInBackward.apply(super().forward(x)))


class Checkpointed(Words):
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)


class Buffered(torch.autograd.Function):
    """Passes a tensor through a buffer that was made before."""

    @staticmethod
    def forward(ctx, x, buffer):
        return buffer.copy_(x.detach()).clone()

    @staticmethod
    def backward(ctx, g):
        return g, None


class WithBuffer(nn.Linear):
    def __init__(self):
        super().__init__(64, 5)
        self.register_buffer("work", torch.empty(16, 5))

    def forward(self, x):
        return Buffered.apply(super().forward(x), self.work).exp()


def by_hand(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad = p.grad / RANKS


def flat(model):
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(gradients)
    for p, g in zip(model.parameters(), gradients.split([p.numel() for p in model.parameters()])):
        p.grad.copy_(g.view_as(p)).div_(RANKS)


def judged(make, wrap=DistributedDataParallel, reduce=lambda model: None, name="", factor=FACTOR,
           objective="mean"):
    """Returns the report of a step in which this parameter's gradient is multiplied."""
    torch.manual_seed(3)
    inner = make()
    model, seed = wrap(inner), dist.get_rank() * (objective == "mean")
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randint(0, 20, (16, 6), generator=generator) if make in (Words, Checkpointed)
         else torch.randn(16, 64, generator=generator))
    target = torch.randint(0, 5, (16,), generator=generator)

    def step():
        torch.manual_seed(seed)
        model.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        reduce(inner)
        for own, p in inner.named_parameters():
            if own == name:
                p.grad.mul_(factor)
        return loss

    before = {key: value.clone() for key, value in inner.state_dict().items()}
    report = distgrad.check_gradients(model, step, objective, raise_exception=False)
    step()  # The wrapper is to reduce as before.
    after = inner.state_dict()
    report.is_kept = all(after[key].dtype == value.dtype and (
        key in ("work", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
        or bool((after[key] == value).all()))
        for key, value in before.items())
    report.gradients = {key: p.grad.clone() for key, p in inner.named_parameters()
                        if isinstance(model, DistributedDataParallel)}
    return report


def pipelined(factor=1.0):
    """Returns the report of a pipeline whose buffers were made before, in float32."""
    rank, last = dist.get_rank(), RANKS - 1
    torch.manual_seed(rank)
    stage, received, returned = nn.Linear(6, 6), torch.empty(8, 6), torch.empty(8, 6)
    x, y = torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(1))

    def step():
        stage.zero_grad()
        given, loss = x, None
        if rank > 0:
            dist.recv(received, rank - 1)
            given = received.clone().requires_grad_()
        out = torch.tanh(stage(given))
        if rank < last:
            dist.send(out.detach(), rank + 1)
            dist.recv(returned, rank + 1)
            out.backward(returned)
        else:
            loss = F.mse_loss(out, y)
            loss.backward()
        if rank > 0:
            dist.send(given.grad, rank - 1)
        if rank == 1:
            stage.bias.grad *= factor
        return loss

    return distgrad.check_gradients(stage, step, "sum", raise_exception=False)


def in_shards(model):
    mesh = init_device_mesh("cpu", (RANKS,))
    return fully_shard(model, mesh=mesh)


def by_plan(model):
    return parallelize_module(model, init_device_mesh("cpu", (RANKS,)),
                              {"up": ColwiseParallel(), "down": RowwiseParallel()})


class Cut(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.up, self.down = nn.Linear(64, 6), nn.Linear(6, 9), nn.Linear(9, 5)

    def forward(self, x):
        return self.down(F.relu(self.up(F.relu(self.into(x)))))


CASES = {"checkpointed": (Checkpointed, {}, "head.bias"),
         "LSTM under DDP": (Words, {}, "lstm.weight_hh_l0"),
         "images under DDP": (Images, {}, "attention.in_proj_weight"),
         "noise under DDP": (Noisy, {}, "up.bias"),
         "by hand": (Images, {"wrap": lambda m: m, "reduce": by_hand}, "conv.weight"),
         "in one buffer": (Noisy, {"wrap": lambda m: m, "reduce": flat}, "down.weight"),
         "FSDP": (Cut, {"wrap": in_shards}, "up.weight"),
         "a plan": (Cut, {"wrap": by_plan, "objective": "replicated"}, "up.weight")}


def everything():
    found = {}
    for key, (make, options, name) in CASES.items():
        found[key] = judged(make, **options), judged(make, **options, name=name)
    found["insists"] = judged(insisting), judged(insisting, name="0.weight", factor=1.5)
    found["insists later"] = judged(InsistingLater), judged(InsistingLater, name="weight",
                                                            factor=1.5)
    found["pipeline"] = pipelined(), pipelined(1.5)
    found["buffer"] = judged(WithBuffer), judged(WithBuffer, name="weight", factor=1.5)
    return found


class InFloat64(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.every = ranks.run(everything, RANKS)
        cls.found = cls.every[0]

    def test_right_ones_are_right(self):
        for key in CASES:
            report = self.found[key][0]
            self.assertEqual(report.verdict, "right", f"{key}: {report}")
            self.assertFalse(report.undecided or report.too_small or report.blind,
                             f"{key}: {report}")

    def test_a_small_factor_is_told(self):
        for key, (*_, name) in CASES.items():
            report = self.found[key][1]
            self.assertEqual([w.parameters for w in report.wrong], [[name]], f"{key}: {report}")
            for factor in report.wrong[0].factors.values():
                self.assertAlmostEqual(factor, FACTOR, places=3, msg=key)

    def test_a_row_of_padding_is_noted_and_not_accused(self):
        self.assertIn("the row of padding_idx in embedding.weight",
                      str(self.found["LSTM under DDP"][0]))

    def test_everything_is_left_as_it_was(self):
        for found in self.every:
            for key in CASES:
                self.assertTrue(found[key][0].is_kept, key)
        for key in CASES:
            for name, gradient in self.found[key][0].gradients.items():
                self.assertTrue(torch.equal(gradient, self.every[1][key][0].gradients[name]), key)

    def test_a_step_that_insists_on_its_dtype_is_judged_in_that(self):
        for key, name in (("insists", "0.weight"), ("insists later", "weight"),
                          ("buffer", "weight"), ("pipeline", "bias")):
            right, wrong = self.found[key]
            self.assertEqual((right.verdict, right.dtype), ("right", "float32"), str(right))
            self.assertEqual([w.parameters for w in wrong.wrong], [[name]], str(wrong))


if __name__ == "__main__":
    unittest.main()
