"""The collectives, each in a module of its name that `distgrad repro` pastes from, too. Of a
collective NAME the module has

    simulated_NAME(xs, OPTIONS)                 the results by rank of the operands by rank, for
                                                autograd to differentiate: what the collective means
    NAME_forward(ctx, x, group, OPTIONS)        this rank's result, outside autograd
    NAME_adjoint(ctx, g, group, OPTIONS)        its operand's cotangent from that of its result;
                                                ctx has what forward left for it
    plain_NAME(x, group, OPTIONS, async_op)     as a user of torch.distributed writes the call;
                                                here op is torch's own
    NAMES                                       what people's functions of this kind are called
    METHODS                                     of torch's ProcessGroup, and which argument has
                                                this rank's operand

The options are those of traits.py, `op` being an object of ops.py, and `async_op` is one where
torch has it. Ranks and roots count in the group. What is wrong with an operand is a ValueError.
"""

import importlib

from . import ops
from .traits import TRAITS

KINDS = tuple(TRAITS)
MODULES = {kind: importlib.import_module(f"{__name__}.{kind}") for kind in KINDS}


def kinds_with(option):
    return tuple(kind for kind in KINDS if option in TRAITS[kind].options)


def kinds_of_shape(*shapes):
    return tuple(kind for kind in KINDS if TRAITS[kind].shape in shapes)


def options_of(call):
    """As keywords of the functions above."""
    options = {name: getattr(call, name) for name in TRAITS[call.kind].options}
    if "op" in options:
        options["op"] = op_of(call)
    return options


def op_of(call):
    name = "".join(word.title() for word in call.op.split("_"))
    return ops.PremulSum(call.factor) if call.op == "premul_sum" else getattr(ops, name)()
