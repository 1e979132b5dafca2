from physicsnemo.distributed import autograd, mappings


def gather_from_region(x, group, dim=0):
    return mappings.gather_from_parallel_region(x, dim, [x.shape[dim]] * group.size(), group)


def gather_v(x, group, dim=0):
    return autograd.AllGatherVAutograd.apply(x, [x.shape[dim]] * group.size(), dim, True, group)


def scatter_v(x, splits, src, group, dim=0):
    return autograd.ScatterVAutograd.apply(x, splits, dim, src, group)
