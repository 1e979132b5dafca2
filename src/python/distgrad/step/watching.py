"""Watches what backward brings to each parameter, before anything else is done with it."""

import contextlib
import functools

import torch

from ..ranks.places import place
from .variables import local_of


class Arrivals:
    """Adds up, inside this context, what backward brings to these parameters on this rank, before
    hooks that reduce and without what p.grad held. It sees no parameters that FSDP gathers. Call
    begin() before each backward."""

    def __init__(self, parameters, most_bytes=0):
        """Keeps up to most_bytes of gradients of single passes."""
        self._parameters, self._left = parameters, most_bytes
        self.sums = {}  # {name: tensor} has what arrived in all.
        self.last = {}  # {name: tensor} has what the last backward brought.
        self.by_pass = {}  # {name: [tensor or None]} has each pass, if there is room.
        self.passes = 0
        self._handles = []
        self._pass = {}

    def begin(self):
        self.passes += 1

    def __enter__(self):
        for name, p in self._parameters.items():
            self._handles.append(p.register_hook(self._hook(name)))
        return self

    def __exit__(self, *_):
        for handle in self._handles:
            handle.remove()

    def _hook(self, name):
        def arrived(gradient):
            if gradient is None:  # as a Function's backward may give it
                return
            with contextlib.suppress(RuntimeError):  # Some tensor subclasses have no values.
                value = local_of(gradient.detach())
                value = value.to_dense() if value.is_sparse else value
                if value.shape != local_of(self._parameters[name]).shape:
                    return  # A DTensor may have other placements than its parameter.
                self.sums[name] = (value.clone() if name not in self.sums
                                   else self.sums[name] + value)
                before = self._pass.get(name)
                self.last[name] = (self.last[name] + value if before == self.passes
                                   else value.clone())
                self._pass[name] = self.passes
                self._keep(name, value)

        return arrived

    def _keep(self, name, value):
        self._left -= value.numel() * value.element_size()
        if self._left < 0:
            self.by_pass.pop(name, None)
            return
        passes = self.by_pass.setdefault(name, [])
        passes += [None] * (self.passes - len(passes))
        passes[-1] = value.clone() if passes[-1] is None else passes[-1] + value


class Added:
    """Adds up what each backward adds to p.grad of these parameters on this rank, with what hooks,
    DDP or FSDP did to it. Call begin() before each backward and end() after it."""

    def __init__(self, parameters):
        self._parameters, self._before = parameters, {}
        self.sums = {}  # {name: tensor} has what all of them added.
        self.last = {}  # {name: tensor} has what the last one added.

    def begin(self):
        self._before = {name: local_of(p.grad.detach()).clone()
                        for name, p in self._parameters.items() if p.grad is not None}

    def end(self):
        for name, p in self._parameters.items():
            if p.grad is not None and not p.grad.is_sparse:
                now = local_of(p.grad.detach())
                self.last[name] = now - self._before[name] if name in self._before else now.clone()
                self.sums[name] = (self.sums[name] + self.last[name] if name in self.sums
                                   else self.last[name])


_CLIPS = ("_clip_grads_with_norm_", "clip_grads_with_norm_", "_get_total_norm", "get_total_norm")


class Clipping:
    """Notes, inside this context, what torch's clip_grad_norm_ does to these parameters."""

    def __init__(self, parameters):
        # Each call is (norm that it saw, max_norm, its text, which norm, {parameter's name: factor
        # of the calls before, or None if its gradient was changed after this call}).
        self.calls = []
        self._parameters = parameters
        self._kind = 2.0  # This is the norm's order.
        self._factors = {}  # {id of a parameter: what its gradient was multiplied by}
        self._after = {}  # {id of a parameter: the norm of its gradient after clipping}

    def __enter__(self):
        inside = torch.nn.utils.clip_grad
        self._original, self._norm_of = inside._clip_grads_with_norm_, inside._get_total_norm
        self._before = [(home, name, getattr(home, name))
                        for home in (inside, torch.nn.utils) for name in _CLIPS
                        if hasattr(home, name)]

        def measured(tensors, norm_type=2.0, *args, **kwargs):
            self._kind = float(norm_type)
            return self._norm_of(tensors, norm_type, *args, **kwargs)

        def noted(called, parameters, max_norm, total_norm, *args, **kwargs):
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            norm = total_norm.full_tensor() if hasattr(total_norm, "full_tensor") else total_norm
            known = self._known(parameters)
            self._note_changed()
            self.calls.append((float(norm), float(max_norm), f"{called} in {place()}", self._kind,
                               {name: self._factor(p) for name, p in known}))
            factor = min(1.0, float(max_norm) / (float(norm) + 1e-6))
            done = self._original(parameters, max_norm, total_norm, *args, **kwargs)
            for _, p in known:
                self._factors[id(p)] = self._factor(p) * factor
                self._after[id(p)] = _norm(p)
            return done

        for home, name, _ in self._before:
            # clip_grad_norm_ calls the function whose name begins with an underscore.
            called = "clip_grad_norm_" if name.startswith("_") else name
            setattr(home, name,
                    functools.partial(noted, called) if "clip" in name else measured)
        return self

    def __exit__(self, *_):
        for home, name, before in self._before:
            setattr(home, name, before)
        self._note_changed()

    def _known(self, parameters):
        """Returns [(name, parameter)] of those whose gradients these parameters have or share."""
        at = {_place_of(p.grad) for p in parameters if p.grad is not None}
        ids = set(map(id, parameters))
        return [(name, p) for name, p in self._parameters.items()
                if id(p) in ids or p.grad is not None and _place_of(p.grad) in at]

    def _note_changed(self):
        """Forgets the factors of gradients that were changed since they were clipped."""
        for name, p in self._parameters.items():
            if not self._is_last(p):
                del self._after[id(p)]
                self._factors[id(p)] = None
                for *_, before in self.calls:
                    before.update({name: None} if name in before else {})

    def _factor(self, p):
        """Returns what the gradient was multiplied by since it was last changed otherwise."""
        factor = self._factors.get(id(p))
        return 1.0 if factor is None else factor

    def factors(self):
        """Returns {name: what the gradient was multiplied by} without those changed afterwards."""
        return {name: self._factor(p) for name, p in self._parameters.items()
                if self._factors.get(id(p), 1.0) is not None}

    def _is_last(self, p):
        """Returns whether nothing was done with the gradient since it was clipped, if it was."""
        return id(p) not in self._after or self._after[id(p)] == _norm(p)


def _place_of(gradient):
    local = local_of(gradient)
    return local.data_ptr(), local.shape


def _norm(p):
    return None if p.grad is None else float(local_of(p.grad.detach()).norm())
