"""A loss with a penalty on the norm of its gradient, through the collectives of a package:
`double_backward.py PACKAGE`."""

import sys
import tempfile
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 3


def collectives_of(package):
    """[(kind, name, function)] on the world's group, of operands of three rows: a gather joins
    them, a reduce_scatter adds them up and keeps its part, an exchange sends one row to each."""
    world = dist.group.WORLD
    if package == "fvcore":
        from fvcore.nn.distributed import differentiable_all_gather
        yield "gather", "differentiable_all_gather", differentiable_all_gather
    elif package == "lightly":
        from lightly.utils.dist import gather
        yield "gather", "gather", gather
    elif package == "physicsnemo":
        from physicsnemo.distributed import autograd
        yield "gather", "AllGatherVAutograd", lambda x: autograd.AllGatherVAutograd.apply(
            x, [RANKS] * RANKS, 0, True, world)
    elif package == "deepspeed":
        from deepspeed.sequence import cross_entropy
        cross_entropy.dist = dist  # what deepspeed.comm calls
        dist.reduce_scatter_fn = dist.reduce_scatter_tensor
        yield "gather", "_GatherSequenceLoss", lambda x: cross_entropy._GatherSequenceLoss.apply(
            x, world, True)
    elif package == "megatron-core":
        torch.cuda.current_device = lambda: "cpu"
        from megatron.core.tensor_parallel import mappings
        yield "gather", "gather_from_sequence_parallel_region", lambda x: (
            mappings.gather_from_sequence_parallel_region(x, group=world))
        yield "reduce_scatter", "reduce_scatter_to_sequence_parallel_region", lambda x: (
            mappings.reduce_scatter_to_sequence_parallel_region(x, world))
    elif package == "colossalai":
        from colossalai.shardformer.layer import _operation
        yield "gather", "gather_forward_reducescatter_backward", lambda x: (
            _operation.gather_forward_reducescatter_backward(x, world, 0))
        yield "reduce_scatter", "reducescatter_forward_gather_backward", lambda x: (
            _operation.reducescatter_forward_gather_backward(x, world, 0))
        yield "exchange", "all_to_all_comm", lambda x: (
            _operation.all_to_all_comm(x, world, scatter_dim=0, gather_dim=1))
        from colossalai.moe import _operation as moe
        moe.dist = WithoutShapes()
        yield "gather", "moe AllGather", lambda x: moe.AllGather.apply(x, world)[0].flatten(0, 1)
    elif package == "torch-harmonics":
        from torch_harmonics import distributed
        distributed.init(world, world)
        yield "gather", "gather_from_copy_to_polar_region", lambda x: (
            distributed.gather_from_copy_to_polar_region(x, 0, [RANKS] * RANKS))
        for name in ("polar", "azimuth"):
            scatter = getattr(distributed, f"reduce_from_scatter_to_{name}_region")
            yield "reduce_scatter", scatter.__name__, lambda x, f=scatter: f(x, 0)
            exchange = getattr(distributed, f"distributed_transpose_{name}")
            yield "exchange", f"distributed_transpose_{name}", lambda x, f=exchange: (
                f(x, (0, 1), [1] * RANKS))
    elif package == "torchrec":
        torch.ops.load_library = lambda path: None  # fbgemm_gpu's, of which none is for torch 2.15
        sys.modules["fbgemm_gpu.sparse_ops"] = ModuleType("sparse_ops")
        from torchrec.distributed import comm_ops
        comm_ops.set_gradient_division(False)
        yield "gather", "all_gather_base_pooled", lambda x: (
            comm_ops.all_gather_base_pooled(x, world).wait())
        yield "reduce_scatter", "reduce_scatter_base_pooled", lambda x: (
            comm_ops.reduce_scatter_base_pooled(x, world).wait())
        yield "exchange", "alltoall_pooled", lambda x: comm_ops.alltoall_pooled(
            x, [1] * RANKS, [1] * RANKS, group=world).wait()
    elif package == "veomni":
        torch.cpu.get_device_name = lambda *_: "cpu"  # asked for at import
        torch.cuda.get_device_capability = lambda *_: (9, 0)
        from veomni.distributed.sequence_parallel import ulysses
        yield "gather", "_Gather", lambda x: ulysses._Gather.apply(world, x, 0)
        yield "exchange", "_SeqAllToAll", lambda x: ulysses._SeqAllToAll.apply(world, x, 0, 1)
        yield "exchange", "_AlltoAllRegion", lambda x: ulysses._AlltoAllRegion.apply(
            world, x, [1] * RANKS, [1] * RANKS)
    elif package == "verl":
        from verl.utils import ulysses
        yield "exchange", "SeqAllToAll", lambda x: ulysses.SeqAllToAll.apply(world, x, 0, 1, False)
    elif package == "torch":
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Replicate, Shard
        yield "exchange", "DTensor.redistribute", lambda x: DTensor.from_local(
            x, DeviceMesh.from_group(world, "cpu"), [Shard(1)], run_check=False).redistribute(
            placements=[Shard(0)]).to_local()
        yield "copy", "DTensor.from_local", lambda x: DTensor.from_local(
            x, DeviceMesh.from_group(world, "cpu"), [Replicate()], run_check=False).redistribute(
            placements=[Replicate()]).to_local()
    else:
        assert package == "xformers", package
        from xformers.ops import differentiable_collectives as of_xformers
        yield "gather", "gather_from_sequence_parallel_region", lambda x: (
            of_xformers.gather_from_sequence_parallel_region(x, world))
        yield "reduce_scatter", "scatter_to_sequence_parallel_region", lambda x: (
            of_xformers.scatter_to_sequence_parallel_region(x, world))


class WithoutShapes:
    """torch.distributed with buffers of another shape than the operand, as NCCL takes them."""

    def all_gather(self, buffers, x, group):
        return dist.all_gather([b.view_as(x) for b in buffers], x, group)

    def reduce_scatter(self, output, buffers, group):
        return dist.reduce_scatter(output, [b.view_as(output) for b in buffers], group=group)

    def __getattr__(self, name):
        return getattr(dist, name)


def of_one_process(kind, xs):
    """What each rank gets, as plain tensor code."""
    if kind == "copy":
        return xs
    if kind == "gather":
        return [torch.cat(xs)] * RANKS
    pieces = [[x[rank : rank + 1] for x in xs] for rank in range(RANKS)]
    return [sum(of) if kind == "reduce_scatter" else torch.cat(of) for of in pieces]


def gradients_with_penalty(xs, losses):
    """Of the sum of the losses, and ½ Σ |its gradient|²."""
    gradients = torch.autograd.grad(sum(losses), xs, create_graph=True)
    return torch.autograd.grad(sum(losses) + sum((g ** 2).sum() for g in gradients) / 2, xs)


def loss(rank, y):
    y = torch.cat(list(y)) if isinstance(y, (list, tuple)) else y
    return (rank + 1) * (y ** 2).sum() / 2


def main(rank, store, package):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=RANKS)
    values = [torch.arange(1.0, RANKS + 1)[:, None] + 10 * k for k in range(RANKS)]
    for kind, name, function in collectives_of(package):
        xs = [x.clone().requires_grad_() for x in values]
        losses = [loss(k, y) for k, y in enumerate(of_one_process(kind, xs))]
        right = gradients_with_penalty(xs, losses)
        x = values[rank].clone().requires_grad_()
        try:
            measured, = gradients_with_penalty([x], [loss(rank, function(x))])
            told = measured.flatten().tolist()
        except RuntimeError as error:
            told = f"raises: {str(error)[:60]}"
        print(f"rank {rank}: {name}: {told}, right {right[rank].flatten().tolist()}")


if __name__ == "__main__":
    print("torch", torch.__version__, sys.argv[1])
    mp.spawn(main, (tempfile.mktemp(), sys.argv[1]), RANKS)
