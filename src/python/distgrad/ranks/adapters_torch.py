"""Runs torch's own differentiable collectives, of torch 2.11 and 2.15, as implementations under
test: torch.distributed.nn.functional and torch.distributed._functional_collectives. Recognizes
plain torch.distributed, which built_in runs. Raises NotOffered for what a function cannot be
given."""

import sys
from dataclasses import dataclass
from typing import Any

import torch

from . import adapters
from . import adapters_results as results
from . import modes
from .adapters_sizes import is_uneven
from .call import NotOffered
from .collectives import TRAITS, options_of, torch_calls

NN = "torch.distributed.nn.functional"
FUNCTIONAL = "torch.distributed._functional_collectives"
PLAIN = ("torch.distributed", "torch.distributed.distributed_c10d")


@dataclass(frozen=True)
class TorchBinding:
    """Holds one of torch's functions as an implementation of `kind`; used like adapters.Binding."""

    function: Any
    kind: str
    label: str
    run: str  # the function of torch_calls.py that calls it
    mode: str = ""  # one of modes.MODES

    @property
    def is_functional(self):
        return self.function.__module__ == FUNCTIONAL

    def op_is_untold(self, call):
        return False

    def check(self, call, groups_from_setup=None):
        """Raises NotOffered for calls that the function cannot make. Decides without a tensor, so
        all ranks decide alike."""
        if call.is_async and not self.is_functional:
            raise NotOffered(f"{self.label} has no parameter async_op")
        if call.kind == "scatter" and is_uneven(call):
            raise NotOffered(f"{self.label} takes chunks of one size only")
        if call.kind == "send_recv" and not _is_permutation(call):
            raise NotOffered(f"{self.label} takes a permutation of the ranks only")
        if self.is_functional and call.kind == "reduce_scatter":
            if is_uneven(call):
                raise NotOffered(f"{self.label} cuts evenly only")
            if call.op == "premul_sum":
                raise NotOffered(f"{self.label} takes the op as text, which cannot hold"
                                 " premul_sum's factor")
        if self.is_functional and call.op == "premul_sum" and _torch_version() < (2, 15):
            raise NotOffered(f"{self.label} of torch {torch.__version__} takes the op as text,"
                             " which cannot hold premul_sum's factor")

    def __call__(self, call, x):
        if TRAITS[call.kind].shape == "joined":
            _refuse_uneven(call, x, self._family())
        options = options_of(call)
        if "op" in options:
            is_text = self.is_functional and call.op != "premul_sum"
            options["op"] = call.op if is_text else adapters.reduce_op(call)
        run, function = self.takes(call)
        if call.is_async:
            function = torch_calls.explicitly_waited(function)
        else:
            function = modes.function_in(self.mode, function)
        try:
            return getattr(torch_calls, run)(function, x, call.group.process_group, **options)
        except (RuntimeError, ValueError) as error:
            adapters.raise_if_backend_lacks(error, call)
            raise

    def takes(self, call):
        """Returns (the name in torch_calls.py, torch's function). The list form of all_to_all takes
        pieces of one size only, so uneven ones go through all_to_all_single."""
        if self.run == "nn_all_to_all" and is_uneven(call):
            module = sys.modules[self.function.__module__]
            return "nn_all_to_all_single", module.all_to_all_single
        return self.run, self.function

    def _family(self):
        if self.is_functional:
            return "torch's functional all_gather"
        return f"torch.distributed.nn.{self.function.__name__}"


def _torch_version():
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def _refuse_uneven(call, x, label):
    """Raises NotOffered if ranks gather different sizes, as Gloo would end the process.
    Communicates."""
    if call.dim is not None:
        sizes = results.gathered_sizes(call, x, call.dim)
        if len(set(sizes)) > 1:
            raise NotOffered(f"{label} takes operands of one shape only, and these have the sizes"
                             f" {', '.join(map(str, sizes))} along dim {call.dim}")


def _is_permutation(call):
    everyone = list(range(call.group.size))
    return sorted(s for s, _ in call.pairs) == sorted(d for _, d in call.pairs) == everyone


# Maps torch's names to the kind and to the function of torch_calls.py.
_ENTRIES = {
    NN: {
        "all_reduce": ("all_reduce", "nn_all_reduce"),
        "reduce": ("reduce", "nn_reduce"),
        "broadcast": ("broadcast", "nn_broadcast"),
        "all_gather": ("all_gather", "nn_all_gather"),
        "_all_gather_base": ("all_gather", "nn_all_gather_base"),
        "gather": ("gather", "nn_gather"),
        "reduce_scatter": ("reduce_scatter", "nn_reduce_scatter"),
        "scatter": ("scatter", "nn_scatter"),
        "all_to_all": ("all_to_all", "nn_all_to_all"),
        "all_to_all_single": ("all_to_all", "nn_all_to_all_single"),
    },
    FUNCTIONAL: {
        "all_reduce": ("all_reduce", "fc_all_reduce"),
        "broadcast": ("broadcast", "fc_broadcast"),
        # These exist since 2.13, which deprecates the names on _tensor.
        "all_gather_single": ("all_gather", "fc_all_gather"),
        "all_gather_tensor": ("all_gather", "fc_all_gather"),
        "all_gather_single_autograd": ("all_gather", "fc_all_gather"),
        "all_gather_tensor_autograd": ("all_gather", "fc_all_gather"),
        "reduce_scatter_single": ("reduce_scatter", "fc_reduce_scatter"),
        "reduce_scatter_tensor": ("reduce_scatter", "fc_reduce_scatter"),
        "reduce_scatter_single_autograd": ("reduce_scatter", "fc_reduce_scatter"),
        "reduce_scatter_tensor_autograd": ("reduce_scatter", "fc_reduce_scatter"),
        "all_to_all_single": ("all_to_all", "fc_all_to_all"),
        "all_to_all_single_autograd": ("all_to_all", "fc_all_to_all"),
        "permute_tensor": ("send_recv", "fc_permute_tensor"),
        "all_reduce_coalesced": ("all_reduce", "fc_all_reduce_coalesced"),
        "all_gather_single_coalesced": ("all_gather", "fc_all_gather_coalesced"),
        "all_gather_into_tensor_coalesced": ("all_gather", "fc_all_gather_coalesced"),
        "reduce_scatter_single_coalesced": ("reduce_scatter", "fc_reduce_scatter_coalesced"),
        "reduce_scatter_tensor_coalesced": ("reduce_scatter", "fc_reduce_scatter_coalesced"),
    },
}


def torch_binding(target, kind, label):
    """Returns the binding of one of torch's functions as `kind`, or None if the tables lack it."""
    name = getattr(target, "__name__", "")
    entry = _ENTRIES.get(getattr(target, "__module__", ""), {}).get(name)
    return TorchBinding(target, kind, label, entry[1]) if entry and entry[0] == kind else None


def torch_functions(module, kind):
    """Returns all names that one of torch's two modules has for `kind`, newer before deprecated
    ones."""
    return [name for name, (entry_kind, _) in _ENTRIES[_home(module)].items()
            if entry_kind == kind and hasattr(module, name)]


def torch_module_binding(module, kind):
    """Returns the binding of the first name that one of torch's two modules has for `kind`, or
    None."""
    for name in torch_functions(module, kind):
        run = _ENTRIES[_home(module)][name][1]
        return TorchBinding(getattr(module, name), kind, f"{module.__name__}.{name}", run)
    return None


def _home(module):
    return NN if module.__name__ == "torch.distributed.nn" else module.__name__


def is_torch_module(module):
    return module.__name__ in (NN, FUNCTIONAL, "torch.distributed.nn")


def is_plain_function(target):
    """Returns whether this is a callable of torch.distributed itself, whose collectives work in
    place."""
    return getattr(target, "__module__", "") in PLAIN and callable(target)
