import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from vector_quantize_pytorch.vector_quantize_pytorch import all_gather_variably_sized


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    x = (torch.arange(6.0).reshape(3, 2) + 10 * rank).T
    gathered = all_gather_variably_sized(x, [2, 2])
    of_other = gathered[1 - rank].tolist()
    print(f"rank {rank}: {of_other}, right {(x + 10 - 20 * rank).tolist()}")


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 2)
