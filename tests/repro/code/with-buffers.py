"""Collectives with c10d's signatures, whose outputs the caller allocates; the file's name is no
module's."""
import torch
import torch.distributed as dist


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, output, group):
        dist.all_gather_into_tensor(output, x.contiguous(), group=group)
        ctx.group = group
        return output.clone()

    @staticmethod
    def backward(ctx, g):
        return g.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None, None


def all_gather(output, input, group=None):
    return _AllGather.apply(input, output, group)


def all_to_all(output_list, input_list, group=None):
    counts = [y.numel() for y in output_list]
    received = input_list[0].new_empty(sum(counts))
    dist.all_to_all_single(received, torch.cat([x.reshape(-1) for x in input_list]), counts,
                           [x.numel() for x in input_list], group=group)
    for y, part in zip(output_list, received.split(counts)):
        y.copy_(part.reshape(y.shape))


def reduce_scatter(output, input_list, op=dist.ReduceOp.SUM, group=None, async_op=False):
    return dist.reduce_scatter(output, [x.contiguous() for x in input_list], op, group=group,
                               async_op=async_op)


def gather(x, gather_list=None, dst=0, group=None):
    dist.gather(x.contiguous(), gather_list, dst=dst, group=group)


def scatter(output, scatter_list=None, src=0, group=None):
    dist.scatter(output, [x.contiguous() for x in scatter_list] if scatter_list else None, src=src,
                 group=group)
