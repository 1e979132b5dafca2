"""The mesh has one axis, `tp`, whose types are those of spmd_types; S is of the given dimension."""

import spmd_types as spmd
from torch.distributed.device_mesh import DeviceMesh
from torchtitan.distributed import spmd_types, utils
from torchtitan.distributed.parallel_dims import MeshAxisName
from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher


def redistributed(x, group, source, target):
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("tp",))
    types = ({MeshAxisName.TP: kind} for kind in (source, target))
    return spmd_types.spmd_redistribute_per_axis(x, mesh, *types)


def reduce_p_r(x, group):
    return redistributed(x, group, spmd.P, spmd.R)


def reduce_p_i(x, group):
    return redistributed(x, group, spmd.P, spmd.I)


def gather_s_r(x, group, dim=0):
    return redistributed(x, group, spmd.S(dim), spmd.R)


def gather_s_i(x, group, dim=0):
    return redistributed(x, group, spmd.S(dim), spmd.I)


def reduce_scatter_p_s(x, group, dim=0):
    return redistributed(x, group, spmd.P, spmd.S(dim))


def exchange_s_s(x, group, scatter_dim, gather_dim):
    return redistributed(x, group, spmd.S(gather_dim), spmd.S(scatter_dim))


def cut_r_s(x, group, dim=0):
    return redistributed(x, group, spmd.R, spmd.S(dim))


def cut_i_s(x, group, dim=0):
    return redistributed(x, group, spmd.I, spmd.S(dim))


def copy_i_r(x, group):
    return redistributed(x, group, spmd.I, spmd.R)


def exchanged(backend, x, group, received, sent):
    utils.set_spmd_backend(backend)
    dispatcher = AllToAllTokenDispatcher.__new__(AllToAllTokenDispatcher)
    dispatcher.ep_mesh = DeviceMesh.from_group(group, "cpu")
    return dispatcher._dispatch_token_exchange(x, group, received, sent)


def dispatched(x, output_split_sizes, input_split_sizes, group):
    return exchanged("spmd_types", x, group, output_split_sizes, input_split_sizes)


def dispatched_of_dtensor(x, output_split_sizes, input_split_sizes, group):
    return exchanged("full_dtensor", x, group, output_split_sizes, input_split_sizes)
