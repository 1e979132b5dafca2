import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from vector_quantize_pytorch.lookup_free_quantization import maybe_distributed_mean


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=3)
    x = torch.tensor([3.0, 6.0]) * (rank + 1)
    print(f"rank {rank}: {maybe_distributed_mean(x).tolist()}, right {[6.0, 12.0]}")


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 3)
