"""Notes the strides of what it gets, and tells whose code torch consists of."""

import os

import torch

seen = []


def all_reduce(x):
    seen.append(x.stride())
    return x


def _home(function):
    """Its file's folder in torch; None where it is compiled."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code and os.path.relpath(code.co_filename, os.path.dirname(torch.__file__))


def whose(x):
    module = torch.nn.Module
    hooks = module.register_full_backward_hook, module.register_full_backward_pre_hook
    print("apply", _home(torch.autograd.Function.apply), "hooks", _home(torch.Tensor.register_hook),
          *map(_home, hooks))
    return x * 1.0
