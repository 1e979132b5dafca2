"""Its default for the group is None, and what it does then is to ask None for its size."""

from nanotron.parallel.tensor_parallel import distributed_differentiable_primitives as primitives


def identity(x, group):
    return primitives.differentiable_identity(x, group)
