"""How torch's own collectives with a gradient are called: torch.distributed.nn.functional and
torch.distributed._functional_collectives, of torch 2.11 and 2.15, and plain torch.distributed.

Each entry calls one function of torch as its documentation says, with lists of chunks, buffers for outputs, and ranks
in the numbering that it wants; nothing is done about what the function gets wrong. What a function cannot be given is
NotOffered.
"""

import functools
import sys
from dataclasses import dataclass
from typing import Any, Callable

import torch

from . import adapters
from . import adapters_results as results
from . import modes
from .call import NotOffered

NN = "torch.distributed.nn.functional"
FUNCTIONAL = "torch.distributed._functional_collectives"
PLAIN = ("torch.distributed", "torch.distributed.distributed_c10d")


@dataclass(frozen=True)
class TorchBinding:
    """One of torch's functions as an implementation of `kind`; used like adapters.Binding."""

    function: Any
    kind: str
    label: str
    run: Callable  # (function, call, x) -> result
    mode: str = ""  # one of modes.MODES

    def check(self, call, groups_from_setup=None):
        """What can be told before there is a tensor is the same on every rank, and the rest `run` refuses likewise."""
        if call.is_async and self.function.__module__ != FUNCTIONAL:
            raise NotOffered(f"{self.label} has no parameter async_op")
        if call.kind == "scatter" and adapters.is_uneven(call):
            raise NotOffered(f"{self.label} takes chunks of one size only")
        if call.kind == "send_recv" and not _is_permutation(call):
            raise NotOffered(f"{self.label} takes a permutation of the ranks only")
        if self.function.__module__ == FUNCTIONAL and call.kind == "reduce_scatter":
            if adapters.is_uneven(call):
                raise NotOffered(f"{self.label} cuts evenly only")
            if call.op == "premul_sum":
                raise NotOffered(f"{self.label} takes the op as text, which cannot hold premul_sum's factor")
        if self.function.__module__ == FUNCTIONAL and call.op == "premul_sum" and _torch_version() < (2, 15):
            raise NotOffered(f"{self.label} of torch {torch.__version__} takes the op as text, which cannot hold"
                             " premul_sum's factor")

    def __call__(self, call, x):
        try:
            return self.run(self._function(call), call, x)
        except (RuntimeError, ValueError) as error:
            adapters.raise_if_backend_lacks(error, call)
            raise

    def _function(self, call):
        return _explicitly_waited(self.function) if call.is_async else modes.function_in(self.mode, self.function)


def _explicitly_waited(function):
    """A functional collective's result is asynchronous anyway, and any use waits for it; this is the other way, wait()."""

    @functools.wraps(function)
    def call(*args):
        value = function(*args)
        return value.wait() if hasattr(value, "wait") else value

    return call


def _torch_version():
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def _group(call):
    return call.group.process_group


def _global_root(call):
    return call.group.ranks[call.root]


def _dim(call, x):
    return (call.dim or 0) % max(x.dim(), 1)


def _chunks(call, x):
    return [chunk.contiguous() for chunk in x.split(adapters.chunk_sizes(call, x), _dim(call, x))]


def _joined(tensors, call):
    return torch.stack(list(tensors)) if call.dim is None else torch.cat(list(tensors), call.dim)


def _refuse_uneven(call, x, label):
    """Gloo ends the process where ranks gather different sizes, so that this is asked first."""
    if call.dim is not None:
        sizes = results.gathered_sizes(call, x, call.dim)
        if len(set(sizes)) > 1:
            raise NotOffered(f"{label} takes operands of one shape only, and these have the sizes"
                             f" {', '.join(map(str, sizes))} along dim {call.dim}")


def _nn_all_reduce(function, call, x):
    return function(x, op=adapters.reduce_op(call), group=_group(call))


def _nn_reduce(function, call, x):
    value = function(x, _global_root(call), op=adapters.reduce_op(call), group=_group(call))
    return value if call.group.rank == call.root else results.zeros_attached(x.shape, value, x)


def _nn_broadcast(function, call, x):
    return function(x, _global_root(call), group=_group(call))


def _nn_all_gather(function, call, x):
    _refuse_uneven(call, x, "torch.distributed.nn.all_gather")
    return _joined(function(x, group=_group(call)), call)


def _nn_gather(function, call, x):
    _refuse_uneven(call, x, "torch.distributed.nn.gather")
    values = function(x, dst=_global_root(call), group=_group(call))
    joined = _joined(values, call)
    return joined if call.group.rank == call.root else results.zeros_attached(joined.shape, values, x)


def _nn_reduce_scatter(function, call, x):
    chunks = _chunks(call, x)
    output = torch.empty_like(chunks[call.group.rank])
    return function(output, chunks, op=adapters.reduce_op(call), group=_group(call))


def _nn_scatter(function, call, x):
    return function(_chunks(call, x), src=_global_root(call), group=_group(call))


def _nn_all_to_all(function, call, x):
    """The list form takes pieces of one size; others go through all_to_all_single, as they have to."""
    if adapters.is_uneven(call):
        return _nn_all_to_all_single(_sibling(function, "all_to_all_single"), call, x)
    chunks = _chunks(call, x)
    outputs = [torch.empty_like(chunk) for chunk in chunks]
    return torch.cat(function(outputs, chunks, group=_group(call)), _dim(call, x))


def _nn_all_to_all_single(function, call, x):
    dim = _dim(call, x)
    operand = x.movedim(dim, 0).contiguous()
    sent, received = adapters.chunk_sizes(call, x), adapters.received_sizes(call, x)
    output = operand.new_empty((sum(received), *operand.shape[1:]))
    return function(output, operand, received, sent, group=_group(call)).movedim(0, dim)


def _nn_all_gather_base(function, call, x):
    _refuse_uneven(call, x, "torch.distributed.nn._all_gather_base")
    operand = (x.unsqueeze(0) if call.dim is None else x.movedim(_dim(call, x), 0)).contiguous()
    output = operand.new_empty((call.group.size * operand.shape[0], *operand.shape[1:]))
    value = function(output, operand, group=_group(call))
    return value if call.dim is None else value.movedim(0, _dim(call, x))


def _sibling(function, name):
    return getattr(sys.modules[function.__module__], name)


def _fc_all_reduce(function, call, x):
    op = adapters.reduce_op(call) if call.op == "premul_sum" else call.op
    return results.waited(function(x, op, _group(call)))


def _fc_broadcast(function, call, x):
    return results.waited(function(x, _global_root(call), _group(call)))


def _fc_all_gather(function, call, x):
    _refuse_uneven(call, x, "torch's functional all_gather")
    if call.dim is None:
        return results.waited(function(x.unsqueeze(0).contiguous(), 0, _group(call)))
    return results.waited(function(x.contiguous(), _dim(call, x), _group(call)))


def _fc_reduce_scatter(function, call, x):
    return results.waited(function(x.contiguous(), call.op, _dim(call, x), _group(call)))


def _fc_all_to_all(function, call, x):
    dim = _dim(call, x)
    sent, received = adapters.chunk_sizes(call, x), adapters.received_sizes(call, x)
    operand = x.movedim(dim, 0).contiguous()
    return results.waited(function(operand, received, sent, _group(call))).movedim(0, dim)


def _fc_permute_tensor(function, call, x):
    """It cuts by numbers of elements, and so takes what has one dimension."""
    destination = dict(call.pairs)
    value = function(x.reshape(-1), [destination[r] for r in range(call.group.size)], _group(call))
    return results.waited(value).reshape(x.shape)


def _is_permutation(call):
    everyone = list(range(call.group.size))
    return sorted(s for s, _ in call.pairs) == sorted(d for _, d in call.pairs) == everyone


def _halves(x, dim):
    """Two tensors of different sizes, so that a coalesced collective has several to keep apart; one where there is little."""
    if x.dim() <= dim or x.shape[dim] < 2:
        return [x.contiguous()]
    return [half.contiguous() for half in x.split([1, x.shape[dim] - 1], dim)]


def _fc_all_reduce_coalesced(function, call, x):
    op = adapters.reduce_op(call) if call.op == "premul_sum" else call.op
    values = results.waited(function(_halves(x, 0), op, _group(call)))
    return torch.cat(values) if len(values) > 1 else values[0]


def _fc_all_gather_coalesced(function, call, x):
    """It gathers along dim 0: each half's pieces, of which the ranks' halves are then joined."""
    _refuse_uneven(call, x, "torch's functional all_gather")
    operand = x.unsqueeze(0) if call.dim is None else x.movedim(_dim(call, x), 0)
    values = results.waited(function(_halves(operand, 0), _group(call)))
    by_rank = torch.cat([value.unflatten(0, (call.group.size, -1)) for value in values], 1)
    return by_rank.squeeze(1) if call.dim is None else by_rank.flatten(0, 1).movedim(0, _dim(call, x))


def _fc_reduce_scatter_coalesced(function, call, x):
    dim = _dim(call, x)
    other = 1 if dim == 0 else 0
    halves = _halves(x, other)
    values = results.waited(function(halves, call.op, [dim] * len(halves), _group(call)))
    return torch.cat(values, other) if len(values) > 1 else values[0]


_ENTRIES = {
    NN: {
        "all_reduce": ("all_reduce", _nn_all_reduce),
        "reduce": ("reduce", _nn_reduce),
        "broadcast": ("broadcast", _nn_broadcast),
        "all_gather": ("all_gather", _nn_all_gather),
        "_all_gather_base": ("all_gather", _nn_all_gather_base),
        "gather": ("gather", _nn_gather),
        "reduce_scatter": ("reduce_scatter", _nn_reduce_scatter),
        "scatter": ("scatter", _nn_scatter),
        "all_to_all": ("all_to_all", _nn_all_to_all),
        "all_to_all_single": ("all_to_all", _nn_all_to_all_single),
    },
    FUNCTIONAL: {
        "all_reduce": ("all_reduce", _fc_all_reduce),
        "broadcast": ("broadcast", _fc_broadcast),
        "all_gather_single": ("all_gather", _fc_all_gather),  # 2.13 and later; the names on _tensor are then deprecated
        "all_gather_tensor": ("all_gather", _fc_all_gather),
        "all_gather_single_autograd": ("all_gather", _fc_all_gather),
        "all_gather_tensor_autograd": ("all_gather", _fc_all_gather),
        "reduce_scatter_single": ("reduce_scatter", _fc_reduce_scatter),
        "reduce_scatter_tensor": ("reduce_scatter", _fc_reduce_scatter),
        "reduce_scatter_single_autograd": ("reduce_scatter", _fc_reduce_scatter),
        "reduce_scatter_tensor_autograd": ("reduce_scatter", _fc_reduce_scatter),
        "all_to_all_single": ("all_to_all", _fc_all_to_all),
        "all_to_all_single_autograd": ("all_to_all", _fc_all_to_all),
        "permute_tensor": ("send_recv", _fc_permute_tensor),
        "all_reduce_coalesced": ("all_reduce", _fc_all_reduce_coalesced),
        "all_gather_single_coalesced": ("all_gather", _fc_all_gather_coalesced),
        "all_gather_into_tensor_coalesced": ("all_gather", _fc_all_gather_coalesced),
        "reduce_scatter_single_coalesced": ("reduce_scatter", _fc_reduce_scatter_coalesced),
        "reduce_scatter_tensor_coalesced": ("reduce_scatter", _fc_reduce_scatter_coalesced),
    },
}


def torch_binding(target, kind, label):
    """The binding of one of torch's functions as `kind`; None for what is not among them."""
    name = getattr(target, "__name__", "")
    entry = _ENTRIES.get(getattr(target, "__module__", ""), {}).get(name)
    return TorchBinding(target, kind, label, entry[1]) if entry and entry[0] == kind else None


def torch_functions(module, kind):
    """The names of all that one of torch's two modules has for `kind`, the newest first."""
    return [name for name, (entry_kind, _) in _ENTRIES[_home(module)].items() if entry_kind == kind and hasattr(module, name)]


def torch_module_binding(module, kind):
    """What one of torch's two modules offers as `kind`: the first of its names; None where it has nothing."""
    for name in torch_functions(module, kind):
        return TorchBinding(getattr(module, name), kind, f"{module.__name__}.{name}", _ENTRIES[_home(module)][name][1])
    return None


def _home(module):
    return NN if module.__name__ == "torch.distributed.nn" else module.__name__


def is_torch_module(module):
    return module.__name__ in (NN, FUNCTIONAL, "torch.distributed.nn")


def is_plain_function(target):
    """A collective of torch.distributed itself, which works in place."""
    return getattr(target, "__module__", "") in PLAIN and callable(target)
