"""Makes a subject of a call written out: `_Gather.apply(group, x, dim, False)[0]`, in the user's
module.

The call becomes a function. Its parameters are the names in the text for which a collective's call
has a value. Everything that works for functions then works for it.
"""

import ast
import builtins
import difflib
import inspect
import symtable

from . import adapters_loading
from . import adapters_names as names
from .call import SubjectError

# These names mean the call's values, even if the module has the same names.
_KNOWN = (
    "x", "tensors", "group", "process_group", "pg", "group_name", "ranks", "op", "reduce_op",
    "average", "factor", "src", "dst", "root", "group_src", "group_dst", "dim", "axis",
    "gather_dim", "scatter_dim", "splits", "input_split_sizes", "output_split_sizes",
    "scatter_list", "pairs", "world_size", "group_size", "rank", "global_rank", "labels",
    "async_op")
_FORM = "it is of the form NAME(ARGUMENTS)..., such as Gather.apply(x, group, dim)"


def is_written_out(name):
    return "(" in name


def called(name):
    """Returns what a written-out call calls first (`_Gather.apply`), or the whole of a plain
    name."""
    return name.partition("(")[0]


def function_of(text, kind, module, place):
    """Returns the function that evaluates `text` as an implementation of `kind`. Raises
    SubjectError."""
    label = f"{place}:{text}"
    first = _first_name(text, label)
    target = adapters_loading.find_name(module, first, place)
    _check_is_called(target, text, first, label)
    parameters, others = [], []
    for name in _free_names(text):
        (parameters if _is_parameter(name, kind, module, text) else others).append(name)
    for name in others:
        if not hasattr(module, name) and not hasattr(builtins, name):
            raise SubjectError(f"{label}: {_unknown(name, kind, module, place)}")
    if not set(parameters) & {"x", "tensors", "scatter_list"}:
        raise SubjectError(f"{label}: it has no operand, which is called x")
    if kind == "send_recv" and "pairs" not in parameters:
        raise SubjectError(f"{label}: it does not say between which ranks it sends; `pairs` is the"
                           " list of (source, destination) in the group")
    # Buffers go before the operand, as in c10d.
    parameters.sort(key=lambda name: names.source_of(name, kind) is not None
                    or not names.is_output(name, ["x"]))
    # A module with __getattr__ finds these only when asked.
    lazy = [n for n in others if n not in vars(module) and hasattr(module, n)]
    code = compile(f"lambda {', '.join(lazy)}: lambda {', '.join(parameters)}: ({text}\n)",
                   "<call>", "eval")
    function = eval(code, vars(module))(*(getattr(module, n) for n in lazy))
    function.__name__ = function.__qualname__ = first
    function.written_out = Written(text, tuple(n for n in others if hasattr(module, n)))
    return function


class Written:
    """Holds the text of a call and which of its names are the module's."""

    def __init__(self, text, of_module):
        self._text = text
        self._of_module = of_module

    def source(self, spelled):
        """Returns the call as a script spells it; `spelled(name)` is a module's name there. Raises
        SubjectError if the module's names cannot be told apart from others."""
        lines = self._text.splitlines()
        tree = list(ast.walk(ast.parse(self._text, mode="eval")))
        nodes = [n for n in tree if isinstance(n, ast.Name) and n.id in self._of_module]
        # Before Python 3.12, ast does not give the position of a name in an f-string.
        in_texts = {id(n) for text in tree if isinstance(text, ast.JoinedStr)
                    for n in ast.walk(text)}
        bound = {n.id for n in nodes if isinstance(n.ctx, ast.Store)} | {
            n.arg for n in tree if isinstance(n, ast.arg)}
        if bound & set(self._of_module) or any(id(n) in in_texts for n in nodes):
            raise SubjectError(f"{self._text} cannot be written out in a script, as names of the"
                               " module stand in an f-string, or for something else, too: write a"
                               " function of `x` around it and name that")
        for node in sorted(nodes, key=lambda n: (n.lineno, n.col_offset), reverse=True):
            line = lines[node.lineno - 1].encode()
            lines[node.lineno - 1] = (line[: node.col_offset] + spelled(node.id).encode()
                                      + line[node.end_col_offset :]).decode()
        return " ".join(lines)


def _first_name(text, label):
    """Returns `_Gather.apply` for `_Gather.apply(x)[0]`. Raises SubjectError if it is not such a
    call."""
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        words = getattr(error, "msg", None) or str(error)
        raise SubjectError(f"{label}: {words}; {_FORM}") from None
    links = []
    while isinstance(node, (ast.Call, ast.Subscript, ast.Attribute)):
        links.append(node)
        node = node.func if isinstance(node, ast.Call) else node.value
    names_first = []
    while links and isinstance(links[-1], ast.Attribute):
        names_first.append(links.pop().attr)
    if not isinstance(node, ast.Name) or not links or not isinstance(links[-1], ast.Call):
        raise SubjectError(f"{label}: {_FORM}")
    return ".".join([node.id, *names_first])


def _check_is_called(target, text, first, label):
    import torch

    if inspect.isclass(target) and issubclass(target, torch.autograd.Function):
        raise SubjectError(f"{label}: {first} is an autograd.Function: write"
                           f" {first}.apply{text[len(first):]}")
    if not callable(target):
        raise SubjectError(f"{label}: {first} is not callable: it is of type"
                           f" {type(target).__name__}")


def _free_names(text):
    """Returns the text's free names in the order of their first use."""
    free = set()
    tables = [symtable.symtable(f"lambda: ({text}\n)", "<call>", "eval")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        if table.get_type() == "function":
            free |= {s.get_name() for s in table.get_symbols() if s.is_global()}
    nodes = [n for n in ast.walk(ast.parse(text, mode="eval")) if isinstance(n, ast.Name)]
    ordered = sorted(nodes, key=lambda n: (n.lineno, n.col_offset))
    return list(dict.fromkeys(n.id for n in ordered if n.id in free))


def _is_parameter(name, kind, module, text):
    """Returns whether the name is one of the call's values. A known name is, unless the text calls
    it; another is only if neither the module nor builtins has it."""
    is_asked_for = _is_asked_for(name, kind)
    if is_asked_for and name in _KNOWN:
        return not (hasattr(module, name) and name in _names_called(text))
    return is_asked_for and not hasattr(module, name) and not hasattr(builtins, name)


def _is_asked_for(name, kind):
    if name == "tensors":
        return kind in names.CUTTING + names.EXCHANGING
    if name == "x" or names.source_of(name, kind) is not None:
        return True
    return name not in _KNOWN and names.is_output(name, ["x"])


def _names_called(text):
    return {n.func.id for n in ast.walk(ast.parse(text, mode="eval"))
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def _unknown(name, kind, module, place):
    if name in _KNOWN:
        return f"{kind} has no `{name}`"
    known = [n for n in _KNOWN if _is_asked_for(n, kind)]
    near = difflib.get_close_matches(name, [*known, *vars(module), *vars(builtins)], 1, 0.7)
    hint = f" (did you mean {near[0]}?)" if near else f"; of the call it can be {', '.join(known)}"
    return f"`{name}` is neither in {place} nor of the call{hint}"
