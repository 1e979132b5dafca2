"""Of a script: what stands around the calls under test."""

import random
import sys
import time

import torch
import torch.distributed as dist


def left_by_reduce(g, root, group=None):
    """Off root: whatever the backend leaves in the buffer."""
    buffer = g.clone(memory_format=torch.contiguous_format)
    dist.reduce(buffer, group=group, group_dst=root)
    return buffer


def attached(x):
    """Autograd runs a backward only where it leads somewhere, and all ranks have to meet in it."""
    return x if x.requires_grad else x.detach().requires_grad_()


class Meeting(torch.autograd.Function):
    """The loss. Its backward comes by every collective, whether this rank's loss depends on it or
    not: else other ranks would wait there for ever."""

    @staticmethod
    def forward(ctx, loss, *values):
        ctx.save_for_backward(*values)
        return loss.clone()

    @staticmethod
    def backward(ctx, g):
        return g, *(torch.zeros_like(value) for value in ctx.saved_tensors)


def waited_for(function, late, x, *group, **options):
    """One rank comes late, forward and backward: what is used before it is there is then wrong
    always, not by luck."""
    is_late = dist.get_rank(*group) == late % dist.get_world_size(*group)
    if is_late:
        time.sleep(0.03)
    y = function(x, *group, **options)
    if is_late and y.requires_grad:
        y.register_hook(lambda _: time.sleep(0.03))
    return y


def waited(y):
    """What an asynchronous call gave, once it is there; None for a handle."""
    if isinstance(y, (list, tuple)):
        return [value for value in map(waited, y) if value is not None]
    if isinstance(y, torch.Tensor):
        return y.clone() if type(y).__name__ == "AsyncCollectiveTensor" else y  # clone waits
    if hasattr(y, "is_completed"):
        y.wait()
        return None
    return y


def compiled(function):
    """A plain function that calls it, traced by Dynamo and AOTAutograd, and run by torch's own
    operators."""

    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return torch.compile(call, backend="aot_eager", dynamic=False)


def default_dtype(dtype):
    """Runs a function with this default dtype: the program's expressions with the case's, your code
    with torch's own."""

    def with_function(function):
        def call(*args, **kwargs):
            before = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            try:
                return function(*args, **kwargs)
            finally:
                torch.set_default_dtype(before)

        return call

    return with_function


plainly = default_dtype(torch.float32)


def seed(rank):
    """What is random is the same each time the program runs, and different on every rank."""
    torch.manual_seed(rank)
    random.seed(rank)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(rank)
