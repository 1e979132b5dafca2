"""Functions that cannot be mapped, or only in part."""

import torch
import torch.distributed as dist


def all_reduce(x, bits, group=None):
    return x


def all_gather(x, group=None):
    return [x, 2 * x, "text"]


def reduce_mean(x, average=True, group=None):
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x / dist.get_world_size(group) if average else x


def joined_along_1(x, group=None):
    pieces = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(pieces, x.contiguous(), group=group)
    return torch.cat(pieces, 1)


def forgets_to_return(x, group=None):
    y = x.clone()
    dist.all_reduce(y, group=group)


def in_place(x, group=None):
    dist.all_reduce(x, group=group)


def says_much(x, group=None):
    raise RuntimeError("x" * 200_000_000)


def fill(output, input, group=None):
    dist.all_gather_into_tensor(output, input, group=group)


NUMBER = 3


class Plain:
    pass
