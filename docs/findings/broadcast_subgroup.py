import tempfile
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as F
import torch.multiprocessing as mp


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=4)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    root = rank // 2 * 2
    x = torch.ones(2, requires_grad=True)
    (F.broadcast(x, root, groups[rank // 2]).sum() * (rank + 1)).backward()
    right = [float(2 * rank + 3)] * 2 if rank == root else [0.0, 0.0]
    print(f"rank {rank}: {x.grad.tolist()}, right {right}")


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 4)
