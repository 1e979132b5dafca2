from veomni.distributed.sequence_parallel import ulysses


def gather(x, group, dim=0):
    return ulysses._Gather.apply(group, x, dim, False, False)


def gather_summed(x, group, dim=0):
    return ulysses._Gather.apply(group, x, dim, False, True)


def cut(x, group, dim=0):
    return ulysses._Slice.apply(group, x, dim, True)


def cut_unscaled(x, group, dim=0):
    return ulysses._Slice.apply(group, x, dim, False)


def exchange(x, group, scatter_dim, gather_dim):
    return ulysses._SeqAllToAll.apply(group, x, scatter_dim, gather_dim)
