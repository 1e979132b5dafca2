"""Writes what a message shows about a function whose arguments are not known: the call written out,
and an adapter."""

import inspect
import shlex


def is_required(slot):
    return (slot.default is inspect.Parameter.empty
            and slot.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD))


# Maps a source to the pasted adapter's parameter and to the text that it hands on.
_HANDED_ON = {
    "group": ("group", "group"), "group_name": ("group", "group.group_name"),
    "ranks": ("group", "torch.distributed.get_process_group_ranks(group)"),
    "size": ("group", "group.size()"), "rank": ("group", "group.rank()"),
    "global_rank": (None, "torch.distributed.get_rank()"), "async": (None, "False"),
    "op": ("op", "op"), "average": ("op", "op == torch.distributed.ReduceOp.AVG"),
    "factor": ("factor", "factor"), "root": ("root", "root"), "global_root": ("src", "src"),
    "world_root": ("root", "root"), "dim": ("dim", "dim"), "gather_dim": ("dim", "dim"),
    "splits": ("splits", "splits"), "input_splits": ("input_splits", "input_splits"),
    "output_splits": ("output_splits", "output_splits"), "pairs": ("pairs", "pairs"),
    "tensor": ("x", "x"), "chunks": ("x", "[x]"), "scatter_list": ("scatter_list", "scatter_list"),
    "outputs": (None, "torch.empty_like(x)")}


# Maps a source to its name in a call written out, where that differs.
_WRITTEN_OUT = {"ranks": "ranks", "size": "world_size", "rank": "rank", "group_name": "group_name",
                "global_rank": "global_rank", "async": "async_op", "average": "average",
                "gather_dim": "gather_dim", "outputs": "output", "chunks": "tensors"}


def adapter_text(binding, place, owner=""):
    """Returns the end of a message: the call and an adapter to paste, with `...` for what is not
    known. `owner` is the class if the function is a method."""
    kind = binding.kind
    taken, handed, written = ["x"], [], []
    for slot in binding.slots:
        if slot.kind in (inspect.Parameter.VAR_POSITIONAL,
                         inspect.Parameter.VAR_KEYWORD) and slot.source is None:
            continue
        if slot.source is None and not is_required(slot):
            continue
        parameter, text = _HANDED_ON.get(slot.source, (None, "..."))
        if parameter and parameter not in taken:
            taken.append(parameter)
        by_position = binding.by_position or (slot.source in ("tensor", "chunks")
                                              and not any("=" in h for h in handed))
        handed.append(text if by_position else f"{slot.name}={text}")
        of_call = _WRITTEN_OUT.get(slot.source, text)
        written.append(of_call if by_position else f"{slot.name}={of_call}")
    if not binding.slots:
        handed = written = ["x"] + (["..."] if kind != "copy" else [])
    if kind == "send_recv" and "pairs" not in taken:
        taken.append("pairs")
    construct = ", ".join(f"{s.name}=..." for s in binding.constructor if is_required(s))
    made = f"({construct})" if binding.makes_instance else ""
    name = binding.label[len(place) + 1 :]
    if owner:
        name = f"{name.rpartition('.')[0]}(...).{name.rpartition('.')[2]}"
    subject = f"{kind}=python:{place}:{name}{made}({', '.join(written)})"
    path, _, file = place.rpartition("/")
    stem = file[:-3]
    # A file that cannot be imported by name gets the adapter at its own end.
    if file.endswith(".py") and not stem.isidentifier():
        where, imports, adapter, home = f"at the end of {file}", "", f"{kind}_adapter", place
    elif file.endswith(".py"):
        where, imports, adapter = f"in adapters.py beside {file}", f"    import {stem}\n", kind
        name, home = f"{stem}.{name}", f"{path}/adapters.py" if path else "adapters.py"
    else:
        where, imports, adapter = "in a file adapters.py", f"    import {place}\n", kind
        name, home = f"{place}.{name}", "adapters.py"
    call = f"{name}{made}({', '.join(handed)})"
    if "torch." in call:
        imports += "    import torch.distributed\n"
    return (f". Write the call out, as the subject\n\n    {shlex.quote(subject)}\n\n"
            f"or, where more is to be done, an adapter, {where}:\n\n{imports}"
            + ("\n" if imports else "") +
            f"    def {adapter}({', '.join(taken)}):\n        return {call}\n\n"
            f"and name it as the subject: {kind}=python:{home}:{adapter}")
