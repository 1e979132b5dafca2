"""Drives one collective call: repeats its forward and backward with cotangents of the driver's
choice."""

import torch

from .board import MOST_IN_STEP
from .call import NotOffered
from .strides import laid_out


def drive(case, request):
    """Fills in the case's result. All ranks wait for each other after each call. Otherwise a
    collective that only some make in one backward would be paired with one of the next."""
    if case.what["world_size"] > MOST_IN_STEP:
        raise NotOffered(f"more than {MOST_IN_STEP} ranks have no place to wait for each other"
                         " between two calls")
    name = case.what["steps"][0]["collective"]["operand"]["text"]
    operand = laid_out(case.held(name), _of_rank(request["operand_strides"], case.rank))
    cotangents = case.held(request["cotangents"])
    call = _Driven(case, operand, cotangents, _of_rank(request["cotangent_strides"], case.rank))
    gradients = operand.new_zeros((len(cotangents), *operand.shape))
    any_given = False
    for place in range(len(cotangents)):
        given = call.gradient(place)
        if given is not None:
            gradients[place] = given
            any_given = True
        case.board.wait_for_calls(place + 1, case.what["world_size"])
    case.result["gradients"] = case.written([gradients if any_given else None])
    case.result["steps"] = case.written([call.output])


def _of_rank(strides, rank):
    return strides[rank] if strides else []


class _Driven:
    def __init__(self, case, operand, cotangents, strides):
        self._case = case
        self._operand = operand
        self._cotangents = cotangents
        self._strides = strides
        self.output = None

    def gradient(self, place):
        """Returns the gradient of a fresh leaf for the cotangent at `place`; None if there is
        none."""
        leaf = self._operand.detach().requires_grad_()
        self._case.run_backward(self._case.subject.forward(lambda x: self._end(x, place), [leaf]))
        return leaf.grad

    def _end(self, leaf, place):
        value = self._case.exchanged_alone(leaf)
        if self.output is None:
            self.output = value.detach().clone()
        return _Start.apply(value,
                            lambda like: laid_out(self._cotangents[place].to(like), self._strides))


class _Start(torch.autograd.Function):
    """Starts the backward: only `value` gets the cotangent that `make` makes, and nobody else has
    it."""

    @staticmethod
    def forward(ctx, value, make):
        ctx.make, ctx.dtype = make, value.dtype
        return value.new_zeros(())

    @staticmethod
    def backward(ctx, _):
        return ctx.make(ctx.dtype), None
