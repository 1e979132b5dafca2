"""Hands a function its operand in one form after another, until it takes one.

The cases' operands mostly have two dimensions and are cut or joined along the first. Some functions
unpack four, or work along the last one only. They get the operand in that form, and their result is
brought back. Both ways keep the memory order: if a tensor is contiguous for the case, it is so for
the function, in forward and in backward.
"""

import re
from dataclasses import replace

from . import adapters_names as names
from . import noting
from .call import NotOffered
from .places import begin_and_end_of
from .strides import rearranged

# Matches how a function rejects a shape before it has sent anything.
_OF_A_SHAPE = re.compile(
    r"not enough values to unpack|index out of range|[Dd]imension|divisible|number of dim|\bndim\b|"
    r"permute|split_with_sizes|equal(ly)? split|\bdims?\b|\bshape\b")
# Matches how a function complains that it got None for the group and has none of its own.
_OF_NO_GROUP = re.compile(r"group|None|initiali[sz]ed", re.IGNORECASE)


class AlongAnotherDim(NotOffered):
    """The function joins or cuts along another dimension than the step, and has no parameter for
    it."""


class _AsItIs:
    def takes(self, call, x):
        return True

    def given(self, call, x):
        return call, x

    def taken(self, result, call, x):
        return result


def _transposed(x):
    return x.transpose(0, -1)


class _AlongTheLast:
    def takes(self, call, x):
        return call.kind in names.WITH_DIM and x.dim() > 1 and (call.dim or 0) % x.dim() == 0

    def given(self, call, x):
        return replace(call, dim=x.dim() - 1), rearranged(x, _transposed, _transposed)

    def taken(self, result, call, x):
        if call.dim is None and call.kind in names.GATHERING:
            pieces = call.group.size, result.shape[-1] // call.group.size
            return rearranged(result, lambda y: _transposed(y).unflatten(0, pieces),
                              lambda y: _transposed(y.flatten(0, 1)))
        return rearranged(result, _transposed, _transposed)


class _OfDims:
    """Appends dimensions of size 1 until the operand has `dims`."""

    def __init__(self, dims):
        self._dims = dims

    def takes(self, call, x):
        return 0 < x.dim() < self._dims

    def given(self, call, x):
        # A negative dim would count from the appended dimensions, so count it from the front.
        counted = call if call.dim is None else replace(call, dim=call.dim % x.dim())
        return counted, x.reshape(*x.shape, *[1] * (self._dims - x.dim()))

    def taken(self, result, call, x):
        behind = self._dims - x.dim()
        return (result.reshape(result.shape[:-behind]) if result.shape[-behind:].numel() == 1
                else result)


_FORMS = (_AsItIs(), _AlongTheLast(), _OfDims(3), _OfDims(4))


def call_in_some_form(binding, call, x, run):
    """Returns `run(call, x)` in the first form that the function takes. If it takes none, raises
    the function's own error.

    A form counts as refused only if the error speaks of a shape and comes before anything was sent.
    All ranks have operands of one form, so all settle on the same one."""
    refused = None
    for form in _FORMS:
        if not form.takes(call, x):
            continue
        if refused and binding.mode == "shared":
            raise NotOffered(f"{binding.label} does not take the program's own tensor, which has"
                             f" one form only: {refused}")
        before = noting.entered()
        try:
            return form.taken(run(*form.given(call, x)), call, x)
        except AlongAnotherDim as error:
            refused = refused if isinstance(refused, AlongAnotherDim) else error
        except NotOffered:
            raise
        except Exception as error:
            words = begin_and_end_of(error)
            if _lacks_dim(binding, call):
                refused = refused or NotOffered(
                    f"{binding.label} has no parameter for the dimension and raises"
                    f" {type(error).__name__}: {words}")
            if noting.entered() != before or not _OF_A_SHAPE.search(words):
                raise refused or error
            refused = refused or error
    raise refused


def _lacks_dim(binding, call):
    """Returns whether the step is along another dimension than the first, and the function cannot
    be told."""
    return (call.kind in names.WITH_DIM and call.dim not in (None, 0)
            and not binding.names("dim", "chunks"))


def lacks_group(error, before):
    """Returns whether the error says that a function needs a group although its default is None.
    `before` is noting.entered() from before the call."""
    return (noting.entered() == before and not isinstance(error, NotOffered)
            and bool(_OF_NO_GROUP.search(begin_and_end_of(error))))
