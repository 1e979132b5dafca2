import tempfile
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.multiprocessing as mp


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    x = torch.ones(2, 3, requires_grad=True)
    y = funcol.broadcast(x, 0, dist.group.WORLD)
    y.sum().backward()
    print(f"rank {rank}: {x.grad.tolist()}")


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 2)
