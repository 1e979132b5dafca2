from verl.utils import ulysses


def gather(x, group, dim=0):
    return ulysses.Gather.apply(group, x, dim, True, False)


def gather_without_scaling(x, group, dim=0):
    return ulysses.Gather.apply(group, x, dim, False, False)


def exchange(x, group, scatter_dim, gather_dim):
    return ulysses.SeqAllToAll.apply(group, x, scatter_dim, gather_dim, False)


def slice_input(x, group, dim=0):
    ulysses.set_ulysses_sequence_parallel_group(group)
    return ulysses.slice_input_tensor(x, dim, padding=False)


def slice_input_of_group(x, group, dim=0):
    ulysses.set_ulysses_sequence_parallel_group(None)
    return ulysses.slice_input_tensor(x, dim, padding=False, group=group)
