import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from stable_pretraining.utils.distributed import FullGatherLayer


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=3)
    bias = torch.zeros(3, 2, requires_grad=True)  # of each rank: another user of the cotangent
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    u = 2 * bias
    ((u + FullGatherLayer.apply(x)) * (rank + 1)).sum().backward()
    print(f"rank {rank}: {bias.grad[0].tolist()}, right {[2.0 * (rank + 1)] * 2}")


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 3)
