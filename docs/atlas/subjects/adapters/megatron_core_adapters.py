"""Buffers are made on the current CUDA device, which is none here."""

import torch
from megatron.core.tensor_parallel import mappings

torch.cuda.current_device = lambda: "cpu"
gather_sequence = mappings.gather_from_sequence_parallel_region


def copy_to_tensor(x, group):
    return mappings.copy_to_tensor_model_parallel_region(x, group)


def reduce_from_tensor(x, group):
    return mappings.reduce_from_tensor_model_parallel_region(x, group)


def scatter_to_tensor(x, group):
    return mappings.scatter_to_tensor_model_parallel_region(x, group)


def gather_from_tensor(x, group):
    return mappings.gather_from_tensor_model_parallel_region(x, group)


def scatter_to_sequence(x, group):
    return mappings.scatter_to_sequence_parallel_region(x, group)


def gather_from_sequence(x, group):
    return gather_sequence(x, group=group)


def gather_without_output_grad(x, group):
    return gather_sequence(x, tensor_parallel_output_grad=False, group=group)


def reduce_scatter_to_sequence(x, group):
    return mappings.reduce_scatter_to_sequence_parallel_region(x, group)


def exchange(x, group):
    return mappings.all_to_all(group, x)
