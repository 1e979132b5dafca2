"""Finds what the user's code takes out of autograd on purpose while a program's forward runs on
this rank.

Cuts are detach(), .data, .item(), everything computed under no_grad, and an autograd.Function that
does not communicate, as its backward is the user's word for its derivative. `recording()` notes the
values of cuts. `holding()` gives the same values again while the inputs move, so finite differences
of such a run are the derivative that the user means. A cut whose value does not depend on the
inputs is not reported.

A Function whose forward or backward makes a collective is no cut: it must have the right adjoint.
"""

import contextlib

import torch
from torch.nn.modules._functions import BackwardHookFunction
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from . import evaluating
from .hooks import leaving_out
from .places import place
from .rounding import without_dynamo

_MOST_JACOBIAN = 1 << 18  # elements; a larger Function is not linearised
_TOO_LARGE = object()
_DIFFERS = 1e-3  # relative to the change; less is curvature

_TENSOR = torch.Tensor
_DETACHES = {_TENSOR.detach: "detach()", _TENSOR.data.__get__: ".data"}
_NUMBERS = {_TENSOR.item: ".item()", _TENSOR.__float__: "float()", _TENSOR.tolist: ".tolist()"}
_IN_EXPRESSIONS = {torch.ops.aten.detach.default: "detach()",
                   torch.ops.aten._local_scalar_dense.default: ".item()"}
# Maps collectives whose operands are not their results to the operands' argument.
_OPERANDS = {"allgather_": 1, "_allgather_base_": 1, "allgather_into_tensor_coalesced_": 1,
             "allgather_coalesced_": 1, "reduce_scatter_": 1, "_reduce_scatter_base_": 1,
             "alltoall_": 1, "alltoall_base_": 1, "gather_": 1, "scatter_": 1}

_active = None  # the Cuts that this rank's one thread runs under
_original_apply = vars(torch.autograd.Function)["apply"]  # a classmethod, in Python or in C


def _apply(cls, *args, **kwargs):
    return _original_apply.__get__(None, cls)(*args, **kwargs)


def _watched_apply(cls, *args, **kwargs):
    if _active is None:
        return _apply(cls, *args, **kwargs)
    return _active.function(cls, args, kwargs)


# adapters.py and other code recognize it by its name.
for _name in ("__name__", "__qualname__", "__doc__"):
    setattr(_watched_apply, _name, getattr(torch.autograd.Function.apply, _name))
# Set before any of the user's modules binds it to a name of its own.
torch.autograd.Function.apply = classmethod(_watched_apply)


class _Event:
    def __init__(self, what, place, value):
        self.what = what
        self.place = place
        self.value = value  # a tensor, a number, or the linearised Function
        self.alias = None  # the result of a detach, which shares its memory
        self.counts = False  # whether holding it made a difference


class Cuts:
    def __init__(self):
        self._events = []
        self._at = 0
        self._holds = False
        self._inside = 0  # how many Functions are nested now
        self.exchanges = 0
        # Functions whose backward may not be their forward's derivative: too large to tell.
        self.unknown = []
        self.parted = False  # the program took another path, so the held values do not fit

    @contextlib.contextmanager
    def recording(self):
        self._events = []
        with self._active():
            yield
        for event in self._events:
            if event.alias is not None and not _same(event.alias, event.value):
                # Writing through the alias changes the tensor itself, so this is no cut.
                event.value = None
            event.alias = None

    @contextlib.contextmanager
    def holding(self):
        self._at, self._holds = 0, True
        try:
            with self._active():
                yield
        finally:
            self._holds = False
        self.parted = self.parted or self._at != len(self._events)

    @contextlib.contextmanager
    def _active(self):
        global _active
        _active = self
        try:
            with _Exchanges(self), _Functions(self):
                yield
        finally:
            _active = None

    def any(self):
        return any(event.value is not None for event in self._events)

    def texts(self):
        """Returns a text for each cut that depends on the inputs: holding it changed a value."""
        return list(dict.fromkeys(f"{e.what} in {e.place}" for e in self._events if e.counts))

    # -- what is seen

    def torch_function(self, func, args, kwargs, result):
        if self._inside:
            return result
        if func in _DETACHES and isinstance(args[0], _TENSOR) and args[0].requires_grad:
            return self._tensor(_DETACHES[func], result, alias=True)
        if func in _NUMBERS and args[0].requires_grad:
            return self._number(_NUMBERS[func], result)
        if torch.is_grad_enabled():
            return result
        if _writes(func, kwargs):
            for x in tree_flatten(kwargs.get("out", args[0]))[0]:
                if isinstance(x, _TENSOR) and x.is_floating_point():
                    self._written(x)
            return result
        flat, spec = tree_flatten(result)
        for i, x in enumerate(flat):
            # contiguous() may return its argument.
            if type(x) is _TENSOR and x.is_floating_point() and not any(x is y for y in args):
                flat[i] = self._tensor("no_grad", x)
        return tree_unflatten(flat, spec)

    def in_expression(self, what, result):
        if isinstance(result, _TENSOR):
            return self._tensor(what, result, alias=True)
        return self._number(what, result)

    def exchange(self, name, args):
        """Counts a collective and returns its arguments. Under no_grad, holds their values."""
        self.exchanges += 1
        if self._inside or torch.is_grad_enabled():
            return args
        at = _OPERANDS.get(name)
        flat, spec = tree_flatten(args if at is None else args[at])
        for i, x in enumerate(flat):
            if not isinstance(x, _TENSOR) or not x.is_floating_point():
                continue
            if at is None:
                self._written(x, "a collective under no_grad")
            else:
                flat[i] = self._tensor("a collective under no_grad", x.detach())
        return args if at is None else (*args[:at], tree_unflatten(flat, spec), *args[at + 1 :])

    def function(self, cls, args, kwargs):
        name = cls.__module__, cls.__name__
        if name == ("torch.utils.checkpoint", "CheckpointFunction") and torch.is_grad_enabled():
            return args[0](*args[2:])  # runs its function without no_grad
        before, self._inside = self.exchanges, self._inside + 1
        try:
            result = _apply(cls, *args, **kwargs)
            if (self._inside > 1 or self.exchanges != before
                    or cls.__module__.startswith(__package__)):
                return result
            if cls is BackwardHookFunction:  # the identity; torch needs its node
                return result
            return self._function_result(cls, args, result)
        finally:
            self._inside -= 1

    def _function_result(self, cls, args, result):
        single = isinstance(result, _TENSOR)
        outs = [result] if single else list(result) if isinstance(result, (tuple, list)) else []
        if any(type(x) not in (_TENSOR, torch.nn.Parameter) for x in outs) or not outs:
            return result
        inputs = [x for x in args
                  if isinstance(x, _TENSOR) and x.requires_grad and x.is_floating_point()]
        if any(type(x) not in (_TENSOR, torch.nn.Parameter) for x in inputs):  # DTensor's own
            return result
        if not self._holds:
            linear = _Linear.of(outs, inputs,
                                self) if torch.is_grad_enabled() else _Linear.constant(outs)
            if linear is _TOO_LARGE:
                self.unknown.append(f"{cls.__name__} in {place()}")
                linear = None
            self._note(f"{cls.__name__}, a Function whose backward is not its forward's"
                       " derivative,", linear)
            return result
        event = self._next(_Linear)
        if event is None:
            return result
        held = event.value.at(inputs)
        if held is None or any(x.shape != y.shape for x, y in zip(held, outs)):
            self.parted = True
            return result
        event.counts = event.counts or event.value.differs(outs, held)
        given = [y.requires_grad_().clone() if x.requires_grad else y for x, y in zip(outs, held)]
        return given[0] if single else tuple(given)

    # -- one cut

    def _note(self, what, value):
        event = _Event(what, place(), value)
        self._events.append(event)
        return event

    def _next(self, kind):
        event = self._events[self._at] if self._at < len(self._events) else None
        self._at += 1
        if event is None or event.value is None:
            self.parted = self.parted or event is None
            return None
        if not isinstance(event.value, kind):
            self.parted = True
            return None
        return event

    def _tensor(self, what, x, alias=False):
        if not self._holds:
            event = self._note(what, x.detach().clone())
            event.alias = x if alias else None
            return x
        event = self._next(_TENSOR)
        if event is None or event.value.shape != x.shape:
            self.parted = self.parted or event is not None
            return x
        event.counts = event.counts or not _same(event.value, x)
        return event.value.clone()

    def _number(self, what, value):
        if not self._holds:
            self._note(what, (value,))
            return value
        event = self._next(tuple)
        if event is None:
            return value
        event.counts = event.counts or event.value[0] != value
        return event.value[0]

    def _written(self, x, what="no_grad"):
        """Holds a tensor that was, or is about to be, changed in place."""
        held = self._tensor(what, x)
        if held is not x:
            with torch.no_grad():
                x.detach().copy_(held)


def _writes(func, kwargs):
    """Returns whether a function works in place: add_, copy_, +=, x[0] = y, out=."""
    name = getattr(func, "__name__", "")
    plain = name.endswith("_") and not name.endswith("__")
    augmented = name.startswith("__i") and name not in ("__invert__", "__index__", "__int__")
    return plain or augmented or name == "__setitem__" or kwargs.get("out") is not None


class _Functions(TorchFunctionMode):
    def __init__(self, cuts):
        super().__init__()
        self._cuts = cuts

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        return self._cuts.torch_function(func, args, kwargs, func(*args, **kwargs))


class _Exchanges(TorchDispatchMode):
    def __init__(self, cuts):
        super().__init__()
        self._cuts = cuts

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace == "c10d":
            args = self._cuts.exchange(func._schema.name.partition("::")[2], args)
        elif func.namespace == "_c10d_functional":
            self._cuts.exchanges += 1
        result = func(*args, **kwargs)
        # An expression runs below torch's functions, which _Functions watches.
        if evaluating.is_on and func in _IN_EXPRESSIONS and args[0].requires_grad:
            return self._cuts.in_expression(_IN_EXPRESSIONS[func], result)
        return result

    without_dynamo(__torch_dispatch__)


class _Linear:
    """Holds a Function as its own backward describes it: linear around the point of recording."""

    def __init__(self, outs, inputs, jacobians):
        self._outs = [x.detach().clone() for x in outs]
        self._inputs = [x.detach().clone() for x in inputs]
        self._jacobians = jacobians  # by output, by input: matrices

    @classmethod
    def constant(cls, outs):
        return cls(outs, [], [[] for _ in outs])

    @classmethod
    def of(cls, outs, inputs, cuts):
        """Returns None if the backward communicates, _TOO_LARGE if the Jacobian has too many
        elements."""
        attached = [x for x in outs if x.requires_grad]
        if not attached:
            return cls.constant(outs)
        # Every rank runs it once, whatever the sizes, since it may communicate.
        before = cuts.exchanges
        _backward(attached, inputs, [torch.ones_like(x) for x in attached])
        size = sum(x.numel() for x in attached) * sum(x.numel() for x in inputs)
        if cuts.exchanges != before:
            return None
        if size > _MOST_JACOBIAN:
            return _TOO_LARGE
        return cls(outs, inputs, [_jacobian(x, inputs) if x.requires_grad else [] for x in outs])

    def at(self, inputs):
        """Returns the outputs at other inputs, or None if the shapes differ."""
        inputs = inputs if self._inputs else []
        if [x.shape for x in inputs] != [x.shape for x in self._inputs]:
            return None
        moves = [(x.detach() - y).reshape(-1) for x, y in zip(inputs, self._inputs)]
        results = []
        for out, jacobian in zip(self._outs, self._jacobians):
            change = sum((j @ move for j, move in zip(jacobian, moves)),
                         torch.zeros(out.numel(), dtype=out.dtype))
            results.append(out + change.reshape(out.shape))
        return results

    def differs(self, outs, held):
        """Returns whether the outputs differ from the linear form by more than curvature
        explains."""
        for out, then, new in zip(self._outs, held, outs):
            change = max(float((new - out).detach().abs().amax()),
                         float((then - out).abs().amax())) if out.numel() else 0
            if change and float((new - then).detach().abs().amax()) > _DIFFERS * change:
                return True
        return False


def _backward(outs, inputs, cotangents):
    total = sum((out * cotangent).sum() for out, cotangent in zip(outs, cotangents))
    with leaving_out():  # the inputs may have hooks, which are not the Function's
        return torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)


def _jacobian(out, inputs):
    rows = [[] for _ in inputs]
    for element in range(out.numel()):
        basis = torch.zeros(out.numel(), dtype=out.dtype)
        basis[element] = 1
        for row, x, g in zip(rows, inputs, _backward([out], inputs, [basis.reshape(out.shape)])):
            row.append(torch.zeros(x.numel(), dtype=out.dtype) if g is None
                       else g.detach().reshape(-1).to(out.dtype))
    return [torch.stack(row) if row else torch.zeros(0, x.numel(), dtype=out.dtype)
            for row, x in zip(rows, inputs)]


def _same(x, y):
    x, y = x.detach(), y.detach()
    return x.shape == y.shape and bool(((x == y) | (x.isnan() & y.isnan())).all())
