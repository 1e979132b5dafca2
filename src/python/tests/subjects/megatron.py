"""In the style of Megatron's tensor parallelism: the group is global state, which `setup` sets."""

import torch
import torch.distributed as dist

_TENSOR_PARALLEL_GROUP = None
SET_UP = []


def setup(groups):
    global _TENSOR_PARALLEL_GROUP
    SET_UP.append(sorted(groups))
    _TENSOR_PARALLEL_GROUP = groups.get("tp")
    return [name for name in groups if name == "tp"]


def _reduce(input_):
    """In place, as Megatron's is."""
    dist.all_reduce(input_, group=_TENSOR_PARALLEL_GROUP)
    return input_


def _gather_along_last_dim(input_):
    size = dist.get_world_size(_TENSOR_PARALLEL_GROUP)
    pieces = [torch.empty_like(input_) for _ in range(size)]
    dist.all_gather(pieces, input_.contiguous(), group=_TENSOR_PARALLEL_GROUP)
    return torch.cat(pieces, dim=input_.dim() - 1)


def _split_along_last_dim(input_):
    size = dist.get_world_size(_TENSOR_PARALLEL_GROUP)
    return input_.chunk(size, dim=-1)[dist.get_rank(_TENSOR_PARALLEL_GROUP)].contiguous()


class _CopyToModelParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_):
        return input_

    @staticmethod
    def backward(ctx, grad_output):
        return _reduce(grad_output)


class _ReduceFromModelParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_):
        return _reduce(input_)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class _GatherFromModelParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_):
        return _gather_along_last_dim(input_)

    @staticmethod
    def backward(ctx, grad_output):
        return _split_along_last_dim(grad_output)


def copy_to_tensor_model_parallel_region(input_):
    return _CopyToModelParallelRegion.apply(input_)


def reduce_from_tensor_model_parallel_region(input_):
    return _ReduceFromModelParallelRegion.apply(input_)


def gather_from_tensor_model_parallel_region(input_):
    return _GatherFromModelParallelRegion.apply(input_)


def scatter_to_tensor_model_parallel_region(input_):
    return _split_along_last_dim(input_)
