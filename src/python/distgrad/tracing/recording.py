"""What a process computes while its step runs: the outputs of its modules and their gradients, the
calls that communicate, the custom Functions, the losses, and what clips gradients. Nothing that is
watched is changed: values are copied.
"""

import functools
import gc
import importlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from ..ranks.places import place
from ..ranks.rounding import without_dynamo
from ..step.variables import plain
from .naming import Renaming

_MOST_BYTES = 1 << 28  # of copies in one process; what comes later is left out
_MOST_TENSORS = 4  # of one module's output
_PROBES = {"_forward_metadata_inference", "_backward_metadata_inference", "_shape_inference"}
_SILENT = ("barrier", "wait_tensor", "monitored_barrier_", "_wrap_tensor_autograd")


class Output:
    """A tensor that a module gave; `at` is where of the DTensor, of the shape `whole`, the local
    piece begins, None of a plain tensor."""

    def __init__(self, module, call, index, value, at, event):
        self.module, self.call, self.index, self.event = module, call, index, event
        self.value, self.at = value, at
        self.gradient = self.whole = None
        self.needs_gradient = True
        self.in_function = False  # whether a Function, as a checkpoint is, goes on with it
        self.backwards = set()  # which reach it, from 1
        self.tensor = None  # itself; the single run's graph goes on from it


class Recording:
    def __init__(self, keeps_graph=False, wanted=()):
        """`wanted`: the names that the step returns its gradients under."""
        self.outputs = []
        self.events = []  # dicts, in the order of time
        # By narrower dtype, where a tensor in a gradient's way is first converted to it
        self.casts = {}
        self.dtypes = {}  # of all floating-point tensors: where each was first
        self.paused = False
        self.after_backward = None  # called with this recording, at each end of a backward
        self._keeps_graph, self._wanted = keeps_graph, wanted
        self._bytes = 0
        self._calls = {}  # module's id -> how often
        self._modules = {}  # module's id -> it
        self._roots = []  # of backward; of a run whose graph is kept
        self._backwards = 0
        self._functions = 0  # that run, one inside another
        self._arrived = {}  # parameter's id -> what backward gave it
        self._arrived_in = {}  # parameter's id -> which backwards did, from 1
        self._frozen = set()  # ids of parameters that require no gradient in any backward
        self._is_asked = False  # whether a loss asks for a slope of its own
        # Likewise, of all modules when the first backward began: the model may be gone when the
        # step ends
        self._alive = {}

    def start(self):
        """Before any of the user's modules is imported, as these may bind what is replaced here to
        names of their own."""
        torch.nn.modules.module.register_module_forward_hook(self._module_gave)
        if self._keeps_graph:  # else a compiled backward refuses to
            importlib.import_module("torch._functorch.config").donated_buffer = False
        self._watch_functions()
        self._watch_backward()
        self._watch_slopes()
        self._watch_clipping()
        self._leave_out_probes()
        _Exchanges(self).__enter__()  # until the process ends

    def note(self, kind, what, **more):
        if not self.paused:
            phase = "backward" if in_backward() else "forward"
            self.events.append({"kind": kind, "what": what, "place": place(),
                                "phase": phase, **more})

    def converts(self, x, dtype):
        if not self.paused and _narrows(x, dtype) and dtype not in self.casts:
            self.casts[dtype] = place()

    def computes(self, result):
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if (isinstance(x, torch.Tensor) and x.is_floating_point()
                    and x.dtype not in self.dtypes and not self.paused):
                self.dtypes[x.dtype] = place()

    # -- modules

    def _module_gave(self, module, _, output):
        if self.paused or in_backward():  # a checkpoint's recomputation
            return
        call = self._calls.get(id(module), 0)
        self._calls[id(module)], self._modules[id(module)] = call + 1, module
        tensors = [x for x in tree_flatten(output)[0] if _is_watched(x)]
        for index, x in enumerate(tensors[:_MOST_TENSORS]):
            value, at = local_piece(x)
            self._bytes += value.numel() * value.element_size()
            if self._bytes > _MOST_BYTES:
                return
            entry = Output(id(module), call, index, value, at, len(self.events))
            entry.whole, entry.needs_gradient = tuple(x.shape), x.requires_grad
            entry.in_function = self._functions > 0
            self.outputs.append(entry)
            if self._keeps_graph:
                entry.tensor = x
            if x.requires_grad:
                x.register_hook(functools.partial(self._gradient_came, entry))

    def _gradient_came(self, entry, gradient):
        if not self.paused and not self._is_asked:
            value, at = local_piece(gradient)
            if at == "partial" and entry.at != "partial":
                return
            entry.gradient = value if entry.gradient is None else entry.gradient + value
            entry.backwards.add(self._backwards)

    # -- functions of torch

    def _watch_functions(self):
        original = vars(torch.autograd.Function)["apply"]

        def apply(cls, *args, **kwargs):
            if not in_backward() and not cls.__module__.startswith("torch."):
                self.note("function", cls.__name__)
            self._functions += 1
            try:
                return original.__get__(None, cls)(*args, **kwargs)
            finally:
                self._functions -= 1

        apply.__name__, apply.__qualname__ = "apply", original.__get__(
            None, torch.autograd.Function).__qualname__
        torch.autograd.Function.apply = classmethod(apply)

    def _watch_backward(self):
        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False, **kwargs):
            nested = in_backward()  # a checkpoint's
            if not nested:
                roots = [x for x in tree_flatten(tensors)[0] if isinstance(x, torch.Tensor)]
                value = (float(local_piece(roots[0])[0]) if len(roots) == 1
                         and roots[0].numel() == 1 else None)
                self.note("loss", "backward", value=value)
                self._roots += roots if self._keeps_graph else []
                self._backwards += not self.paused
                self._keep_modules()
                self._watch_parameters()
            original(tensors, grad_tensors, retain_graph or self._keeps_graph or None, create_graph,
                     **kwargs)
            if not nested and self.after_backward:
                self.after_backward(self)

        torch.autograd.backward = backward

    def _watch_slopes(self):
        """What a loss asks for before its backward, as for a penalty on slopes, is no gradient of
        that loss."""
        original = torch.autograd.grad

        @functools.wraps(original)
        def grad(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False,
                 *args, **kwargs):
            before = self._is_asked
            self._is_asked = before or create_graph or (grad_outputs is None
                                                        and not _has_parameter(inputs))
            try:
                return original(outputs, inputs, grad_outputs, retain_graph, create_graph, *args,
                                **kwargs)
            finally:
                self._is_asked = before

        torch.autograd.grad = grad

    def _watch_parameters(self):
        for module in self._modules.values():
            for parameter in module.parameters():
                if not parameter.requires_grad and id(parameter) not in self._arrived:
                    self._frozen.add(id(parameter))
                if parameter.requires_grad and parameter.is_leaf and id(
                        parameter) not in self._arrived:
                    self._arrived[id(parameter)] = None
                    self._frozen.discard(id(parameter))
                    parameter.register_hook(functools.partial(self._arrives, id(parameter)))

    def _arrives(self, key, gradient):
        if self.paused or self._is_asked:
            return
        value, at = local_piece(gradient)
        self._arrived_in.setdefault(key, set()).add(self._backwards)
        before = self._arrived[key]
        if before is None:
            self._bytes += value.numel() * value.element_size()
        # Of a DTensor it is not known what the ranks' add up to
        if at is None and self._bytes <= _MOST_BYTES:
            self._arrived[key] = value if before is None else before + value

    def _watch_clipping(self):
        original = torch.nn.utils.clip_grad_norm_

        @functools.wraps(original)
        def clip(parameters, max_norm, *args, **kwargs):
            norm, before = original(parameters, max_norm, *args, **kwargs), self.paused
            self.paused = True
            seen = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            self.paused = before
            self.note("clipping", "clip_grad_norm_", norm=float(seen),
                      eps=torch.finfo(seen.dtype).eps)
            return norm

        torch.nn.utils.clip_grad_norm_ = clip
        torch.nn.utils.clip_grad.clip_grad_norm_ = clip

    def _leave_out_probes(self):
        """What torch's pipelines run beforehand, to learn shapes."""
        from torch.distributed.pipelining.stage import _PipelineStageBase

        def left_out(original):
            @functools.wraps(original)
            def run(*args, **kwargs):
                before, self.paused = self.paused, True
                try:
                    return original(*args, **kwargs)
                finally:
                    self.paused = before

            return run

        for cls in [_PipelineStageBase, *_PipelineStageBase.__subclasses__()]:
            for name in _PROBES & vars(cls).keys():
                setattr(cls, name, left_out(vars(cls)[name]))

    # -- names

    def names(self):
        """By id, of the modules that were called: as named_modules has them, without wrappers,
        under the names of the gradients."""
        found = self._own_names()
        rename = Renaming((name for name, _ in self._named_parameters(found)), self._wanted)
        return {key: rename(name) for key, name in found.items()}

    def _own_names(self):
        self._keep_modules()
        found, parents = {}, set()
        alive = list({**self._alive, **self._modules}.values())
        for module in alive:
            parents.update(id(child) for child in module._modules.values() if child is not None)
        roots = sorted((m for m in alive if id(m) not in parents), key=self._first_call)
        for root in roots:
            for name, module in root.named_modules():
                found.setdefault(id(module), plain(name) or f"({type(module).__name__})")
        return found

    def _keep_modules(self):
        if not self._alive:
            self._alive = {id(m): m for m in gc.get_objects() if _is_module(m)}

    def _first_call(self, root):
        order = {key: i for i, key in enumerate(self._modules)}
        return min((order.get(id(m), len(order)) for m in root.modules()), default=len(order))

    def parameters(self):
        """By name, of all modules that were called."""
        found = {}
        for name, parameter in self._named_parameters(self.names()):
            if parameter.requires_grad:
                found.setdefault(name, parameter)
        return found

    def _named_parameters(self, names):
        for key, module in self._modules.items():
            prefix = names[key]
            for name, parameter in module.named_parameters():
                yield plain(name if prefix.startswith("(") else f"{prefix}.{name}"), parameter

    def _consumers(self):
        """By an output's position, those of the outputs that are computed from it with no other
        between, the loss being -1; of a run whose graph is kept."""
        nodes, found = {}, {}
        ends = [(i, output.tensor) for i, output in enumerate(self.outputs)
               ] + [(-1, root) for root in self._roots]
        ends = [(i, tensor.grad_fn) for i, tensor in ends
                if tensor is not None and tensor.grad_fn is not None]
        for i, node in ends:
            if i >= 0:
                nodes.setdefault(node, []).append(i)
        for i, end in ends:
            passed_on = [other for other in nodes.get(end, ()) if i < 0 or other < i]
            waiting, seen = [] if passed_on else [following for following, _ in end.next_functions
                                                 ], set()
            for other in passed_on:
                found.setdefault(other, []).append(i)
            while waiting:
                node = waiting.pop()
                if node is None or node in seen:
                    continue
                seen.add(node)
                for other in nodes.get(node, ()):
                    found.setdefault(other, []).append(i)
                if node not in nodes:
                    waiting += [following for following, _ in node.next_functions]
        return found

    def trace(self):
        """Plain values, to be saved."""
        names, consumers = self.names(), self._consumers()
        outputs = [{"module": names[o.module], "call": o.call, "index": o.index, "value": o.value,
                    "at": o.at, "whole": o.whole, "gradient": o.gradient, "event": o.event,
                    "needs_gradient": o.needs_gradient, "in_function": o.in_function,
                    "backwards": sorted(o.backwards),
                    "consumers": [p for p in consumers.get(i, []) if p >= 0],
                    "reaches_loss": -1 in consumers.get(i, []),
                    "in_graph": o.tensor is not None and o.tensor.grad_fn is not None}
                   for i, o in enumerate(self.outputs)]
        parameters = self.parameters()
        arrived = {name: self._arrived.get(id(p)) for name, p in parameters.items()}
        watched = [name for name, p in parameters.items() if id(p) in self._arrived]
        arrived_in = {name: sorted(self._arrived_in.get(id(p), ()))
                      for name, p in parameters.items()}
        frozen = sorted({name for name, parameter in self._named_parameters(names)
                         if id(parameter) in self._frozen})
        return {"outputs": outputs, "events": self.events, "casts": self.casts,
                "dtypes": self.dtypes, "frozen": frozen, "parameters": watched,
                "backwards": self._backwards, "arrived_in": arrived_in,
                "arrived": {name: g for name, g in arrived.items() if g is not None}}


class _Exchanges(TorchDispatchMode):
    def __init__(self, recording):
        super().__init__()
        self._recording = recording

    @classmethod
    def ignore_compile_internals(cls):
        """Else what the user has compiled would run uncompiled, and round otherwise."""
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd"):
            name = func._schema.name.partition("::")[2]
            if name not in _SILENT:
                self._recording.note("communication", name.rstrip("_").removeprefix("_"))
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default:
            self._recording.converts(args[0], kwargs.get("dtype"))
        result = func(*args, **kwargs)
        self._recording.computes(result)
        return result

    without_dynamo(__torch_dispatch__)


def _is_watched(x):
    """A scalar is a loss, or made of parameters: no rank has a piece of it. Nor is a parameter
    watched that a module hands on (Megatron's layers return their bias): it is not computed."""
    return (isinstance(x, torch.Tensor) and x.is_floating_point() and x.dim() > 0 and not x.is_meta
            and not isinstance(x, torch.nn.Parameter))


def _has_parameter(inputs):
    return any(isinstance(x, torch.nn.Parameter) for x in tree_flatten(inputs)[0])


def _narrows(x, dtype):
    return (dtype is not None and dtype.is_floating_point and x.is_floating_point()
            and x.requires_grad and torch.finfo(dtype).eps > torch.finfo(x.dtype).eps)


def in_backward():
    return torch._C._current_graph_task_id() != -1


def local_piece(x):
    """(a copy of what this process has of the tensor, where that begins in the whole: None of a
    plain tensor, "partial" of a share)"""
    at = None
    if hasattr(x, "placements") and hasattr(x, "device_mesh"):
        at = _offset(x)
        # An operator on the DTensor may change it: of an embedding cut by rows it uses up the mask
        x = x._local_tensor
    if hasattr(x, "trigger_wait"):
        x = x.trigger_wait()
    return x.detach().to(device="cpu", copy=True), at


def _offset(x):
    if any(p.is_partial() for p in x.placements):
        return "partial"
    if all(p.is_replicate() for p in x.placements):
        return (0,) * x.dim()
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return tuple(compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)[1])


def _is_module(x):
    try:  # by type: objects that pretend to be others warn, or do more, where they are asked
        return issubclass(type(x), torch.nn.Module) and "_modules" in x.__dict__
    except Exception:
        return False
