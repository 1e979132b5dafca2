import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from fvcore.nn.distributed import differentiable_all_reduce


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    x = torch.ones(6, 3, dtype=torch.float64, requires_grad=True)
    differentiable_all_reduce(x).sum().backward()
    print(f"rank {rank}: {x.grad.flatten().tolist()}", flush=True)


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 2)
