"""The styles of a tensor parallel plan, of which each is what stands before or behind a layer."""

from types import SimpleNamespace

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from transformers.distributed import expert_parallel, tensor_parallel


def output(style, x, group, layer):
    return style.transform_output_post_forward(layer, x, DeviceMesh.from_group(group, "cpu"))


def colwise_output_gathered(x, group):
    layer = SimpleNamespace(out_features=x.shape[-1] * group.size())
    return output(tensor_parallel.ColwiseParallel(output_layouts=Replicate()), x, group, layer)


def embedding_output(x, group):
    layer = SimpleNamespace(embedding_dim=x.shape[-1] * group.size())
    return output(tensor_parallel.EmbeddingParallel(shard_dim=1), x, group, layer)


def experts(group):
    """One expert on each rank; the batch is each rank's own."""
    made = expert_parallel.AllToAllEP.__new__(expert_parallel.AllToAllEP)
    made.num_local_experts, made.tp_mesh = 1, SimpleNamespace(size=lambda: 1)
    made.ep_mesh = DeviceMesh.from_group(group, "cpu")
    return made


def dispatched(x, input_split_sizes, group):
    """It sorts the tokens by their expert, in no fixed order of those of one: undone before it."""
    ids = torch.arange(group.size()).repeat_interleave(torch.tensor(input_split_sizes))
    tokens = x[torch.argsort(ids).argsort()]
    return experts(group)._dispatch_tokens(tokens, ids[:, None], torch.ones(len(x), 1))[0]
