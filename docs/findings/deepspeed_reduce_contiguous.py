import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from deepspeed.module_inject import layers

layers.dist = layers.pg_utils.dist = dist  # what deepspeed.comm calls, without its extensions


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=3)
    group = dist.group.WORLD
    w = (rank + 1) * torch.arange(1.0, 7).reshape(3, 2)
    for transposed in (False, True):
        x = torch.ones(2, 3, requires_grad=True)
        y = layers.ColumnParallel.apply(group, x)
        ((y.t() * w) if transposed else (y * w.t().contiguous())).sum().backward()
        z = torch.full((3, 2), rank + 1.0)
        operand = z.t() if transposed else z.t().contiguous()
        reduced = layers.RowParallel.apply(group, operand, False)[0].tolist()
        name = "transposed" if transposed else "contiguous"
        print(f"rank {rank}: {name}: gradient of copy {x.grad.tolist()}, reduced {reduced}")


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 3)
