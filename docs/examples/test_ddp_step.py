"""A training step that is held to its own loss, without a second implementation."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import distgrad


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def one_step(model, x):
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss


def parallel(rank, world_size):
    model = DistributedDataParallel(make_model())
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(rank))
    return model, lambda: one_step(model, x)


def test_gradients():
    distgrad.check_step(parallel, world_size=4, objective="mean")


if __name__ == "__main__":
    test_gradients()
    print("right")
