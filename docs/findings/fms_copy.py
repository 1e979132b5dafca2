import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from fms.distributed import tensorparallel


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    world = dist.group.WORLD
    for name, call in {
        "copy_to": lambda x: tensorparallel.copy_to_tensor_model_parallel_region(x, world),
        "all_gather_from":
            lambda x: tensorparallel.all_gather_from_tensor_model_parallel_region(x, rank, world),
    }.items():
        try:
            call(torch.ones(2, requires_grad=True)).sum().backward()
            print(f"rank {rank}: {name} has a backward")
        except RuntimeError as error:
            print(f"rank {rank}: {name}: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 2)
