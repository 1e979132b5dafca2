"""Runs a step in float64, whatever its parameters' dtype is."""

import contextlib

import torch

# Gradients in float64 may differ from those in the parameters' own dtype by this, relatively, and
# by this part of the model's largest gradient.
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


def differ(own, wide, largest, dtype=None):
    """Returns whether a gradient in a wider dtype, or None, differs from that of the step as it is
    by more than rounding; largest is the largest norm of any gradient, and dtype the coarsest in
    which the step computes, if that is not the gradient's own."""
    if own is None or wide is None:
        return own is not wide
    share, left = _ROUNDED.get(dtype or own.dtype, (1e-6, 1e-9))
    return not float((own - wide).norm()) <= max(share * float(wide.norm()), left * largest)
