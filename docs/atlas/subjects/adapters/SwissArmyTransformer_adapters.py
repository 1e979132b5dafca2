"""The group is global state."""

from sat.mpu import initialize, mappings


def using(group):
    initialize._MODEL_PARALLEL_GROUP = group
    return mappings


def copied(x, group):
    return using(group).copy_to_model_parallel_region(x)


def reduced(x, group):
    return using(group).reduce_from_model_parallel_region(x)


def scattered(x, group):
    return using(group).scatter_to_model_parallel_region(x)


def gathered(x, group):
    return using(group).gather_from_model_parallel_region(x)
