"""Runs a step in float64, whatever its parameters' dtype is."""

import contextlib

import torch

# By so much, relatively, gradients in float64 may differ from those in the parameters' own dtype,
# and by so much of the model's largest gradient.
_ROUNDED = {torch.float32: (0.05, 1e-4), torch.float16: (0.1, 0.02), torch.bfloat16: (0.25, 0.1)}


@contextlib.contextmanager
def in_float64(model):
    """Converts a model's parameters, gradients and buffers, and puts the same tensors back. All
    that meets them is to be converted by ranks.narrowing.Narrowing. Hooks on gradient accumulators,
    such as DistributedDataParallel's, do not run meanwhile."""
    kept = [(x, x.data, x.grad) for x in (*model.parameters(), *model.buffers())
            if x.dtype in _ROUNDED]
    try:
        for x, data, gradient in kept:
            _put(x, data.double(), None if gradient is None else gradient.double())
        yield
    finally:
        for kept_of_one in kept:
            _put(*kept_of_one)


def _put(x, data, gradient):
    x.grad = None
    x.data = data
    x.grad = gradient


def differing(own, wide, largest):
    """Returns the names of gradients in `wide`, {name: tensor or None}, that differ from those in
    `own` by more than rounding to own dtypes; largest is the largest norm on any rank."""
    found = []
    for name, a in own.items():
        b = wide[name]
        if a is None or b is None:
            found += [name] if a is not b else []
            continue
        share, left = _ROUNDED.get(a.dtype, (1e-6, 1e-9))
        if not float((a - b).norm()) <= max(share * float(b.norm()), left * largest):
            found.append(name)
    return found
