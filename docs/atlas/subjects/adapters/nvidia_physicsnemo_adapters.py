"""Groups are asked for by name, of a manager that the environment sets up: here a group is its own
name."""

from physicsnemo.distributed import autograd, mappings


class _Manager:
    def group(self, group):
        return group

    def group_size(self, group):
        return group.size()


mappings.DistributedManager = _Manager


def copy_to_region(x, group):
    return mappings.copy_to_parallel_region(x, group)


def reduce_from_region(x, group):
    return mappings.reduce_from_parallel_region(x, group)


def scatter_to_region(x, group, dim=0):
    return mappings.scatter_to_parallel_region(x, dim, group)


def gather_from_region(x, group, dim=0):
    return mappings.gather_from_parallel_region(x, dim, [x.shape[dim]] * group.size(), group)


def gather_v(x, group, dim=0):
    return autograd.AllGatherVAutograd.apply(x, [x.shape[dim]] * group.size(), dim, True, group)


def scatter_v(x, splits, src, group, dim=0):
    return autograd.ScatterVAutograd.apply(x, splits, dim, src, group)
