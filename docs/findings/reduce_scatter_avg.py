import tempfile
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as F
import torch.multiprocessing as mp


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    x = torch.ones(2, requires_grad=True)
    y = F.reduce_scatter(torch.empty(1), list(x.split(1)), op=dist.ReduceOp.AVG)
    y.sum().backward()
    print(f"rank {rank}: {x.grad.tolist()}")


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 2)
