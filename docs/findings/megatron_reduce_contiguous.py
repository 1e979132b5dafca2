import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from megatron.core.tensor_parallel import mappings


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    group = dist.group.WORLD
    w = (rank + 1) * torch.arange(1.0, 7).reshape(3, 2)
    for transposed in (False, True):
        x = torch.ones(2, 3, requires_grad=True)
        y = mappings.copy_to_tensor_model_parallel_region(x, group)
        ((y.t() * w) if transposed else (y * w.t().contiguous())).sum().backward()
        z = torch.full((3, 2), rank + 1.0)
        operand = z.t() if transposed else z.t().contiguous()
        total = mappings.reduce_from_tensor_model_parallel_region(operand, group)
        name = "transposed" if transposed else "contiguous"
        reduced = total[0].tolist()
        print(f"rank {rank}: {name}: gradient of copy {x.grad.tolist()}, reduced {reduced}")


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), 2)
