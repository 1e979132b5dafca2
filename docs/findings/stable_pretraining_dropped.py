"""What LeJEPA's statistic is on three ranks, and on one that has all their samples; and its
gradient, which DistributedDataParallel divides by the ranks. With an argument: what all_reduce and
all_gather give, in releases before 0.1.8."""

import sys
import tempfile
from importlib.metadata import version

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 3


def samples(ranks):
    """Eight of each of them, in two slices."""
    return torch.cat([torch.randn(8, 2, generator=torch.Generator().manual_seed(rank)) + rank
                      for rank in ranks]).requires_grad_()


def statistic(x):
    from stable_pretraining.methods.lejepa import EppsPulley
    value = EppsPulley()(x)
    value.sum().backward()
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    return value.tolist(), (x.grad[0] / ranks).tolist()


def main(rank, store, right, plain):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=RANKS)
    if plain:
        from stable_pretraining.utils.distributed import all_gather, all_reduce
        x = torch.tensor([rank + 1.0])
        print(f"rank {rank}: all_reduce {all_reduce(x).tolist()}, right [6.0];"
              f" all_gather {torch.cat(list(all_gather(x))).tolist()}, right [1.0, 2.0, 3.0]")
    else:
        value, gradient = statistic(samples([rank]))
        print(f"rank {rank}: {value}, right {right[0]}")
        if rank == 0:
            print(f"gradient of rank 0's first sample: {gradient}, right {right[1]}")


if __name__ == "__main__":
    print("torch", torch.__version__, "stable-pretraining", version("stable-pretraining"))
    before = len(sys.argv) > 1
    joint = None if before else statistic(samples(range(RANKS)))
    mp.spawn(main, (tempfile.mktemp(), joint, before), RANKS)
