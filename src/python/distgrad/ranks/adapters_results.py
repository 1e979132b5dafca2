"""Brings what a user's function gets and gives into the form that a collective's contract has.

Everything here uses views, cat and stack, so the user's backward gets the cotangent that it would
get in a training script. A cotangent is contiguous where the case's is, and only there.
"""

import warnings

import torch
import torch.distributed as dist

from . import adapters_names as names
from .adapters_forms import AlongAnotherDim
from .adapters_sizes import chunk_sizes, received_sizes
from .call import NotOffered, SubjectError
from .collectives.pieces import zeros_attached
from .collectives.torch_calls import awaited
from .collectives.traits import TRAITS
from .strides import laid_out, rearranged

_REMEDY = ": test a function of yours that calls this one and returns the result alone"


class _PrivateCopy(torch.autograd.Function):
    """Copies the operand with its strides, overlaps and gaps. A function that works in place then
    harms no other step, and one that is wrong for non-contiguous tensors still shows it. If the
    function's backward gives None, None passes here too, as it would in a training script."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return laid_out(x, x.stride())

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


def private_copy(x):
    return _PrivateCopy.apply(x)


def empty_outputs(call, x, as_list):
    """Returns buffers as a caller of c10d allocates them: a list with one per rank, or one
    tensor."""
    dim = call.dim or 0
    if call.kind in names.GATHERING:
        if as_list:
            return [torch.empty_like(x, memory_format=torch.contiguous_format)
                    for _ in range(call.group.size)]
        shape = list(x.shape) or [1]
        shape[dim] *= call.group.size
        return x.new_empty(shape)
    if call.kind in names.EXCHANGING:
        sizes = received_sizes(call, x)
        pieces = [x.new_empty(_resized(x, dim, size)) for size in sizes]
        return pieces if as_list else x.new_empty(_resized(x, dim, sum(sizes)))
    if call.kind in names.CUTTING:
        return x.new_empty(_resized(x, dim, chunk_sizes(call, x)[call.group.rank]))
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def gather_dim(call, x):
    """Returns the dimension along which an all_to_all that has two joins what it receives. It
    differs from the cut's if possible, since a backward that confuses the two is right if they are
    the same."""
    return ((call.dim or 0) + 1) % max(x.dim(), 1)


def _resized(x, dim, size):
    shape = list(x.shape)
    shape[dim] = size
    return shape


def gathered_sizes(call, x, dim):
    """Returns the operands' sizes along `dim`, by rank of the group. Costs a small all_gather, so
    all ranks of the group must call it."""
    own = torch.tensor([x.shape[dim]], dtype=torch.int64, device=x.device)
    sizes = [torch.empty_like(own) for _ in range(call.group.size)]
    dist.all_gather(sizes, own, group=call.group.process_group)
    return [int(size) for size in sizes]


def take(value, call, x, binding, arguments):
    """Returns the contract's result from what the function returned on this rank. `x` is the
    operand that it got. Raises SubjectError if no reading makes `value` a result, NotOffered if the
    result has another form than the step's."""
    value = waited(value)
    if value is None and arguments.outputs is not None:
        value = arguments.outputs
    off_root = TRAITS[call.kind].only_on_root and call.group.rank != call.root
    if call.kind == "gather":
        shape = _gathered_shape(call, x)  # on all ranks, since it may communicate
        if off_root:
            return zeros_attached(shape, value, x)
    elif off_root:
        return zeros_attached(x.shape, x if value is None else value, x)
    if value is None and call.kind in names.IN_PLACE:
        return x  # worked in place
    if isinstance(value, dict) and value:
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        value = _one_or_all(value, call, x, binding)
    if call.kind in names.GATHERING:
        return _gathered(value, call, x, binding)
    if isinstance(value, list):
        if call.kind in names.EXCHANGING:
            return torch.cat(value, call.dim or 0)
        raise SubjectError(f"{binding.label} returned {len(value)} tensors, where {call.kind} has"
                           f" one{_REMEDY}")
    if not isinstance(value, torch.Tensor):
        raise SubjectError(f"{binding.label} returned {_described(value, call)}, where a tensor is"
                           f" expected{_REMEDY}")
    if call.kind in names.EXCHANGING and binding.names("gather_dim") and x.dim() > 0:
        return _joined_along(value, call.group.size, gather_dim(call, x), call.dim or 0)
    if call.kind in names.EXCHANGING:
        return _exchanged(value, call, x, binding)
    if call.kind in names.CUTTING and not binding.names("dim", "chunks", "scatter_list"):
        _check_implied_dim(value, call, x, binding)
    return value


def warn_of_none(value, call, given, operand, label):
    """Warns if a function that may work in place returns None and left its operand alone. `given`
    is the operand as it was before the call."""
    is_root = call.group.rank == call.root
    receives = {"all_reduce": call.group.size > 1, "reduce": is_root, "broadcast": not is_root}
    if value is None and receives.get(call.kind) and torch.equal(given, operand):
        warnings.warn(f"{label} returned None and left its operand as it was, which is taken for"
                      " its result")


def waited(value):
    """Waits for asynchronous results: a c10d Work and torch's AsyncCollectiveTensor."""
    if isinstance(value, torch.Tensor):
        return awaited(value)
    if isinstance(value, (list, tuple)):
        return [waited(v) for v in value]
    if isinstance(value, dict):
        return {name: waited(v) for name, v in value.items()}
    if hasattr(value, "wait") and hasattr(value, "is_completed"):
        value.wait()
        return None
    return value


def _one_or_all(values, call, x, binding):
    """Returns the tensor of (tensor, handle) or of a tensor among numbers and labels, else the list
    of tensors, one per rank. Raises SubjectError if `values` are neither."""
    if call.kind in names.GATHERING and _is_one_a_rank(values, call, x):
        return list(values)
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    floating = [t for t in tensors if t.is_floating_point()]
    on_gradient = [t for t in floating if t.requires_grad]
    alone = next((of for of in (floating, on_gradient) if len(of) == 1), None)
    takes_a_list = call.kind in names.GATHERING + names.EXCHANGING
    if alone and (len(values) > 1 or not takes_a_list or call.group.size > 1):
        return alone[0]
    if len(tensors) != len(values) or not tensors:
        raise SubjectError(f"{binding.label} returned {_described(values)}, where tensors are"
                           f" expected{_REMEDY}")
    if takes_a_list and len(tensors) != call.group.size:
        raise SubjectError(f"{binding.label} returned {len(tensors)} tensors in a group of"
                           f" {call.group.size}")
    return tensors


def _is_one_a_rank(values, call, x):
    """Returns whether the values are one tensor per rank. A gather under no_grad puts the operand
    back at its own index, so only that one has a gradient although all are meant."""
    return (len(values) == call.group.size
            and all(isinstance(v, torch.Tensor) and v.is_floating_point() for v in values)
            and values[call.group.rank].shape == x.shape)


def _reshaped(value, shape):
    return rearranged(value, lambda y: y.reshape(shape), lambda y: y.reshape(value.shape))


def _joined_along(value, size, given, dim):
    """Moves the pieces of all ranks, which `value` holds along `given`, to `dim`."""
    def moved(way):
        return lambda y: torch.cat(y.tensor_split(size, way[0]), way[1])

    return rearranged(value, moved((given, dim)), moved((dim, given)))


def _exchanged(value, call, x, binding):
    """Reshapes what all ranks sent, whether flat or stacked with one piece per rank, to the step's
    shape."""
    dim = call.dim or 0
    sizes = received_sizes(call, x)
    shape = torch.Size(_resized(x, dim, sum(sizes)))
    if value.shape == shape or value.numel() != shape.numel():
        return value  # the number of elements differs: a wrong value, not another form
    pieces = (len(sizes), *_resized(x, dim, sizes[0]))
    if dim == 0 and (value.dim() == 1 or value.shape == pieces):
        return _reshaped(value, shape)
    raise NotOffered(f"{binding.label} gives the shape {list(value.shape)}, where the pieces that"
                     f" all ranks send of operands of {list(x.shape)} have {list(shape)}")


def _gathered_shape(call, x):
    if call.dim is None:
        return (call.group.size, *x.shape)
    return _resized(x, call.dim, sum(gathered_sizes(call, x, call.dim)))


def _gathered(value, call, x, binding):
    """Returns the pieces stacked or joined as the step asks, whichever of the two the function
    gave."""
    size = call.group.size
    if isinstance(value, list):
        return torch.stack(value) if call.dim is None else torch.cat(value, call.dim)
    if not isinstance(value, torch.Tensor):
        raise SubjectError(f"{binding.label} returned {_described(value, call)}, where a tensor or"
                           f" a list is expected{_REMEDY}")
    stacked = value.shape == (size, *x.shape)
    if call.dim is None:
        if stacked:
            return value
        if value.dim() == x.dim() and value.shape == (size * x.shape[0], *x.shape[1:]):
            return _reshaped(value, (size, *x.shape))
        raise AlongAnotherDim(f"{binding.label} gives the shape {list(value.shape)} for operands"
                              f" of {list(x.shape)}, which is neither the stack of them nor their"
                              " concatenation along dim 0")
    if stacked and (call.dim == 0 or not binding.names("dim")):
        return rearranged(value, lambda y: torch.cat(y.unbind(0), call.dim),
                          lambda y: torch.stack(y.tensor_split(size, call.dim)))
    if value.dim() != x.dim():
        raise NotOffered(f"{binding.label} gives the shape {list(value.shape)} for operands of"
                         f" {list(x.shape)}, which is not their concatenation along dim {call.dim}")
    if not binding.names("dim"):
        _check_implied_dim(value, call, x, binding)
    return value


def _check_implied_dim(value, call, x, binding):
    """Raises AlongAnotherDim if a function without a dim parameter works along another one than the
    step: the one in which its result's size differs from its operand's."""
    dim = (call.dim or 0) % max(x.dim(), 1)
    differing = [d for d in range(x.dim())
                 if value.dim() == x.dim() and value.shape[d] != x.shape[d]]
    if len(differing) == 1 and differing[0] != dim:
        raise AlongAnotherDim(f"{binding.label} has no parameter for the dimension and works along"
                              f" {differing[0]}, not {dim}")


def _described(value, call=None):
    """Describes a value for a message. With `call`, names the rank that returned None, as one rank
    alone may do so."""
    if value is None and call:
        return f"None on rank {call.group.ranks[call.group.rank]}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_described(v) for v in value) + ")"
    if isinstance(value, dict) and value:
        return "a dict of " + ", ".join(repr(key) for key in list(value)[:4])
    name = type(value).__name__
    return "None" if value is None else f"a{'n' if name[0] in 'AEIOUaeiou' else ''} {name}"
