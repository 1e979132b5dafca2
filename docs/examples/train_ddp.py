"""A training script whose gradients are a quarter of what they are meant to be."""

import torch
import torch.distributed as dist
from torch import nn

import distgrad


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    model = nn.parallel.DistributedDataParallel(model)
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(rank))

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        (loss / ranks).backward()  # the mistake: DDP takes the mean, too
        return loss

    report = distgrad.check_gradients(model, step, objective="mean", raise_exception=False)
    if rank == 0:
        print(report)
    dist.destroy_process_group()


main()
