"""The group is global state."""

from fairscale.nn.model_parallel import initialize, mappings


def copy_to_region(x, group):
    initialize._MODEL_PARALLEL_GROUP = group
    return mappings.copy_to_model_parallel_region(x)


def reduce_from_region(x, group):
    initialize._MODEL_PARALLEL_GROUP = group
    return mappings.reduce_from_model_parallel_region(x)


def scatter_to_region(x, group):
    initialize._MODEL_PARALLEL_GROUP = group
    return mappings.scatter_to_model_parallel_region(x)


def gather_from_region(x, group):
    initialize._MODEL_PARALLEL_GROUP = group
    return mappings.gather_from_model_parallel_region(x)
