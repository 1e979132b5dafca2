"""Watches what backward brings to each parameter, before anything else is done with it."""

import contextlib

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
            if p.requires_grad:
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
