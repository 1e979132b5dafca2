from verl.utils import ulysses


def slice_input(x, group, dim=0):
    ulysses.set_ulysses_sequence_parallel_group(group)
    return ulysses.slice_input_tensor(x, dim, padding=False)
