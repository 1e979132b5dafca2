import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from verl.utils.ulysses import slice_input_tensor


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=4)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x = torch.arange(6.0)
    own = slice_input_tensor(x, 0, padding=False, group=groups[rank // 2])
    right = x.chunk(2)[rank % 2]
    print(f"rank {rank}: {own.tolist()}, right {right.tolist()}")


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 4)
