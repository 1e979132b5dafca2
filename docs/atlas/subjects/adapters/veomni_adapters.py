import torch

torch.cpu.get_device_name = lambda *_: "cpu"  # asked for at import
torch.cuda.get_device_capability = lambda *_: (9, 0)

import veomni.ops  # noqa: E402, F401 (first, or 0.1.4 imports itself in a circle)
from veomni.distributed.moe import comm  # noqa: E402
from veomni.distributed.sequence_parallel import ulysses  # noqa: E402


def gather(x, group, dim=0):
    return ulysses._Gather.apply(group, x, dim, False, False)


def gather_summed(x, group, dim=0):
    return ulysses._Gather.apply(group, x, dim, False, True)


def gather_as_by_default(x, group, dim=0):
    return ulysses._Gather.apply(group, x, dim)


def cut(x, group, dim=0):
    return ulysses._Slice.apply(group, x, dim, True)


def cut_unscaled(x, group, dim=0):
    return ulysses._Slice.apply(group, x, dim, False)


def exchange(x, group, scatter_dim, gather_dim):
    return ulysses._SeqAllToAll.apply(group, x, scatter_dim, gather_dim)


def moe_exchange(x, group):
    return comm._AllToAll.apply(group, x, None, None)
