"""DTensor.redistribute between placements, as functions of what each rank holds."""

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard


def redistributed(x, group, source, target):
    mesh = DeviceMesh.from_group(group, "cpu")
    given = DTensor.from_local(x, mesh, [source], run_check=False)
    return given.redistribute(placements=[target]).to_local()


def shard_to_replicate(x, group, dim=0):
    return redistributed(x, group, Shard(dim), Replicate())


def full_tensor(x, group, dim=0):
    mesh = DeviceMesh.from_group(group, "cpu")
    return DTensor.from_local(x, mesh, [Shard(dim)], run_check=False).full_tensor()


def partial_to_replicate(x, group):
    return redistributed(x, group, Partial(), Replicate())


def partial_to_shard(x, group, dim=0):
    return redistributed(x, group, Partial(), Shard(dim))


def shard_to_shard(x, group, scatter_dim, gather_dim):
    return redistributed(x, group, Shard(gather_dim), Shard(scatter_dim))


def replicate_to_shard(x, group, dim=0):
    return redistributed(x, group, Replicate(), Shard(dim))


def replicate_to_replicate(x, group):
    return redistributed(x, group, Replicate(), Replicate())
