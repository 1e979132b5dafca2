"""Defines the models and batches of the steps, with the same weights and data for the same seed,
whatever the number of ranks."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 32, 4, 40, 8, 16


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(WIDTH, 2 * WIDTH), nn.LayerNorm(
            2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.final, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        return self.head(self.final(x + self.second(F.gelu(self.norm(self.first(x))))))


class Block(nn.Module):
    """Has pre-norm attention and an MLP. The Linears may be cut over ranks, so heads are counted by
    the local query."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attention(self, x):
        heads = [m(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
                 for m in (self.q, self.k, self.v)]
        return F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)

    def forward(self, x):
        x = x + self.o(self.attention(self.norm1(x)))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.final, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final(x))


class Experts(nn.Module):
    """Sends tokens to all experts, weighted by a router; `weights` and `back` are [experts, in,
    out]."""

    COUNT = 4

    def __init__(self):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, self.COUNT)
        self.weights = nn.Parameter(torch.randn(self.COUNT, WIDTH, WIDTH) / WIDTH**0.5)
        self.back = nn.Parameter(torch.randn(self.COUNT, WIDTH, WIDTH) / WIDTH**0.5)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def mixed(self, x, gates, experts):
        """Returns what these experts, a slice, add."""
        hidden = F.gelu(torch.einsum("bi,eio->beo", x, self.weights[experts]))
        return torch.einsum("beo,eoi,be->bi", hidden, self.back[experts], gates[:, experts])

    def forward(self, x):
        normed = self.norm(x)
        gates = self.router(normed).softmax(-1)
        return self.head(x + self.mixed(normed, gates, slice(None)))


def made(kind, seed, dtype):
    torch.manual_seed(seed)
    return kind().to(dtype)


def _generator(seed):
    return torch.Generator().manual_seed(1000 + seed)


def rows(seed, dtype):
    """Returns a batch for Mlp and Experts: inputs and classes."""
    generator = _generator(seed)
    x = torch.randn(BATCH, WIDTH, generator=generator).to(dtype)
    return x, torch.randint(VOCABULARY, (BATCH,), generator=generator)


def text(seed, _dtype=None):
    """Returns a batch for Transformer: tokens and the next ones."""
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=_generator(seed))
    return tokens[:, :-1], tokens[:, 1:]


def pairs(seed, dtype):
    """Returns two views of each row, for a contrastive loss."""
    generator = _generator(seed)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    return x.to(dtype), (x + 0.3 * torch.randn(BATCH, WIDTH, generator=generator)).to(dtype)


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters()}
