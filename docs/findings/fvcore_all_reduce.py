import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from fvcore.nn.distributed import differentiable_all_reduce


def gradient(use_sum_first):
    x = torch.tensor([1.0 + dist.get_rank()], requires_grad=True)
    y = differentiable_all_reduce(3 * x) if use_sum_first else None
    u = 2 * x
    y = differentiable_all_reduce(3 * x) if y is None else y
    ((u + y) * (dist.get_rank() + 1)).sum().backward()
    return x.grad.item()


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    right = 2 * (rank + 1) + 3 * (1 + 2)
    before, after = gradient(True), gradient(False)
    print(f"rank {rank}: sum before 2x {before}, sum after 2x {after}, right {right}")


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 2)
