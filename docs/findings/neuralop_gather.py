import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from neuralop.mpu import mappings


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    mappings.get_model_parallel_group = lambda: dist.group.WORLD
    y = torch.tanh(torch.ones(2, 2, requires_grad=True))  # autograd keeps y
    try:
        mappings.gather_from_model_parallel_region(y, 0).sum().backward()
        print(f"rank {rank}: has a gradient")
    except RuntimeError as error:
        print(f"rank {rank}: raises: {str(error)[:80]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 2)
