import tempfile
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as F
import torch.multiprocessing as mp


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    x = torch.ones(2, 3, requires_grad=True)
    w, y = torch.arange(1.0, 7).reshape(3, 2), F.broadcast(x, src=0)
    ((y.t() * w).sum() if rank == 0 else (y * w.t().contiguous()).sum()).backward()
    print(f"rank {rank}: {x.grad.tolist()}")


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 2)
