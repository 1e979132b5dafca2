"""Turns a collective call into a call of the user's function: picks each parameter's argument by
the parameter's name.

`bind` looks at the signature once and raises SubjectError for what cannot be mapped. The Binding
raises NotOffered for calls that it cannot express, and makes the others. adapters_results takes
what comes back.
"""

import inspect
import re
from dataclasses import dataclass, replace
from typing import Any, Callable, Tuple

import torch
import torch.distributed as dist

from . import adapters_forms as forms
from . import adapters_hint as hint
from . import adapters_names as names
from . import adapters_results as results
from . import modes, noting
from .adapters_sizes import chunk_sizes, is_uneven, received_sizes
from .call import NotOffered, SubjectError
from .places import begin_and_end_of

_EMPTY = inspect.Parameter.empty
_OPS = {"sum": "SUM", "avg": "AVG", "product": "PRODUCT", "min": "MIN", "max": "MAX"}

# Match how torch's backends refuse what they do not have.
_LACKS_OP = re.compile(r"Cannot use ReduceOp|Unhandled ReduceOp|PREMUL_SUM|"
                       r"ReduceOp\S* (is )?(not supported|not implemented|unsupported)")
_LACKS_COLLECTIVE = re.compile(r"Backend \w+ does not support")


@dataclass(frozen=True)
class Slot:
    """Holds one parameter and what fills it. If `source` is None, the parameter keeps its
    default."""

    name: str
    kind: Any  # inspect's kind of parameter
    source: Any
    default: Any
    annotation: Any = _EMPTY


@dataclass(frozen=True)
class Binding:
    """Holds the user's `function` as an implementation of `kind`. Messages name it by `label`."""

    function: Callable
    kind: str
    label: str
    slots: Tuple[Slot, ...]
    constructor: Tuple[Slot, ...]  # the constructor's, if `function` is a Module class; else empty
    makes_instance: bool
    by_position: bool
    mode: str = ""  # one of modes.MODES

    def names(self, *sources):
        return any(slot.source in sources for slot in self.slots + self.constructor)

    def check(self, call, groups_from_setup=None):
        """Raises NotOffered if the signature cannot express the call. `groups_from_setup` is the
        set of names of the groups that the user's `setup` provides for, or None if there is no
        setup."""
        if call.is_async and not self.names("async"):
            raise NotOffered(f"{self.label} has no parameter async_op")
        if call.kind in names.REDUCING:
            self._check_op(call)
        if not self.names("group", "group_name", "ranks"):
            _check_group(self.label, call, groups_from_setup)
        if call.kind in names.ROOTED:
            self._check_root(call)
        takes_splits = (self.names("splits", "input_splits", "output_splits", "scatter_list")
                        or any(s.source == "chunks" for s in self.slots))
        if is_uneven(call) and not takes_splits:
            raise NotOffered(f"{self.label} has no parameter for splits and cuts evenly only")
        along_first = call.dim in (None, 0)
        if call.kind in names.EXCHANGING and not along_first and not self.names("dim", "chunks"):
            raise NotOffered(f"{self.label} has no parameter for the dimension")

    def op_is_untold(self, call):
        """Returns whether only the result tells that the function computes the call's op."""
        return (call.kind in names.REDUCING and call.op != "sum"
                and not self.names("op", "average"))

    def _check_op(self, call):
        if not self.names("op", "average") and call.op == "premul_sum":
            raise NotOffered(f"{self.label} has no parameter for the op")
        if self.names("op"):
            slot = next(s for s in self.slots + self.constructor if s.source == "op")
            if isinstance(_op_style(slot),
                          str) and call.op == "premul_sum" and not self.names("factor"):
                raise NotOffered(
                    f"{self.label} takes the op as text, which cannot hold premul_sum's factor")
        elif self.names("average") and call.op not in ("sum", "avg"):
            raise NotOffered(f"{self.label} knows sum and avg only")

    def _check_root(self, call):
        if call.root != 0 and not self.names("root", "global_root", "world_root"):
            raise NotOffered(
                f"{self.label} has no parameter for the root, which is taken to be rank 0")
        if self.names("world_root") and not _is_world(call.group):
            slot = next(s for s in self.slots + self.constructor if s.source == "world_root")
            raise NotOffered(f"{self.label}: the name of `{slot.name}` does not say whether it"
                             " counts in the group (as `root`, `group_src`) or in the world (as"
                             " `src`, `dst`)")

    def __call__(self, call, x):
        """Returns the call's result on this rank, as the contract of the kind says."""
        if self.names("gather_dim") and x.dim() < 2:
            raise NotOffered(f"{self.label} takes a dimension to cut and another one to join, and"
                             f" the operand has {x.dim()}")
        return forms.call_in_some_form(self, call, x, self._call)

    def _call(self, call, operand):
        x = operand if self.mode == "shared" else results.private_copy(operand)
        arguments = Arguments(call, x)
        function = self.function
        # A step runs once in a case, so each call site gets its own instance and no case sees
        # another's.
        if self.makes_instance:
            function = invoke(self.function, self.constructor, arguments, False)
        try:
            value = self._invoke(modes.function_in(self.mode, function), arguments)
        except (RuntimeError, ValueError, IndexError) as error:
            raise_if_backend_lacks(error, call)
            _raise_if_scalar(error, call, x, self.label)
            if "_PrivateCopy" in str(error):
                raise RuntimeError(f"{self.label} works in place on its operand, which is expanded"
                                   " here: several of its elements are one in memory") from error
            raise
        if self.mode == "shared":
            _check_keeps_operand(value, x, self.label, arguments)
        if arguments.outputs is None:
            results.warn_of_none(value, call, operand, x, self.label)
        return results.take(value, call, x, self, arguments)

    def _invoke(self, function, arguments):
        """Calls `function`. A group whose default is None stays None in the world; if the function
        complains of a missing group, calls it again with the world's."""
        before = noting.entered()
        try:
            return invoke(function, self.slots, arguments, self.by_position)
        except Exception as error:
            kept = [s for s in self.slots
                    if s.source == "group" and _keeps_default(s, arguments.call)]
            if not kept or not forms.lacks_group(error, before):
                raise
        passed = tuple(replace(s, default=_EMPTY) if s in kept else s for s in self.slots)
        return invoke(function, passed, arguments, self.by_position)


def _check_keeps_operand(value, x, label, arguments):
    """Raises NotOffered if the function returns its operand or None: it then works in place by
    contract, and the program cannot use its operand afterwards."""
    if value is x:
        raise NotOffered(f"{label} works in place: it returns its operand")
    if value is None and arguments.outputs is None:
        raise NotOffered(f"{label} returned None, so that its operand is taken for its result")


def _check_group(label, call, groups_from_setup):
    """Raises NotOffered if a function without a group parameter would run in another group: it
    knows only the world, or what the user's `setup` gave it."""
    if groups_from_setup is None and not _is_world(call.group):
        raise NotOffered(f"{label} has no parameter for the group and runs in the whole world only")
    if groups_from_setup is not None and call.group.name not in groups_from_setup:
        asked = f"the group {call.group.name}" if call.group.name else "the whole world"
        raise NotOffered(f"{label} has no parameter for the group, and setup(groups) does not"
                         f" provide for {asked}")


class Arguments:
    """Makes the values that a call's parameters ask for. Keeps the output buffers, so that what the
    function filled can be read."""

    def __init__(self, call, x):
        self.call = call
        self.x = x
        self.outputs = None

    def value(self, slot):
        return getattr(self, "_" + slot.source)(slot)

    def _tensor(self, _):
        return self.x

    def _chunks(self, _):
        if self.call.kind in names.CUTTING + names.EXCHANGING:
            return list(self.x.split(chunk_sizes(self.call, self.x), self.call.dim or 0))
        return [self.x]

    def _scatter_list(self, slot):
        return self._chunks(slot) if self.call.group.rank == self.call.root else None

    def _outputs(self, slot):
        if self.call.kind == "gather" and self.call.group.rank != self.call.root:
            return None
        self.outputs = results.empty_outputs(self.call, self.x,
                                             "list" in slot.name or slot.name.endswith("s"))
        if self.call.kind == "scatter" and self.call.group.rank != self.call.root:
            # Nothing else that such a rank passes requires a gradient, but its backward has to run
            # for the root's sake.
            self.outputs = results.zeros_attached(self.outputs.shape, self.x, self.x)
        return self.outputs

    def _op(self, slot):
        style = _op_style(slot)
        if not isinstance(style, str):
            return reduce_op(self.call)
        text = {"avg": "mean", "product": "prod"}.get(self.call.op, self.call.op) \
            if style.lower() in ("mean", "prod") else self.call.op
        return text.upper() if style.isupper() else text

    def _average(self, _):
        return self.call.op == "avg"

    def _factor(self, _):
        return self.call.factor

    def _group(self, _):
        return self.call.group.process_group

    def _group_name(self, _):
        return self.call.group.process_group.group_name

    def _ranks(self, _):
        return list(self.call.group.ranks)

    def _size(self, _):
        return self.call.group.size

    def _rank(self, _):
        return self.call.group.rank

    def _global_rank(self, _):
        return self.call.group.ranks[self.call.group.rank]

    def _async(self, _):
        return self.call.is_async

    def _root(self, _):
        return self.call.root

    def _global_root(self, _):
        return self.call.group.ranks[self.call.root]

    _world_root = _global_root  # `check` allows it in the world only, where both are the same

    def _dim(self, _):
        return self.call.dim or 0

    def _gather_dim(self, slot):
        return results.gather_dim(self.call, self.x)

    def _splits(self, slot):
        if self.call.splits is None and slot.default is None:
            return None
        if self.call.kind in names.EXCHANGING:
            return [list(row) for row in self.call.splits or (chunk_sizes(self.call, self.x),)
                    * self.call.group.size]
        return chunk_sizes(self.call, self.x)

    def _input_splits(self, slot):
        return (None if self.call.splits is None and slot.default is None
                else chunk_sizes(self.call, self.x))

    def _output_splits(self, slot):
        return (None if self.call.splits is None and slot.default is None
                else received_sizes(self.call, self.x))

    def _labels(self, _):
        rows = self.x.shape[0] if self.x.dim() > 0 else 1
        return rows * self.call.group.rank + torch.arange(rows)

    def _pairs(self, _):
        return [tuple(pair) for pair in self.call.pairs]


def reduce_op(call):
    """Returns the call's op as torch.distributed spells it."""
    if call.op != "premul_sum":
        return getattr(dist.ReduceOp, _OPS[call.op])
    make = getattr(dist, "_make_nccl_premul_sum", None)
    return make(call.factor) if make else dist.ReduceOp.PREMUL_SUM(call.factor)


def raise_if_backend_lacks(error, call):
    """Raises NotOffered if the backend lacks the collective or reduction: that says nothing about
    the subject, so the case is skipped. All ranks get here alike, since torch refuses before
    anything is sent."""
    words = begin_and_end_of(error)
    lacks_op = call.kind in names.REDUCING and _LACKS_OP.search(words)
    if lacks_op or _LACKS_COLLECTIVE.search(words):
        backend = dist.get_backend(call.group.process_group)
        what = f"no {call.op}" if lacks_op else f"not what {call.kind} needs"
        raise NotOffered(f"{backend} of torch {torch.__version__} has {what}: {error}") from error


def _raise_if_scalar(error, call, x, label):
    """Raises NotOffered if the function cannot join operands without a dimension: it need not
    support them."""
    no_dimension = r"zero-dimensional tensor.*cannot be concatenated|tensor has no dimensions"
    if (x.dim() == 0 and call.kind in names.GATHERING
            and re.search(no_dimension, begin_and_end_of(error))):
        raise NotOffered(
            f"{label} joins its operands, and these have no dimension: {error}") from error


def bind(target, kind, label, place):
    """Binds `target`, which the user named, as an implementation of `kind`. `place` is the
    subject's text up to the name, for the adapter that a SubjectError shows. Raises SubjectError
    where it cannot be called or mapped."""
    function, constructed, parameters, by_position = _callable_and_parameters(
        target, kind, label, place)
    slots = _slots(parameters, kind, with_tensor=True)
    if _has_a_group_of_its_own(function):
        slots = tuple(replace(s, default=_EMPTY) if s.source == "group" else s for s in slots)
    constructor = _slots(constructed, kind, with_tensor=False) if constructed is not None else ()
    binding = Binding(function, kind, label, slots, constructor, constructed is not None,
                      by_position)
    unmapped = [s.name for s in constructor + slots if s.source is None and hint.is_required(s)]
    if kind == "send_recv" and not binding.names("pairs"):
        unmapped.append("pairs")
    if not any(s.source in ("tensor", "chunks", "scatter_list") for s in slots):
        raise SubjectError(f"{label}: takes no tensor{hint.adapter_text(binding, place)}")
    if unmapped:
        what = ("no parameter for the `pairs` to send between" if unmapped == ["pairs"] else
                "what to pass for " + ", ".join(f"`{name}`" for name in unmapped) + " is not known")
        raise SubjectError(f"{label}, as {kind}: {what}{hint.adapter_text(binding, place)}")
    return binding


def _callable_and_parameters(target, kind, label, place):
    """Returns (what to call, parameters of the constructor of a Module class or None, parameters,
    whether all go by position)."""
    if inspect.isclass(target) and issubclass(target, torch.autograd.Function):
        target = target.apply
    owner = getattr(target, "__self__", None)
    if (inspect.isclass(owner) and issubclass(owner, torch.autograd.Function)
            and target.__name__ == "apply"):
        return target, None, _forward_parameters(owner), True
    if inspect.isclass(target) and issubclass(target, torch.nn.Module):
        return target, _parameters(target, label, kind, place), _without_self(target.forward), False
    if inspect.isclass(target):
        raise SubjectError(f"{label} is a class, but neither an autograd.Function nor a"
                           " torch.nn.Module; name a function")
    if isinstance(target, torch.nn.Module):
        return target, None, _parameters(target.forward, label, kind, place), False
    if not callable(target):
        raise SubjectError(f"{label} is not callable: it is of type {type(target).__name__}")
    parameters = _parameters(target, label, kind, place)
    owner = getattr(target, "__qualname__", "").rpartition(".")[0].rpartition(".")[2]
    if (inspect.isfunction(target) and owner.isidentifier() and parameters[:1]
            and parameters[0].name == "self"):
        method = Binding(target, kind, label, _slots(parameters[1:], kind, with_tensor=True), (),
                         False, False)
        raise SubjectError(f"{label} is a method, and which {owner} it is called on is not"
                           f" known{hint.adapter_text(method, place, owner)}")
    return target, None, parameters, False


def _forward_parameters(owner):
    """Returns the parameters of an autograd.Function's forward, without ctx. A Function that
    defines setup_context takes no ctx there."""
    parameters = list(inspect.signature(owner.forward).parameters.values())
    own_context = getattr(owner, "setup_context", None) is not torch.autograd.Function.setup_context
    return parameters if own_context else parameters[1:]


def _has_a_group_of_its_own(function):
    """Returns whether the function calls a getter for its project's own group. None for a group
    then means that group and not the world."""
    called = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_names", ())
    return any(re.match(r"_?get_\w*(group|pg)(_|$)", name)
               and not re.search("default|world|rank|size", name) for name in called)


def _without_self(method):
    return list(inspect.signature(method).parameters.values())[1:]


def _parameters(function, label, kind, place):
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        empty = Binding(function, kind, label, (), (), False, False)
        raise SubjectError(
            f"{label} has no signature to read{hint.adapter_text(empty, place)}") from None


def _slots(parameters, kind, with_tensor):
    tensor = _tensor_parameter(parameters, kind) if with_tensor else None
    slots = []
    for position, parameter in enumerate(parameters):
        default = parameter.default
        if parameter is tensor:
            takes_chunks = (names.is_list(parameter.name)
                            and kind in names.CUTTING + names.EXCHANGING)
            source = "chunks" if takes_chunks else "tensor"
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            source = None
        else:
            source = _source(parameter, kind)
            before = (tensor is not None and position < parameters.index(tensor)
                      and tensor.kind != tensor.KEYWORD_ONLY)
            if source is None and before:
                # No other unknown parameter stands before the tensor in c10d.
                source = "outputs"
        slots.append(Slot(parameter.name, parameter.kind, source, default, parameter.annotation))
    # The tensor is then the buffer to fill, as it is in c10d.
    if any(s.source == "scatter_list" for s in slots):
        slots = [replace(s, source="outputs") if s.source == "tensor" else s for s in slots]
    if kind in names.EXCHANGING and any(s.source == "dim" and not names.is_gather_dim(s.name)
                                    for s in slots):
        slots = [replace(s, source="gather_dim") if s.source == "dim"
                 and names.is_gather_dim(s.name) else s for s in slots]
    return tuple(slots)


def _tensor_parameter(parameters, kind):
    """Returns the first parameter that asks for nothing else and is not an output. If all are
    keyword-only, returns the one with an operand's name."""
    candidates = [p for p in parameters if p.kind != p.KEYWORD_ONLY and p.kind != p.VAR_KEYWORD]
    for position, parameter in enumerate(candidates):
        later = [p.name for p in parameters[parameters.index(parameter) + 1:]]
        if _source(parameter, kind) is None and not names.is_output(parameter.name, later):
            return parameter
    if candidates:
        return candidates[0]
    return next((p for p in parameters if p.kind == p.KEYWORD_ONLY and names.is_input(p.name)),
                None)


def _source(parameter, kind):
    """Returns what the parameter asks for by its name, or None if its default shows that it means
    something else (`same_group=True`, `op=my.Op.ADD`)."""
    source = names.source_of(parameter.name, kind)
    default = parameter.default
    if source == "dim" and not _may_be_a_number(parameter.annotation):
        return "group" if "Group" in str(parameter.annotation) else None
    if source is None or default is _EMPTY or (default is None and source != "labels"):
        return source
    fits = {"group": not isinstance(default, (bool, int, float, str)),
            "op": isinstance(default, (str, dist.ReduceOp, dist.ReduceOp.RedOpType)),
            "average": isinstance(default, bool),
            "dim": isinstance(default, int) and not isinstance(default, bool),
            "labels": False,
            "async": True}
    return source if fits.get(source, True) else None


def _may_be_a_number(annotation):
    return annotation is _EMPTY or "int" in getattr(annotation, "__name__", "") + str(annotation)


def _op_style(slot):
    """Returns a text in the style that the function spells ops in, or None if it takes torch's."""
    if isinstance(slot.default, str):
        return slot.default
    return "sum" if slot.default is _EMPTY and slot.annotation in (str, "str") else None


def invoke(function, slots, arguments, by_position):
    positional, keywords = [], {}
    for slot in slots:
        if slot.kind == inspect.Parameter.VAR_KEYWORD:
            continue
        if slot.kind == inspect.Parameter.VAR_POSITIONAL:
            if slot.source is not None:
                value = arguments.value(slot)
                positional.extend(value if isinstance(value, list) else [value])
            continue
        keyword_only = slot.kind == inspect.Parameter.KEYWORD_ONLY
        if _keeps_default(slot, arguments.call):
            if keyword_only:
                continue
            value = slot.default
        else:
            value = arguments.value(slot)
        if keyword_only:
            keywords[slot.name] = value
        else:
            positional.append(value)
    return function(*positional, **keywords)


def _keeps_default(slot, call):
    """Returns whether the parameter's default already is what the call asks for."""
    if slot.default is _EMPTY:
        return False
    if slot.source is None:
        return True
    if slot.source == "group":
        return slot.default is None and _is_world(call.group)
    if slot.source == "dim":
        return call.dim is None and slot.default is None
    return False


def _is_world(group):
    if group.name == "":
        return True
    return dist.is_initialized() and group.ranks == tuple(range(dist.get_world_size()))
