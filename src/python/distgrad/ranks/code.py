"""Finds and calls the user's code that a step calls, and checks its result.

A file is loaded anew for each case, so that state that it keeps between calls starts alike.
"""

import os
import random
import sys

import torch

from . import adapters_loading
from .call import SubjectError


class Code:
    """Finds the functions that one case's calls name, on one rank."""

    def __init__(self):
        self._modules = {}

    def function(self, text):
        """Returns what `python:PLACE:NAME` names. Raises SubjectError."""
        place, _, name = text[len("python:"):].rpartition(":")
        if place not in self._modules:
            _forget(place)
            self._modules[place] = adapters_loading.load_module(place)
        found = adapters_loading.find_name(self._modules[place], name, place)
        if not callable(found):
            raise SubjectError(f"{place}:{name} is a {type(found).__name__} and cannot be called")
        if isinstance(found, type) and issubclass(found, torch.autograd.Function):
            return found.apply
        return found


def _forget(place):
    if not place.endswith(".py"):
        return
    path = os.path.abspath(os.path.expanduser(place))
    for name, module in list(sys.modules.items()):
        if name.startswith("distgrad_subject_") and getattr(module, "__file__", None) == path:
            del sys.modules[name]


def checked(value, text):
    """Returns `value` if it is one floating-point tensor. Raises TypeError otherwise."""
    if not isinstance(value, torch.Tensor):
        what = "None" if value is None else f"a {type(value).__name__}"
        raise TypeError(f"{text} returned {what}; a call gives one tensor")
    if not value.is_floating_point():
        raise TypeError(f"{text} returned a tensor of {value.dtype}; a call gives floating numbers")
    return value


def checked_for_all(values, arguments, world_size, text):
    """Returns the tensors of a simulated call, by rank. Raises TypeError unless there is one per
    rank, or if none has a graph though arguments have: then every gradient would be 0."""
    if not isinstance(values, (list, tuple)) or len(values) != world_size:
        what = (f"{len(values)} results" if isinstance(values, (list, tuple))
                else f"a {type(values).__name__}")
        raise TypeError(
            f"{text} returned {what}; it gives a list of one result for each of {world_size} ranks")
    results = [checked(value, text) for value in values]
    if (not any(x.requires_grad for x in results)
            and any(getattr(x, "requires_grad", False) for by_rank in arguments for x in by_rank)):
        raise TypeError(f"{text} returned results without a graph, so that every gradient would be"
                        " 0: look for detach(), no_grad() or .data (write x * 0 if 0 is meant)")
    return results


def seed(rank):
    """Seeds torch, random and numpy, so that each run of the program draws the same numbers, and
    every rank different ones."""
    torch.manual_seed(rank)
    random.seed(rank)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(rank)
