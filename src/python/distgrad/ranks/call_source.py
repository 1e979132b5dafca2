"""How a step calls the user's function, as Python source: what `distgrad repro` writes into its script.

main() is given the request, {"subject": TEXT, "calls": [{"step", "subject", "kind", "op", "factor", "root", "dim", "splits", "pairs", "size"}, ...]},
`size` being that of the groups of a call in a group and null in the world. It prints one line of JSON: {STEP: {"imports":
LINES, "text": LINES}}, the text being a function's body: of the operand `x` and, in a group, of `group`; a step that runs
`reference` or `in_place` has {"builtin": NAME} instead. "mode" beside them is "", or what the whole forward run is in:
"checkpoint", "checkpoint-reentrant" or "autocast". {"error": TEXT} where a call cannot be written.
"""

import json
import os
import sys

import torch

from . import adapters, adapters_torch, modes, subjects
from .call import Call, NotOffered, RankGroup, SubjectError


class NotWritable(Exception):
    pass


def _group(call):
    return "group" if call["size"] else "None"


def _rank_in_group(call, rank):
    return f"dist.get_global_rank(group, {rank})" if call["size"] else str(rank)


def _op(call, slot):
    if isinstance(adapters._op_style(slot), str):
        return repr(adapters.Arguments(_as_call(call), None).value(slot))
    if call["op"] == "premul_sum":
        return f"dist._make_nccl_premul_sum({call['factor']})"
    return "dist.ReduceOp." + call["op"].upper()


def _sizes(call):
    return "x.split({}, {})".format(call["splits"][0], call["dim"] or 0) if call["splits"] else \
        "x.chunk(dist.get_world_size({}), {})".format("group" if call["size"] else "", call["dim"] or 0)


# What fills a parameter, by its source.
_ARGUMENTS = {
    "tensor": lambda call, slot: "x",
    "group": lambda call, slot: _group(call) if call["size"] else "dist.group.WORLD",
    "group_name": lambda call, slot: ("group" if call["size"] else "dist.group.WORLD") + ".group_name",
    "ranks": lambda call, slot: f"dist.get_process_group_ranks({_group(call)})",
    "size": lambda call, slot: f"dist.get_world_size({'group' if call['size'] else ''})",
    "rank": lambda call, slot: f"dist.get_rank({'group' if call['size'] else ''})",
    "global_rank": lambda call, slot: "dist.get_rank()",
    "async": lambda call, slot: "False",
    "op": _op,
    "average": lambda call, slot: str(call["op"] == "avg"),
    "factor": lambda call, slot: repr(call["factor"]),
    "root": lambda call, slot: str(call["root"]),
    "global_root": lambda call, slot: _rank_in_group(call, call["root"]),
    "world_root": lambda call, slot: str(call["root"]),
    "dim": lambda call, slot: str(call["dim"] or 0),
    "splits": lambda call, slot: "None" if call["splits"] is None and slot.default is None else
        repr(call["splits"] if call["kind"] == "all_to_all" else (call["splits"] or [None])[0]),
    "pairs": lambda call, slot: repr([tuple(pair) for pair in call["pairs"]]),
    "chunks": lambda call, slot: f"list({_sizes(call)})",
}


def _argument(call, slot):
    if slot.source not in _ARGUMENTS:
        raise NotWritable(f"what its parameter `{slot.name}` is given is made at run time")
    return _ARGUMENTS[slot.source](call, slot)


def _arguments(binding, slots, call):
    texts = []
    for slot in slots:
        if slot.kind in (slot.kind.VAR_POSITIONAL, slot.kind.VAR_KEYWORD) and slot.source is None:
            continue
        if adapters._keeps_default(slot, _as_call(call)):
            if binding.by_position:
                texts.append(repr(slot.default))
            continue
        by_name = not binding.by_position and slot.source not in ("tensor", "chunks")
        texts.append(f"{slot.name}={_argument(call, slot)}" if by_name else _argument(call, slot))
    return ", ".join(texts)


def _as_call(call):
    """For what asks about a call without running it. The one rank stands for a group or the world."""
    size = call["size"] or 1
    group = RankGroup("group" if call["size"] else "", tuple(range(size)), 0, None)
    splits = tuple(map(tuple, call["splits"])) if call["splits"] else None
    return Call(call["kind"], call["step"], call["op"], call["factor"], call["root"], call["dim"], splits, call["pairs"], group)


def _result(call):
    """The lines that make a step's result of `y`, what the function returned."""
    kind, dim = call["kind"], call["dim"]
    joined = "torch.stack(list(y))" if dim is None else f"torch.cat(list(y), {dim})"
    if kind in ("all_gather", "gather"):
        lines = ["if isinstance(y, (list, tuple)):", f"    return {joined}"]
        if dim is None:
            return lines + ["return y if y.dim() > x.dim() else y.unflatten(0, (-1, x.size(0)))"]
        return lines + [f"return torch.cat(y.unbind(0), {dim}) if y.dim() > x.dim() else y"]
    if kind == "all_to_all":
        return [f"return torch.cat(list(y), {dim or 0}) if isinstance(y, (list, tuple)) else y"]
    if kind in ("all_reduce", "reduce", "broadcast", "send_recv"):
        return ["y = y[0] if isinstance(y, (list, tuple)) else y", "return x if y is None else y  # None: worked in place"]
    return ["return y[0] if isinstance(y, (list, tuple)) else y"]


def _off_root(call):
    """The lines that give zeros off root, attached to `y`, what the function returned: its backward has to run there, too."""
    kind, dim = call["kind"], call["dim"]
    if kind not in ("reduce", "gather"):
        return []
    group = _group(call) if call["size"] else ""
    lines, zeros = [], "x.new_zeros(x.shape)"
    if kind == "gather":
        lines = [f"shapes = [None] * dist.get_world_size({group})",
                 "dist.all_gather_object(shapes, x.shape" + (f", group={group})" if group else ")")]
        pieces = "[x.new_zeros(shape) for shape in shapes]"
        zeros = f"torch.stack({pieces})" if dim is None else f"torch.cat({pieces}, {dim})"
    return lines + [f"if dist.get_rank({group}) != {call['root']}:",
                    "    returned = [t for t in (y if isinstance(y, (list, tuple)) else [y]) if isinstance(t, torch.Tensor)]",
                    "    sources = [t for t in returned if t.requires_grad] or [x]",
                    "    attached = [torch.where(torch.tensor(False), t, torch.zeros_like(t)).sum() for t in sources]",
                    f"    return {zeros} + sum(attached)"]


def _mode(part):
    """What the script does around the forward run."""
    if part.mode in ("async", "compile"):
        raise NotWritable(f"in mode {part.mode} each call is made in another way")
    return part.mode


_NN = "torch.distributed.nn.functional"
_FC = "torch.distributed._functional_collectives"


def _torch_lines(binding, call):
    """torch's own functions, called as adapters_torch calls them."""
    name, kind, dim = binding.function.__name__, call["kind"], call["dim"]
    group = _group(call) if call["size"] else "dist.group.WORLD"
    module = "nn" if binding.function.__module__ == _NN else "fc"
    joined = "torch.stack(list(y))" if dim is None else f"torch.cat(list(y), {dim})"
    op = "dist._make_nccl_premul_sum(%s)" % call["factor"] if call["op"] == "premul_sum" else "dist.ReduceOp." + call["op"].upper()
    root, chunks = _rank_in_group(call, call["root"]), f"[chunk.contiguous() for chunk in {_sizes(call)}]"
    rank = f"dist.get_rank({'group' if call['size'] else ''})"
    f = f"{module}.{name}"
    texts = {
        "nn.all_reduce": [f"return {f}(x, op={op}, group={group})"],
        "nn.broadcast": [f"return {f}(x, {root}, group={group})"],
        "nn.all_gather": [f"y = {f}(x, group={group})", f"return {joined}"],
        "nn.reduce_scatter": [f"chunks = {chunks}", f"return {f}(torch.empty_like(chunks[{rank}]), chunks, op={op}, group={group})"],
        "nn.scatter": [f"return {f}({chunks}, src={root}, group={group})"],
        "nn.reduce": [f"y = {f}(x, {root}, op={op}, group={group})",
                      f"return y if {rank} == {call['root']} else torch.where(torch.tensor(False), y, torch.zeros_like(y.detach()))"],
        "nn.gather": [f"y = {f}(x, dst={root}, group={group})", f"y = {joined}",
                      f"return y if {rank} == {call['root']} else torch.where(torch.tensor(False), y, torch.zeros_like(y.detach()))"],
        "nn.all_to_all": [f"chunks = {chunks}", f"y = {f}([torch.empty_like(chunk) for chunk in chunks], chunks, group={group})",
                          f"return torch.cat(y, {dim or 0})"],
        "fc.all_reduce": [f"return {f}(x, {op if call['op'] == 'premul_sum' else repr(call['op'])}, {group}).clone()  # clone waits"],
        "fc.broadcast": [f"return {f}(x, {root}, {group}).clone()"],
    }
    for gather in ("all_gather_single", "all_gather_tensor", "all_gather_single_autograd", "all_gather_tensor_autograd"):
        operand = "x.unsqueeze(0).contiguous()" if dim is None else "x.contiguous()"
        texts["fc." + gather] = [f"return {f}({operand}, {dim or 0}, {group}).clone()  # clone waits"]
    for scatter in ("reduce_scatter_single", "reduce_scatter_tensor", "reduce_scatter_single_autograd", "reduce_scatter_tensor_autograd"):
        texts["fc." + scatter] = [f"return {f}(x.contiguous(), {call['op']!r}, {dim or 0}, {group}).clone()  # clone waits"]
    key = f"{module}.{name}"
    if key not in texts or (kind == "all_to_all" and call["splits"]):
        raise NotWritable(f"how {name} is called depends on sizes that are exchanged at run time")
    imports = {"nn": f"import {_NN} as nn\n", "fc": f"import {_FC} as fc\n"}[module]
    return imports, texts[key]


def _import_of(place, name):
    """(lines, what the function is called)."""
    if not place.endswith(".py"):
        return f"import {place}\n", f"{place}.{name}"
    path = os.path.abspath(os.path.expanduser(place))
    module = os.path.basename(path)[:-3]
    if not module.isidentifier():
        raise NotWritable(f"{place} cannot be imported by its name")
    return f"import sys\n\nsys.path.insert(0, {os.path.dirname(path)!r})\nimport {module}\n", f"{module}.{name}"


# The parameters that src/rank/library_operator.cpp knows, by source.
_OF_OPERATORS = {
    "op": ("op", "reduce_op", "reduceOp", "reduction"),
    "group": ("group", "group_name", "process_group", "pg"),
    "root": ("root", "group_src", "group_dst"),
    "global_root": ("src", "dst"),
    "dim": ("dim", "axis", "gather_dim", "scatter_dim"),
    "size": ("group_size", "world_size"),
    "rank": ("rank",),
    "factor": ("factor",),
}


def _operator_argument(call, argument):
    source = next((s for s, known in _OF_OPERATORS.items() if argument.name in known), None)
    if source is None:
        raise NotWritable(f"what its parameter `{argument.name}` is given is made at run time")
    if source == "op" and str(argument.type) == "str":
        return repr(call["op"])
    if source == "group" and str(argument.type) == "str":
        source = "group_name"
    return f"{argument.name}={_ARGUMENTS[source](call, argument)}"


def _operator_source(text, call):
    """Of library:FILE.so:NAMESPACE::OP."""
    file, _, name = text[len("library:") :].rpartition("::")
    file, _, space = file.rpartition(":")
    path = os.path.abspath(file)
    torch.ops.load_library(path)
    arguments = getattr(getattr(torch.ops, space), name).default._schema.arguments
    operand = next(a for a in arguments if str(a.type) == "Tensor")
    written = [_operator_argument(call, a) for a in arguments if a is not operand and
               (not a.has_default_value() or any(a.name in known for known in _OF_OPERATORS.values()))]
    line = f"y = torch.ops.{space}.{name}({', '.join(['x', *written])})"
    return {"imports": f"\ntorch.ops.load_library({path!r})\n", "text": "\n".join([line, *_off_root(call), *_result(call)]) + "\n", "mode": ""}


def source_of(subject, call):
    if call["subject"].startswith("library:"):
        return _operator_source(call["subject"], call)
    if subject is None:  # what the operator's library leaves to others
        return {"builtin": call["subject"], "mode": ""}
    part = subject._part(_as_call(call))
    if isinstance(part, subjects._Module):
        part = part._part(call["kind"])
    mode = _mode(part)
    if isinstance(part, subjects._BuiltIn):
        builtin = "in_place" if part._run is subjects._BUILT_IN["in_place"] else "reference"
        return {"builtin": builtin, "mode": mode}
    binding = part._binding
    if isinstance(binding, adapters_torch.TorchBinding):
        imports, lines = _torch_lines(binding, call)
        return {"imports": imports, "text": "\n".join(lines) + "\n", "mode": mode}
    _, name = binding.label.rpartition(":")[::2]
    place, _ = subjects._place_and_name(modes.split_mode(call["subject"])[0])
    if part._setup.groups is not None or part._setup._function is not None:
        raise NotWritable("its module has a setup(groups)")
    off_root = _off_root(call)
    imports, function = _import_of(place, name)
    if binding.makes_instance:
        function += f"({_arguments(binding, binding.constructor, call)})"
    elif getattr(binding.function, "__name__", "") == "apply" and not name.endswith("apply"):
        function += ".apply"
    copied = ["x = x.clone()  # it may work in place"] if call["kind"] in ("all_reduce", "reduce", "broadcast") else []
    text = [*copied, f"y = {function}({_arguments(binding, binding.slots, call)})", *off_root, *_result(call)]
    return {"imports": imports, "text": "\n".join(text) + "\n", "mode": mode}


def main(request):
    request = json.loads(request)
    try:
        subject = subjects.load_subject(request["subject"]) if "python:" in request["subject"] else None
        answer = {call["step"]: source_of(subject, call) for call in request["calls"]}
    except NotWritable as error:
        answer = {"error": f"the call of {request['subject']} cannot be written out: {error}. Write a function of `x` around it"
                           " and name that"}
    except (SubjectError, NotOffered) as error:
        answer = {"error": str(error)}
    print("\n" + json.dumps(answer))

