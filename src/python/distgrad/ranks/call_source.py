"""Writes a step's call of the user's code as Python source, for the script of `distgrad repro`.

main() gets a list of requests, one per case,

    {"subject": TEXT, "calls": [{"step", "subject", "kind", "op", "factor", "root", "dim", "splits",
    "pairs", "size"}, ...],
     "functions": [{"step", "code", "simulate"}, ...], "names": [TEXT, ...]}

`size` is that of the groups of a call in a group and null in the world. "functions" are the steps
that are calls of code, "names" those that the script uses itself. It prints one line of JSON, a
list of answers: {"calls": {STEP: {"text": LINES}}}, where the text is the body of a function of the
operand `x` and, in a group, of `group`. A step that runs `reference` or `in_place` has {"builtin":
NAME} instead. "around" beside them says how the call is made: "", "async" or "compile". The answer
also has "functions": {STEP: {"function", "simulate"}}, their names in the script; "imports": LINES;
"setups", the functions that get the process groups by name first of all; and "mode", what the whole
forward runs in: "", "checkpoint", "checkpoint-reentrant" or "autocast". If a call cannot be
written, the answer is {"error": TEXT}.
"""

import json
import os

import torch
import torch.distributed as dist

from . import adapters, adapters_torch, modes, subjects
from . import adapters_names as names
from .call import Call, NotOffered, RankGroup, SubjectError
from .call_source_imports import Imports
from .code import Code
from .collectives import TRAITS


_COPIED = ["x = x.clone()  # it may work in place"]


# These are local to functions that call only joint functions.
_OF_TRUTH = {"losses", "loss", "leaves", "J", "bound"}


class NotWritable(Exception):
    pass


class Written:
    """Spells the pieces of a call as the script does."""

    def __init__(self, call):
        in_group = "group" if call["size"] else ""
        self._call = call
        self.group = in_group or "None"
        self.process_group = in_group or "dist.group.WORLD"
        self.size = f"dist.get_world_size({in_group})"
        self.rank = f"dist.get_rank({in_group})"
        self.global_root = (f"dist.get_global_rank(group, {call['root']})" if in_group
                            else str(call["root"]))

    @property
    def reduce_op(self):
        if self._call["op"] == "premul_sum":
            return f"dist._make_nccl_premul_sum({self._call['factor']})"
        return "dist.ReduceOp." + self._call["op"].upper()

    def chunks(self):
        """Spells a tuple of tensors: each rank's chunk of the operand."""
        dim, splits = self._call["dim"] or 0, self._call["splits"]
        if not splits:
            return f"x.chunk({self.size}, {dim})"
        row = f"{splits}[{self.rank}]" if self._call["kind"] in names.EXCHANGING else splits[0]
        return f"x.split({row}, {dim})"

    def sizes(self, default):
        """Spells the sizes of those chunks along the dimension. `default` is that of the parameter
        which takes them."""
        splits = self._call["splits"]
        if splits:
            return (f"{splits}[{self.rank}]" if self._call["kind"] in names.EXCHANGING
                    else str(splits[0]))
        return "None" if default is None else self.even_sizes()

    def received_sizes(self, default):
        splits = self._call["splits"]
        return f"[row[{self.rank}] for row in {splits}]" if splits else self.sizes(default)

    def even_sizes(self):
        return f"[x.size({self._call['dim'] or 0}) // {self.size}] * {self.size}"

    def all_splits(self, default):
        if self._call["splits"] or default is None or self._call["kind"] not in names.EXCHANGING:
            return (repr(self._call["splits"]) if self._call["kind"] in names.EXCHANGING
                    else self.sizes(default))
        return f"[{self.even_sizes()}] * {self.size}"


def _op(call, slot):
    if isinstance(adapters._op_style(slot), str):
        return repr(adapters.Arguments(_as_call(call), None).value(slot))
    return Written(call).reduce_op


def _on_root(call, text):
    return f"{text} if {Written(call).rank} == {call['root']} else None"


# Maps a parameter's source to the text that fills it.
_ARGUMENTS = {
    "tensor": lambda call, slot: "x",
    "group": lambda call, slot: Written(call).process_group,
    "group_name": lambda call, slot: Written(call).process_group + ".group_name",
    "ranks": lambda call, slot: f"dist.get_process_group_ranks({Written(call).group})",
    "size": lambda call, slot: Written(call).size,
    "rank": lambda call, slot: Written(call).rank,
    "global_rank": lambda call, slot: "dist.get_rank()",
    "async": lambda call, slot: str(call["is_async"]),
    "op": _op,
    "average": lambda call, slot: str(call["op"] == "avg"),
    "factor": lambda call, slot: repr(call["factor"]),
    "root": lambda call, slot: str(call["root"]),
    "global_root": lambda call, slot: Written(call).global_root,
    "world_root": lambda call, slot: str(call["root"]),
    "dim": lambda call, slot: str(call["dim"] or 0),
    "gather_dim": lambda call, slot: f"{(call['dim'] or 0) + 1} % max(x.dim(), 1)",
    "splits": lambda call, slot: Written(call).all_splits(slot.default),
    "input_splits": lambda call, slot: Written(call).sizes(slot.default),
    "output_splits": lambda call, slot: Written(call).received_sizes(slot.default),
    "pairs": lambda call, slot: repr([tuple(pair) for pair in call["pairs"]]),
    "chunks": lambda call, slot: f"list({Written(call).chunks()})",
    "scatter_list": lambda call, slot: _on_root(call, f"list({Written(call).chunks()})"),
    "outputs": lambda call, slot: "outputs",
}
# Everybody passes these without a name.
_BY_POSITION = ("tensor", "chunks", "outputs", "scatter_list")


def _argument(call, slot):
    if slot.source not in _ARGUMENTS:
        raise NotWritable(f"what its parameter `{slot.name}` is given is made at run time")
    return _ARGUMENTS[slot.source](call, slot)


def _arguments(binding, slots, call):
    texts, by_name = [], False
    for slot in slots:
        if slot.kind == slot.kind.VAR_KEYWORD or (slot.kind == slot.kind.VAR_POSITIONAL
                                                  and slot.source is None):
            continue
        if adapters._keeps_default(slot, _as_call(call)):
            if binding.by_position:
                texts.append(repr(slot.default))
            elif slot.kind != slot.kind.POSITIONAL_ONLY:
                by_name = True  # what follows would be at the wrong position
            continue
        text = _argument(call, slot)
        if slot.kind == slot.kind.VAR_POSITIONAL:
            texts.append(f"*{text}" if slot.source == "chunks" else text)
            continue
        by_name = not binding.by_position and slot.kind != slot.kind.POSITIONAL_ONLY and \
            (by_name or slot.kind == slot.kind.KEYWORD_ONLY or slot.source not in _BY_POSITION)
        texts.append(f"{slot.name}={text}" if by_name else text)
    return ", ".join(texts)


def _as_call(call):
    """Makes a Call for functions that ask about it without running it. Its one rank stands for a
    group or the world."""
    size = call["size"] or 1
    group = RankGroup("group" if call["size"] else "", tuple(range(size)), 0, None)
    splits = tuple(map(tuple, call["splits"])) if call["splits"] else None
    return Call(call["kind"], call["step"], call["op"], call["factor"], call["root"], call["dim"],
                splits, call["pairs"], group)


def _outputs(slot, call):
    """Returns the lines that make a parameter's buffers, as adapters_results.empty_outputs makes
    them."""
    written, dim, kind = Written(call), call["dim"] or 0, call["kind"]
    as_list = "list" in slot.name or slot.name.endswith("s")
    if kind in names.EXCHANGING:
        pieces = f"x.new_empty((*x.shape[:{dim}], size, *x.shape[{dim}:][1:]))"
        sizes = written.received_sizes(())
        return [f"outputs = [{pieces} for size in {sizes}]"] if as_list else \
            [f"size = sum({sizes})", f"outputs = {pieces}"]
    if kind in names.GATHERING:
        lines = ["outputs = [torch.empty_like(x, memory_format=torch.contiguous_format)"
                 f" for _ in range({written.size})]"]
        if not as_list:
            lines = ["shape = list(x.shape) or [1]", f"shape[{dim}] *= {written.size}",
                     "outputs = x.new_empty(shape)"]
        return (lines + [f"outputs = {_on_root(call, 'outputs')}"] if TRAITS[kind].only_on_root
                else lines)
    if kind in names.CUTTING:
        return [f"outputs = x.new_empty({written.chunks()}[{written.rank}].shape)"]
    return ["outputs = torch.empty_like(x, memory_format=torch.contiguous_format)"]


def _result(binding, call):
    """Returns the lines that make a step's result of `y`, what the function returned."""
    kind, dim = call["kind"], call["dim"]
    joined = "torch.stack(list(y))" if dim is None else f"torch.cat(list(y), {dim})"
    if kind in names.GATHERING:
        lines = ["if isinstance(y, (list, tuple)):", f"    return {joined}"]
        if dim is None:
            return lines + ["return y if y.dim() > x.dim() else y.unflatten(0, (-1, x.size(0)))"]
        return lines + [f"return torch.cat(y.unbind(0), {dim}) if y.dim() > x.dim() else y"]
    if kind in names.EXCHANGING:
        if binding and binding.names("gather_dim"):
            cut = f"y.tensor_split({Written(call).size}, {_ARGUMENTS['gather_dim'](call, None)})"
            return [f"y = y if isinstance(y, (list, tuple)) else {cut}",
                    f"return torch.cat(list(y), {dim or 0})"]
        return [f"return torch.cat(list(y), {dim or 0}) if isinstance(y, (list, tuple)) else y"]
    if kind in names.IN_PLACE:
        return ["y = y[0] if isinstance(y, (list, tuple)) else y",
                "return x if y is None else y  # None: worked in place"]
    return ["return y[0] if isinstance(y, (list, tuple)) else y"]


def _off_root(call):
    """Returns the lines that give zeros off root, attached to `y`, what the function returned."""
    kind, dim = call["kind"], call["dim"]
    if not TRAITS[kind].only_on_root:
        return []
    written = Written(call)
    lines, shape = [], "x.shape"
    if kind == "gather":
        lines = [f"shape = joined(empty_pieces(x, {written.group}, {dim}), {dim}).shape"]
        shape = "shape"
    return [*lines, f"if {written.rank} != {call['root']}:",
            f"    return zeros_attached({shape}, y, x)"]


# Lists the parameters that src/rank/library_operator.cpp knows, by source.
_OF_OPERATORS = {
    "op": ("op", "reduce_op", "reduceOp", "reduction"),
    "group": ("group", "group_name", "process_group", "pg"),
    "root": ("root", "group_src", "group_dst"),
    "global_root": ("src", "dst"),
    "dim": ("dim", "axis", "gather_dim", "scatter_dim"),
    "size": ("group_size", "world_size"),
    "rank": ("rank",),
    "factor": ("factor",),
    "splits": ("splits", "split_sizes"),
}


def _operator_argument(call, argument):
    source = next((s for s, known in _OF_OPERATORS.items() if argument.name in known), None)
    if source is None:
        raise NotWritable(f"what its parameter `{argument.name}` is given is made at run time")
    if source == "op" and str(argument.type) == "str":
        return f"{argument.name}={call['op']!r}"
    if source == "op" and str(argument.type) == "int":
        return f"{argument.name}={int(getattr(dist.ReduceOp.RedOpType, call['op'].upper()))}"
    if source == "group" and str(argument.type) == "str":
        source = "group_name"
    if source == "splits":
        return f"{argument.name}={Written(call).sizes(())}"
    return f"{argument.name}={_ARGUMENTS[source](call, argument)}"


def _operator_source(text, call):
    """Returns the library's path, and the source for library:FILE.so:NAMESPACE::OP. Loads the
    library."""
    text, mode = modes.split_mode(text[len("library:"):])
    file, _, name = text.rpartition("::")
    file, _, space = file.rpartition(":")
    path = os.path.abspath(file)
    torch.ops.load_library(path)
    arguments = getattr(getattr(torch.ops, space), name).default._schema.arguments
    operand = next(a for a in arguments if str(a.type) == "Tensor")
    others = [a for a in arguments if a is not operand]
    written = [_operator_argument(call, a) for a in others if not a.has_default_value()
               or any(a.name in known for known in _OF_OPERATORS.values())]
    line = f"y = torch.ops.{space}.{name}({', '.join(['x', *written])})"
    copied = [] if mode == "shared" else _COPIED
    lines = [*copied, line, *_off_root(call), *_result(None, call)]
    return path, {"text": "\n".join(lines) + "\n", "around": ""}


def _function_source(part, call, imports):
    """Returns the source for a function of the user's."""
    binding = part._binding
    place, _ = subjects.place_and_name(modes.split_mode(call["subject"])[0])
    name = binding.label[len(place) + 1 :]
    written_out, defined = getattr(binding.function, "written_out", None), []
    function = "call" if written_out else imports.function(place, name)
    if written_out:
        text = written_out.source(lambda of_module: imports.function(place, of_module))
        defined = [f"def call({', '.join(slot.name for slot in binding.slots)}):",
                   f"    return {text}"]
    elif binding.makes_instance:
        function += f"({_arguments(binding, binding.constructor, call)})"
    elif getattr(binding.function, "__name__", "") == "apply" and not name.endswith("apply"):
        function += ".apply"
    if part.mode == "compile":
        function = f"compiled({function})"
    copied = _COPIED if call["kind"] in names.IN_PLACE and part.mode != "shared" else []
    made = [line for slot in binding.slots if slot.source == "outputs"
            for line in _outputs(slot, call)]
    arguments = _arguments(binding, binding.slots, call)
    lines = [*copied, *made, *defined, f"y = {function}({arguments})"]
    if call["is_async"]:
        lines.append("y = waited(y)")
    if made:
        lines.append("y = outputs if y is None else y")
    return "\n".join([*lines, *_off_root(call), *_result(binding, call)]) + "\n"


def _torch_source(binding, call, imports):
    """Returns the source for one of torch's functions. It calls the function of torch_calls.py,
    which the script pastes."""
    run, function = binding.takes(_as_call(call))
    module = "fc" if binding.is_functional else "nn"
    imports.torch_module(function.__module__, module)
    name = f"{module}.{function.__name__}"
    if binding.mode == "compile":
        name = f"compiled({name})"
    elif binding.mode == "async":  # of a functional collective; else its first use waits
        name = f"explicitly_waited({name})"
    written, traits = Written(call), TRAITS[call["kind"]]
    is_text = binding.is_functional and call["op"] != "premul_sum"
    texts = {
        "op": repr(call["op"]) if is_text else written.reduce_op,
        "root": call["root"],
        "dim": call["dim"] if traits.shape == "joined" else call["dim"] or 0,
        "splits": call["splits"],
        "pairs": [tuple(pair) for pair in call["pairs"]],
    }
    options = "".join(f", {option}={texts[option]}" for option in traits.options
                      if option != "splits" or call["splits"])
    return f"return {run}({name}, x, {written.process_group}{options})\n"


def _part_source(part, call, imports):
    if isinstance(part, subjects._Module):
        part = part._part(call["kind"])
    around = part.mode if part.mode in ("async", "compile") else ""
    if isinstance(part, subjects._BuiltIn):
        return {"builtin": part._name, "around": around}
    call = {**call, "is_async": around == "async"}
    binding = part._binding
    if isinstance(binding, adapters_torch.TorchBinding):
        text = _torch_source(binding, call, imports)
    else:
        text = _function_source(part, call, imports)
    return {"text": text, "around": "async" if around == "async" else ""}


def _setups(subject, imports):
    """Returns the functions that get the process groups."""
    return [imports.function(setup._place, "setup") for setup in subject._setups.values()
            if setup._function is not None]


def _mode(subject):
    """Returns the mode that the whole forward runs in. Raises NotWritable if there are several."""
    found = {part.mode for part in [*subject._by_kind.values(), subject._others]}
    found -= {"", "async", "compile", "shared"}
    if len(found) > 1:
        raise NotWritable(f"its parts run in several modes, {' and '.join(sorted(found))}")
    return found.pop() if found else ""


def _code_name(text, code, imports):
    """Returns the name in the script of a function that a step calls."""
    function = code.function(text)  # so that its errors read as in a run
    place, _, name = text[len("python:"):].rpartition(":")
    is_apply = getattr(function, "__name__", "") == "apply" and not name.endswith("apply")
    return imports.function(place, name) + (".apply" if is_apply else "")


def answer_of(request):
    imports = Imports(set(request["names"]) - (set() if request["functions"] else _OF_TRUTH))
    answer = {"calls": {}, "functions": {}, "setups": [], "mode": ""}
    libraries = []
    subject = subjects.load_subject(request["subject"]) if "python:" in request["subject"] else None
    for call in request["calls"]:
        if call["subject"].startswith("library:"):
            path, written = _operator_source(call["subject"], {**call, "is_async": False})
            libraries += [path] if path not in libraries else []
        elif subject is None:  # the operator's library leaves it to a built-in
            written = {"builtin": call["subject"], "around": ""}
        else:
            written = _part_source(subject._part(_as_call(call)), call, imports)
        answer["calls"][call["step"]] = written
    code = Code()
    for step in request["functions"]:
        answer["functions"][step["step"]] = {
            "function": _code_name(step["code"], code, imports),
            "simulate": _code_name(step["simulate"], code, imports) if step["simulate"] else "",
        }
    if subject is not None:
        answer["setups"], answer["mode"] = _setups(subject, imports), _mode(subject)
    answer["imports"] = imports.text() + "".join(f"\ntorch.ops.load_library({path!r})\n"
                                                 for path in libraries)
    return answer


def answer_or_error(request):
    try:
        return answer_of(request)
    except NotWritable as error:
        return {"error": f"the call of {request['subject']} cannot be written out: {error}. Write a"
                " function of `x` around it and name that"}
    except (SubjectError, NotOffered) as error:
        return {"error": str(error)}


def main(requests):
    print("\n" + json.dumps([answer_or_error(request) for request in json.loads(requests)]))
