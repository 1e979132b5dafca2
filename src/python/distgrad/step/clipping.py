"""Knows what torch's clipping does to gradients: the norms that it sees, what it multiplies by,
and which elements it would cut."""

import functools
import sys

import torch

from ..ranks.places import place
from .variables import local_of

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


class Uncut:
    """Leaves p.grad of these parameters, inside this context, as it is where torch's
    clip_grad_value_ would cut elements, and notes that."""

    def __init__(self, parameters):
        self._parameters = parameters
        self._kept = {}  # {name: (text on the last such call, norm of p.grad then)}

    def __enter__(self):
        self._kept = {}
        self._grouped = torch.nn.utils.clip_grad._group_tensors_by_device_and_dtype
        torch.nn.utils.clip_grad._group_tensors_by_device_and_dtype = self._those_to_cut
        return self

    def __exit__(self, *_):
        torch.nn.utils.clip_grad._group_tensors_by_device_and_dtype = self._grouped

    def _those_to_cut(self, tensors, *args, **kwargs):
        """clip_grad_value_ asks for the tensors by dtype, as clip_grad_norm_ does, and users may
        have bound its name to one of their own before."""
        asks = sys._getframe(1)
        if asks.f_code.co_name == "clip_grad_value_":
            most = asks.f_locals["clip_value"]
            at = {_place_of(g) for g in tensors[0] if bool((local_of(g).abs() > most).any())}
            for name, p in self._parameters.items():
                if p.grad is not None and _place_of(p.grad) in at:
                    self._kept[name] = f"clip_grad_value_ in {place()}", _norm(p)
            tensors = [[g for g in tensors[0] if _place_of(g) not in at]]
            if not tensors[0]:
                return {}
        return self._grouped(tensors, *args, **kwargs)

    def calls(self):
        """Returns {text on a call: [name whose p.grad it would have cut]}."""
        found = {}
        for name, (text, _) in self._kept.items():
            found.setdefault(text, []).append(name)
        return found

    def changed(self):
        """Returns the names of those whose p.grad was changed after the call."""
        return [n for n, (_, norm) in self._kept.items() if _norm(self._parameters[n]) != norm]


def _place_of(gradient):
    local = local_of(gradient)
    return local.data_ptr(), local.shape


def _norm(p):
    return None if p.grad is None else float(local_of(p.grad.detach()).norm())
