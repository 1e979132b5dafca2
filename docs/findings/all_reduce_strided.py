"""Plain all_reduce over Gloo of every other column, and what packages' functions make of it:
`all_reduce_strided.py [PACKAGE]`."""

import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def reduce_of(package):
    world = dist.group.WORLD
    if package == "xformers":
        from xformers.ops.differentiable_collectives import reduce_from_model_parallel_region
        return lambda x: reduce_from_model_parallel_region(x, world)
    if package == "fairscale":
        from fairscale.nn.model_parallel import initialize, mappings
        initialize._MODEL_PARALLEL_GROUP = world
        return mappings.reduce_from_model_parallel_region
    if package == "lightning":
        from lightning.fabric.utilities.distributed import _sync_ddp
        return lambda x: _sync_ddp(x, reduce_op="sum")

    def plain(x):
        dist.all_reduce(x)
        return x

    return plain


def main(rank, store, package):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    columns = torch.arange(6.0).reshape(1, 6)[:, ::2]
    print(f"rank {rank}: {reduce_of(package)(columns).tolist()}, right {[[0.0, 4.0, 8.0]]}")


if __name__ == "__main__":
    package = (sys.argv[1:] or ["torch"])[0]
    print("torch", torch.__version__, package)
    mp.spawn(main, (tempfile.mktemp(), package), 2)
