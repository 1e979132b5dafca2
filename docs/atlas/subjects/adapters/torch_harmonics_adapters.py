"""The groups are the module's own, set by its `init`: here before each call."""

from torch_harmonics import distributed


def copy_to_polar(x, group):
    distributed.init(group, None)
    return distributed.copy_to_polar_region(x)


def copy_to_azimuth(x, group):
    distributed.init(None, group)
    return distributed.copy_to_azimuth_region(x)


def reduce_from_polar(x, group):
    distributed.init(group, None)
    return distributed.reduce_from_polar_region(x)


def reduce_from_azimuth(x, group):
    distributed.init(None, group)
    return distributed.reduce_from_azimuth_region(x)


def scatter_to_polar(x, group, dim=0):
    distributed.init(group, None)
    return distributed.scatter_to_polar_region(x, dim)


def gather_from_polar(x, group, dim=0):
    distributed.init(group, None)
    return distributed.gather_from_polar_region(x, dim, [x.shape[dim]] * group.size())


def gather_from_copy(x, group, dim=0):
    distributed.init(group, None)
    return distributed.gather_from_copy_to_polar_region(x, dim, [x.shape[dim]] * group.size())


def reduce_scatter_polar(x, group, dim=0):
    distributed.init(group, None)
    return distributed.reduce_from_scatter_to_polar_region(x, dim)


def reduce_scatter_azimuth(x, group, dim=0):
    distributed.init(None, group)
    return distributed.reduce_from_scatter_to_azimuth_region(x, dim)


def transpose_polar(x, group, scatter_dim, gather_dim):
    distributed.init(group, None)
    sizes = [x.shape[gather_dim]] * group.size()
    return distributed.distributed_transpose_polar(x, (scatter_dim, gather_dim), sizes)


def transpose_azimuth(x, group, scatter_dim, gather_dim):
    distributed.init(None, group)
    sizes = [x.shape[gather_dim]] * group.size()
    return distributed.distributed_transpose_azimuth(x, (scatter_dim, gather_dim), sizes)
