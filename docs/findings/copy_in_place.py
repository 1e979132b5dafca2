import sys
import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def copy_of(package):
    if package == "xformers":
        from xformers.ops.differentiable_collectives import copy_to_model_parallel_region
        return lambda x: copy_to_model_parallel_region(x, dist.group.WORLD)
    from fairscale.nn.model_parallel import initialize, mappings
    initialize._MODEL_PARALLEL_GROUP = dist.group.WORLD
    return mappings.copy_to_model_parallel_region


def main(rank, store, package):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    copy = copy_of(package)
    x = torch.tensor([1.0], requires_grad=True)
    u = 2 * x  # its cotangent is the one that the copy's backward gets
    ((u + copy(3 * x)) * (rank + 1)).sum().backward()
    print(f"rank {rank}: {x.grad.item()}, right {2 * (rank + 1) + 3 * (1 + 2)}")


if __name__ == "__main__":
    print("torch", torch.__version__, sys.argv[1])
    mp.spawn(main, (tempfile.mktemp(), sys.argv[1]), 2)
