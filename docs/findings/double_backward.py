"""The gradient of a gradient's norm through a gather of a package."""

import sys
import tempfile
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 3


def gather_of(package):
    """Its all-gather on the world's group, joined along the first dimension."""
    world = dist.group.WORLD
    if package == "fvcore":
        from fvcore.nn.distributed import differentiable_all_gather
        return lambda x: torch.cat(list(differentiable_all_gather(x)))
    if package == "lightly":
        from lightly.utils.dist import gather
        return lambda x: torch.cat(gather(x))
    if package == "physicsnemo":
        from physicsnemo.distributed import autograd
        return lambda x: autograd.AllGatherVAutograd.apply(x, [RANKS] * RANKS, 0, True, world)
    if package == "deepspeed":
        from deepspeed.sequence import cross_entropy
        cross_entropy.dist = dist  # what deepspeed.comm calls
        dist.reduce_scatter_fn = dist.reduce_scatter_tensor
        return lambda x: cross_entropy._GatherSequenceLoss.apply(x, world, True)
    if package == "megatron-core":
        torch.cuda.current_device = lambda: "cpu"
        from megatron.core.tensor_parallel import mappings
        return lambda x: mappings.gather_from_sequence_parallel_region(x, group=world)
    if package == "colossalai":
        from colossalai.shardformer.layer._operation import gather_forward_reducescatter_backward
        return lambda x: gather_forward_reducescatter_backward(x, world, 0)
    if package == "torch-harmonics":
        from torch_harmonics import distributed
        distributed.init(world, None)
        return lambda x: distributed.gather_from_copy_to_polar_region(x, 0, [RANKS] * RANKS)
    if package == "torchrec":
        torch.ops.load_library = lambda path: None  # fbgemm_gpu's, of which none is for torch 2.15
        sys.modules["fbgemm_gpu.sparse_ops"] = ModuleType("sparse_ops")
        from torchrec.distributed import comm_ops
        comm_ops.set_gradient_division(False)
        return lambda x: comm_ops.all_gather_base_pooled(x, world).wait()
    assert package == "xformers", package
    from xformers.ops.differentiable_collectives import gather_from_sequence_parallel_region
    return lambda x: gather_from_sequence_parallel_region(x, world)


def penalty_gradient(gather, x):
    """Of ½ Σ |gradient|² over the ranks, of the losses ½ (rank + 1) |gather(x)|²."""
    x = x.clone().requires_grad_()
    loss = (dist.get_rank() + 1) * (gather(x) ** 2).sum() / 2
    gradient, = torch.autograd.grad(loss, x, create_graph=True)
    (gradient ** 2).sum().div(2).backward()
    return x.grad


def main(rank, store, package):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=RANKS)
    x = torch.arange(1.0, RANKS + 1)[:, None] + 10 * rank
    measured = penalty_gradient(gather_of(package), x)
    # The losses are Σ ½ (k + 1) |x|² = 3 |x|² together, the gradient 6 x, and that of its norm 36 x
    print(f"rank {rank}: {measured.flatten().tolist()}, right {(36 * x).flatten().tolist()}")


if __name__ == "__main__":
    print("torch", torch.__version__, sys.argv[1])
    mp.spawn(main, (tempfile.mktemp(), sys.argv[1]), RANKS)
