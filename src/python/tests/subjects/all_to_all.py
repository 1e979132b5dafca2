"""In the style of Megatron-Core's, DeepSpeed's and Colossal-AI's all_to_all."""

import torch
import torch.distributed as dist


class MegatronAllToAll(torch.autograd.Function):
    """The group comes first; sizes may be None."""

    @staticmethod
    def forward(ctx, group, input, output_split_sizes, input_split_sizes):
        ctx.group, ctx.sizes = group, (output_split_sizes, input_split_sizes)
        input = input.contiguous()
        if output_split_sizes is None:
            output = torch.empty_like(input)
        else:
            output = input.new_empty([sum(output_split_sizes), *input.shape[1:]])
        dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes, group=group)
        return output

    @staticmethod
    def backward(ctx, grad):
        received, sent = ctx.sizes
        return None, MegatronAllToAll.apply(ctx.group, grad, sent, received), None, None


class DeepSpeedAllToAll(torch.autograd.Function):
    """DeepSpeed's mixture of experts: equal chunks of dim 0."""

    @staticmethod
    def forward(ctx, group, input):
        ctx.group = group
        output = torch.empty_like(input)
        dist.all_to_all_single(output, input.contiguous(), group=group)
        return output

    @staticmethod
    def backward(ctx, *grad_output):
        return None, DeepSpeedAllToAll.apply(ctx.group, *grad_output)


def colossal_all_to_all(input_, world_size, group, scatter_dim, gather_dim):
    pieces = [t.contiguous() for t in torch.tensor_split(input_, world_size, scatter_dim)]
    received = [torch.empty_like(pieces[0]) for _ in range(world_size)]
    dist.all_to_all(received, pieces, group=group)
    return torch.cat(received, dim=gather_dim).contiguous()


def exchange(tensors, group=None):
    """Takes and gives lists."""
    received = [torch.empty_like(t) for t in tensors]
    dist.all_to_all(received, [t.contiguous() for t in tensors], group=group)
    return received


class SeqAllToAll(torch.autograd.Function):
    """DeepSpeed-Ulysses: cut along one dimension, joined along another."""

    @staticmethod
    def forward(ctx, group, input, scatter_idx, gather_idx):
        ctx.group, ctx.scatter_idx, ctx.gather_idx = group, scatter_idx, gather_idx
        size = dist.get_world_size(group)
        sent = [t.contiguous() for t in torch.tensor_split(input, size, scatter_idx)]
        received = [torch.empty_like(sent[0]) for _ in range(size)]
        dist.all_to_all(received, sent, group=group)
        return torch.cat(received, dim=gather_idx)

    @staticmethod
    def backward(ctx, grad):
        return None, SeqAllToAll.apply(ctx.group, grad, ctx.gather_idx, ctx.scatter_idx), None, None


class SeqAllToAllBackTheSameWay(SeqAllToAll):
    """The dimensions are not exchanged in backward, which is right only where they are the same."""

    @staticmethod
    def backward(ctx, grad):
        return None, SeqAllToAll.apply(ctx.group, grad, ctx.scatter_idx, ctx.gather_idx), None, None
