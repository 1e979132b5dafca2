"""Finds the scalars at which backward begins: the losses of a step of unknown code."""

import functools

import torch

_asking = 0  # This many running calls of torch.autograd.grad() are no backward of a loss.


def is_in_backward():
    return torch._C._current_graph_task_id() != -1


def is_asking():
    """Returns, inside Roots, whether the user's code asks for a derivative of its own, for example
    to penalize it. What arrives anywhere then is no cotangent of the loss."""
    return _asking > 0


class Begun(BaseException):
    """Ends a step in place of its backward if only the loss is wanted; no step catches it."""


class Roots:
    """Adds up in `total`, inside this context, the scalars at which backward begins, each times its
    cotangent, and counts them in `count`; `total` is None if there is none. It calls before()
    before each backward, and after() after it; `retains` keeps graphs; `ends` makes the first
    backward raise Begun."""

    def __init__(self, before=lambda: None, retains=False, ends=False, after=lambda: None):
        self.total, self.count, self._before, self._after = None, 0, before, after
        self._retains, self._ends = retains, ends
        self.root = None  # Backward began at this scalar last.

    def __enter__(self):
        self._backward, self._grad = torch.autograd.backward, torch.autograd.grad

        @functools.wraps(self._backward)
        def backward(tensors, grad_tensors=None, retain_graph=None, *args, **kwargs):
            is_inside = is_in_backward()  # Checkpointing calls backward inside of backward.
            if not is_inside:
                self._before()
                self._add(tensors, grad_tensors)
            self._backward(tensors, grad_tensors, retain_graph or self._retains or None, *args,
                           **kwargs)
            if not is_inside:
                self._after()

        @functools.wraps(self._grad)
        def grad(outputs, inputs, grad_outputs=None, *args, **kwargs):
            global _asking
            is_a_loss = not kwargs.get("create_graph") and any(
                isinstance(x, torch.nn.Parameter) for x in _listed(inputs))
            if is_a_loss:
                self._add(outputs, grad_outputs)
            _asking += not is_a_loss
            try:
                return self._grad(outputs, inputs, grad_outputs, *args, **kwargs)
            finally:
                _asking -= not is_a_loss

        torch.autograd.backward, torch.autograd.grad = backward, grad
        return self

    def __exit__(self, *_):
        torch.autograd.backward, torch.autograd.grad = self._backward, self._grad

    def _add(self, tensors, cotangents):
        roots = _listed(tensors)
        cotangents = [None] * len(roots) if cotangents is None else _listed(cotangents)
        for root, cotangent in zip(roots, cotangents):
            if isinstance(root, torch.Tensor) and root.numel() == 1 and not root.is_complex():
                value = _number(root) * (1.0 if cotangent is None else _number(cotangent))
                self.total, self.count = value + (self.total or 0.0), self.count + 1
                self.root = root
                if self._ends:
                    raise Begun


def can_end(modules):
    """Returns whether forward can run again without its backward. FSDP would keep the parameters
    that it gathered, and DDP would wait for reductions that it has begun."""
    for module in modules:
        names = {kind.__name__ for kind in type(module).__mro__}
        if names & {"FSDPModule", "FullyShardedDataParallel"} or (
                "DistributedDataParallel" in names
                and (module.static_graph or module.find_unused_parameters)):
            return False
    return True


def _listed(x):
    return list(x) if isinstance(x, (tuple, list)) else [x]


def _number(x):
    x = x.detach()
    return float(x.full_tensor() if hasattr(x, "full_tensor") else x)
