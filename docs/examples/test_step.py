"""A training step against the same step in one process."""

import torch
from torch import nn

import distgrad


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch():
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(1))


def parallel(rank, world_size):  # torch.distributed is initialised
    model = nn.parallel.DistributedDataParallel(make_model())
    loss = model(batch().chunk(world_size)[rank]).square().mean()
    (loss / world_size).backward()  # the mistake: DDP divides, too
    return {name: p.grad for name, p in model.named_parameters()}


def single():  # in a process without torch.distributed
    model = make_model()
    model(batch()).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters()}


def test_step():
    distgrad.check_step(parallel, single, world_size=2)


if __name__ == "__main__":
    test_step()
