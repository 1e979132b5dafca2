"""Runs the function under test on this rank: forward at moved inputs, and backward with given
cotangents.

Every forward gets fresh copies of the inputs and the same random numbers, so that only what the
function itself keeps passes from one run to the next, and the caller's tensors stay unchanged.
Parameters and buffers of modules are not copied: they are written before each forward, and
restore() puts them back.
"""

import contextlib
import inspect
import random
from dataclasses import dataclass
from typing import Optional

import torch

from ..own_device import users_device
from . import nested


class NotSupported(TypeError):
    """Says that an input or output is of a kind that cannot be checked, and what to do instead."""


@dataclass
class Leaf:
    """Holds an input that requires grad: a tensor among the arguments or a module's parameter."""

    name: str
    home: torch.Tensor  # This is the caller's tensor or parameter.
    is_parameter: bool
    data: Optional[torch.Tensor] = None  # A parameter had this .data before the check.
    grad: Optional[torch.Tensor] = None  # A parameter had this .grad before the check.
    # This is the value in the dtype of this pass, contiguous or with the strides of `home`.
    base: Optional[torch.Tensor] = None


@dataclass
class Output:
    name: str
    tensor: torch.Tensor


@dataclass
class Prepared:
    """Holds the arguments of one call. inputs has for each leaf the tensor whose .grad is its
    gradient; given lists (name, what the function gets, a copy of it); thawed lists the leaves that
    require grad here although the caller's do not."""

    args: tuple
    kwargs: dict
    inputs: list
    given: list
    thawed: list


@dataclass
class Run:
    """Holds a call's results. other_leaves are closed-over tensors that require grad."""

    outputs: list
    inputs: list
    given: list
    other_leaves: list
    thawed: list

    def differentiable(self):
        return [output for output in self.outputs if output.tensor.requires_grad]


class Subject:
    def __init__(self, function, inputs, kwargs, constant=()):
        """Takes as inputs a tuple of positional arguments, or the only argument. constant names the
        inputs that are not moved; the name of a list, dict or module stands for all its parts."""
        self._function, self._kwargs = function, kwargs
        self._args = (inputs if isinstance(inputs, tuple) and not hasattr(inputs, "_fields")
                      else (inputs,))
        self._names = parameter_names(function, len(self._args))
        self.leaves = []
        self._constants = {}  # id of the caller's tensor -> (name, tensor)
        self._held = []  # (buffer or frozen parameter, its data as the caller has it)
        self._buffers = []  # homes_of_buffers(), as the caller has them
        self._constant, self._known_constants = constant, set()
        self._frozen = []  # These parameters require grad, but are declared constant.
        self._frozen_parameters = []  # (name, parameter, .grad) where the caller requires no grad
        self._thawed = set()  # These inputs require grad here only because other ranks' do.
        self._find_inputs()
        self.held = contextlib.nullcontext()  # Each call runs inside this context.
        self._others = []  # (closed-over leaf, the .grad that restore() puts back)
        self._random = _RandomState(self._devices())
        self.use(None)

    def use(self, dtype):
        """Casts floating-point inputs that are narrower than `dtype` to it from now on; with None
        they keep the dtypes that they were given in."""
        self.dtype = dtype
        for leaf in self.leaves:
            value = leaf.data if leaf.is_parameter else leaf.home.detach()
            leaf.base = _cast(value, dtype).clone()
            if leaf.is_parameter:
                leaf.home.data = leaf.base.clone()
        for tensor, data in self._held:
            tensor.data = _cast(data, dtype).clone()

    def restore(self):
        """Puts parameters, buffers, .grad and random state back as the caller left them."""
        for leaf in self.leaves:
            if leaf.is_parameter:
                leaf.home.grad = None  # This .grad may have another dtype than leaf.data.
                leaf.home.data = leaf.data
                leaf.home.grad = leaf.grad
        self._put_buffers_back()
        for tensor, data in self._held:
            tensor.data = data
        for parameter in self._frozen:
            parameter.requires_grad_()
        for _, parameter, grad in self._frozen_parameters:
            parameter.requires_grad_(False)
            parameter.grad = grad
        for tensor, grad in self._others:
            tensor.grad = grad
        self._random.reset()

    def _put_buffers_back(self):
        for names, name, buffer in self._buffers:
            names[name] = buffer

    def prepared(self, moves=None):
        """Returns fresh inputs for one call. moves[i], float64 or None, is added to leaf i."""
        inputs, given, made, thawed = [], [], {}, []
        for i, leaf in enumerate(self.leaves):
            moved = self._moved(leaf, moves and moves[i])
            if leaf.is_parameter:
                leaf.home.data.copy_(moved)
                inputs.append(leaf.home)
            else:
                inputs.append(moved.requires_grad_())
                made[id(leaf.home)] = operand = _as_strided_like(leaf.home, inputs[-1])
                given.append((leaf.name, operand, moved))
        for key, (name, tensor) in self._constants.items():
            made[key] = _cast(tensor.detach(), self.dtype).clone()
            if name in self._thawed:
                thawed.append(made[key].requires_grad_())
                made[key] = made[key].clone()  # The function may write to a tensor that is no leaf.
            given.append((name, made[key], tensor))
        for name, parameter, _ in self._frozen_parameters:
            parameter.requires_grad_(name in self._thawed)
            thawed.append(parameter)
        args, kwargs = nested.exchanged((self._args, self._kwargs),
                                        lambda _, leaf: made.get(id(leaf), leaf))
        return Prepared(args, kwargs, inputs, given, thawed)

    def call(self, prepared, has_backward=True):
        self._random.reset()
        self._put_buffers_back()
        for tensor, data in self._held:
            tensor.data.copy_(data)
        with torch.enable_grad(), users_device(), self.held:
            result = self._function(*prepared.args, **prepared.kwargs)
        outputs = _outputs_of(result, {leaf.name for leaf in self.leaves})
        run = Run(outputs, prepared.inputs, prepared.given, [], prepared.thawed)
        if has_backward:
            self._note_other_leaves(run)
        return run

    def backward(self, runs, pairs, retain):
        """Returns for each run a list with each leaf's gradient or None. Runs share parameters,
        whose gradients are in the first run's list. pairs holds (output, its cotangent)."""
        for run in runs:
            for tensor in [*run.inputs, *run.other_leaves]:
                tensor.grad = None
        if pairs:
            loss = _Loss.apply([c for _, c in pairs], *(y for y, _ in pairs))
            with users_device():
                loss.backward(retain_graph=retain)
        gradients, seen = [], set()
        for run in runs:
            gradients.append([None if id(tensor) in seen else tensor.grad for tensor in run.inputs])
            seen |= set(map(id, run.inputs))
        return gradients

    def written(self, run):
        """Returns the names of inputs that no longer hold what the function was given."""
        return [name for name, now, before in run.given if not _holds(now, before)]

    # -- inputs

    def _find_inputs(self):
        seen = set()
        owner = getattr(self._function, "__self__", None)
        for module in (self._function, owner):
            if isinstance(module, torch.nn.Module):
                self._add_module("", module, seen)
        for root in (self._args, self._kwargs):
            for path, leaf in nested.leaves_of(root):
                self._add_input(nested.text_of(path, self._names), leaf, seen)

    def frozen(self):
        """Returns the names of floating-point inputs that do not require grad and are not declared
        constant."""
        named = [*self._constants.values(), *self._frozen_parameters]
        return [name for name, tensor, *_ in named
                if tensor.is_floating_point() and not self._is_constant(name)]

    def thaw(self, names):
        self._thawed = set(names)

    @contextlib.contextmanager
    def as_given(self, is_given):
        thawed, self._thawed = self._thawed, set() if is_given else self._thawed
        try:
            yield
        finally:
            self._thawed = thawed

    def _is_constant(self, name):
        found = {known for known in self._constant
                 if is_part(name, known)}
        self._known_constants |= found
        return bool(found)

    def unknown_constants(self):
        return [name for name in self._constant if name not in self._known_constants]

    def _add_input(self, name, leaf, seen):
        if isinstance(leaf, torch.nn.Module):
            self._add_module(name, leaf, seen)
        if not isinstance(leaf, torch.Tensor) or id(leaf) in seen:
            return
        seen.add(id(leaf))
        _check_kind(name, leaf)
        if not self._is_constant(name) and leaf.requires_grad:
            self.leaves.append(Leaf(name, leaf, False))
        else:
            self._constants[id(leaf)] = (name, leaf)

    def _add_module(self, prefix, module, seen):
        if id(module) in seen:
            return
        seen.add(id(module))
        for name, parameter in module.named_parameters(prefix):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            _check_kind(name, parameter)
            if self._is_constant(name) and parameter.requires_grad:
                self._frozen.append(parameter.requires_grad_(False))
            if parameter.requires_grad:
                self.leaves.append(Leaf(name, parameter, True, parameter.data, parameter.grad))
            else:
                self._held.append((parameter, parameter.data))
                if parameter.is_floating_point() and not self._is_constant(name):
                    self._frozen_parameters.append((name, parameter, parameter.grad))
        self._buffers += (found := homes_of_buffers(module))
        for *_, buffer in found:
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                self._held.append((buffer, buffer.data))

    def _moved(self, leaf, move):
        if move is None:
            return leaf.base.detach().clone()
        moved = leaf.base.to(torch.float64) + move.to(leaf.base.device).reshape(leaf.base.shape)
        return moved.to(leaf.base.dtype)

    def _devices(self):
        tensors = [leaf.home for leaf in self.leaves
                  ] + [tensor for _, tensor in self._constants.values()]
        return sorted({tensor.device.index for tensor in tensors if tensor.is_cuda})

    def _note_other_leaves(self, run):
        own = {id(tensor) for tensor in [*run.inputs, *run.thawed]}
        known = {id(tensor) for tensor, _ in self._others}
        for tensor in _graph_leaves([output.tensor for output in run.differentiable()]):
            if id(tensor) in own:
                continue
            run.other_leaves.append(tensor)
            if id(tensor) not in known:
                self._others.append((tensor, tensor.grad))

    def closed_over(self):
        return len(self._others)


def homes_of_buffers(module):
    """Returns [(dict, name, buffer or None)], where dict[name] is that: a forward may put another
    tensor there."""
    return [(owner._buffers, name, buffer) for owner in module.modules()
            for name, buffer in owner._buffers.items()]


def parameters_of(function):
    """Returns the parameters that the user's function, Module or autograd.Function's apply() takes,
    or None if Python does not know them."""
    named = function.forward if isinstance(function, torch.nn.Module) else function
    owner = getattr(function, "__self__", None)
    skip = 0
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        named, skip = owner.forward, 0 if _has_setup_context(owner) else 1
    try:
        return list(inspect.signature(named).parameters.values())[skip:]
    except (TypeError, ValueError):
        return None


def parameter_names(function, count):
    """Returns names for the first `count` positional arguments: the function's own, else x, or x0,
    x1, ..."""
    plain = ["x"] if count == 1 else [f"x{i}" for i in range(count)]
    positional = [p.name for p in parameters_of(function) or ()
                  if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional[:count] + plain[len(positional):]


def is_part(name, whole):
    """Returns whether `name` is `whole` or the name of a part of it."""
    return name == whole or name.startswith((f"{whole}.", f"{whole}["))


def _has_setup_context(function):
    return function.setup_context is not torch.autograd.Function.setup_context


# ---- tensors


def _check_kind(name, tensor):
    if type(tensor).__name__ == "DTensor":
        raise NotSupported(f"{name} is a DTensor: check a function of local tensors, with"
                           " to_local() and from_local()")
    if tensor.is_complex() and tensor.requires_grad:
        raise NotSupported(
            f"{name} is complex: check a function of real tensors, with torch.view_as_real()")
    if tensor.requires_grad and tensor.layout != torch.strided:
        raise NotSupported(
            f"{name} is of layout {tensor.layout}; only strided tensors can be moved")


def _outputs_of(result, inputs):
    """Returns Outputs, none of which has the name of one of `inputs`."""
    outputs = []
    for path, leaf in nested.leaves_of(result):
        if not isinstance(leaf, torch.Tensor):
            continue
        name = _output_name(path) if path else "y"
        name = f"out_{name}" if name in inputs else name
        _check_kind(name, leaf)
        if leaf.is_floating_point():
            outputs.append(Output(name, leaf))
    return outputs


def _output_name(path):
    """Returns y0 in a tuple or list, logits in a dict, and y0[1] or logits[0] one level down."""
    first = f"y{path[0]}" if isinstance(path[0], int) else str(path[0])
    return nested.text_of((first, *path[1:]))


def _cast(tensor, dtype):
    """Casts to a wider floating-point dtype; leaves integers, masks and wide tensors alone."""
    if dtype is None or not tensor.is_floating_point() or tensor.dtype.itemsize >= dtype.itemsize:
        return tensor
    return tensor.to(dtype)


class _Loss(torch.autograd.Function):
    """Returns a scalar whose backward gives the outputs these cotangents unchanged.
    torch.autograd.backward() would import sympy for that, which takes longer than a check."""

    @staticmethod
    def forward(ctx, cotangents, *outputs):
        ctx.cotangents = cotangents
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx, _):
        return None, *ctx.cotangents


class _Strided(torch.autograd.Function):
    """Copies a tensor with other strides. The copy is no view, so it may be written to."""

    @staticmethod
    def forward(ctx, x, strides):
        return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)

    @staticmethod
    def backward(ctx, g):
        return g, None


def _as_strided_like(original, leaf):
    """Copies the leaf with the strides of the caller's tensor. The copy is no leaf, just as an
    operand inside a model is none."""
    overlaps = any(
        stride == 0 and size > 1 for stride, size in zip(original.stride(), original.shape))
    if original.is_contiguous() or overlaps:
        return leaf.clone(memory_format=torch.contiguous_format)
    return _Strided.apply(leaf, original.stride())


def _holds(now, before):
    now, before = now.detach(), before.detach().to(now.dtype)
    same = now == before
    return bool(same.all()) or bool((same | (now != now) & (before != before)).all())


def _graph_leaves(outputs):
    """Returns the tensors into whose .grad the backward from these outputs accumulates."""
    found, seen = [], set()
    waiting = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            found.append(variable)
        waiting += [below for below, _ in node.next_functions if below is not None]
    return found


class _RandomState:
    def __init__(self, devices):
        self._python = random.getstate()
        self._cpu = torch.get_rng_state()
        self._cuda = [(device, torch.cuda.get_rng_state(device)) for device in devices]

    def reset(self):
        random.setstate(self._python)
        torch.set_rng_state(self._cpu)
        for device, state in self._cuda:
            torch.cuda.set_rng_state(state, device)
