"""One training step, by itself or under torchrun; each rank then has its share of the tokens."""

import sys

import torch
import torch.distributed as dist
from torch import nn

from distgrad import save_gradients


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.proj = nn.Linear(8, 4)

    def forward(self, tokens):
        return self.proj(self.norm(tokens))


torch.manual_seed(0)
model, tokens = Block(), torch.randn(16, 8)
if dist.is_torchelastic_launched():
    dist.init_process_group("gloo")
    tokens = tokens.chunk(dist.get_world_size())[dist.get_rank()]

model(tokens).square().sum().backward()
if dist.is_initialized():
    for p in model.proj.parameters():  # the mistake: norm is left out
        dist.all_reduce(p.grad)

save_gradients(model, sys.argv[1])  # on every rank, before optimizer.step()
