import spmd_types
from spmd_types import I, P, R, S, V


def all_reduce_p_r(x, group):
    return spmd_types.all_reduce(x, group, src=P, dst=R)


def all_reduce_p_i(x, group):
    return spmd_types.all_reduce(x, group, src=P, dst=I)


def all_gather_v_r(x, group):
    return spmd_types.all_gather(x, group, src=V, dst=R)


def all_gather_v_i(x, group):
    return spmd_types.all_gather(x, group, src=V, dst=I)


def reduce_scatter_p_v(x, group):
    return spmd_types.reduce_scatter(x, group, src=P, dst=S(0))


def all_to_all_v_v(x, group):
    return spmd_types.all_to_all(x, group, src=S(0), dst=S(0))


def i_to_r(x, group):
    return spmd_types.convert(x, group, src=I, dst=R)


def r_to_i(x, group):
    return spmd_types.convert(x, group, src=R, dst=I, expert_mode=True)
