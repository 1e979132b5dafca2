"""Gives a copy of a tensor the same layout in memory."""

import torch


def laid_out(x, strides):
    """Returns a copy of `x` with these strides, in elements; contiguous if `strides` is empty.
    Along a stride of 0 all elements are the first. The gaps hold zeros, so that code that reads
    them is wrong in the same way each time."""
    if not strides:
        return x.clone(memory_format=torch.contiguous_format)
    once = x
    for dim, stride in enumerate(strides):
        if stride == 0 and x.shape[dim] > 1:
            once = once.narrow(dim, 0, 1)
    copy = torch.empty_strided(once.shape, strides, dtype=x.dtype, device=x.device)
    copy.as_strided((copy.untyped_storage().nbytes() // copy.element_size(),), (1,)).zero_()
    copy.copy_(once)
    return copy.expand(x.shape) if copy.shape != x.shape else copy


def rearranged(x, there, back):
    """Returns there(x), the elements of `x` in another order or shape; back() is the inverse. In
    forward and backward, contiguous tensors stay contiguous, and others stay non-contiguous.
    Otherwise code that reads a cotangent in memory order would be right here."""
    return _Rearranged.apply(x, there, back)


class _Rearranged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, there, back):
        ctx.set_materialize_grads(False)
        ctx.way = there, back
        y = there(x)
        if x.is_contiguous():
            return y.contiguous()
        return laid_out(y, _not_contiguous(y.shape)) if y.is_contiguous() else y

    @staticmethod
    def backward(ctx, cotangent):
        there, back = ctx.way
        given = None if cotangent is None else _Rearranged.apply(cotangent, back, there)
        return given, None, None


def _not_contiguous(shape):
    """Returns strides that are not contiguous: the dimensions in reverse, or gaps if there is only
    one."""
    strides, step = [], 1 if sum(size > 1 for size in shape) > 1 else 2
    for size in shape:
        strides.append(step)
        step *= size
    return strides
