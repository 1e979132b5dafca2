"""A call written out as a subject: `_Gather.apply(group, x, dim, False)[0]`, in the user's module.

It becomes a function whose parameters are the names in it that a collective's call has a value for;
all that is known of functions then holds for it.
"""

import ast
import builtins
import difflib
import inspect
import symtable

from . import adapters_loading
from . import adapters_names as names
from .call import SubjectError

# These are the call's, whatever else the module has of that name.
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
    """Of a call written out what it calls first, and of a name that name: `_Gather.apply`."""
    return name.partition("(")[0]


def function_of(text, kind, module, place):
    """The function that evaluates `text` as an implementation of `kind`. Raises SubjectError."""
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
    # Buffers stand before the operand, as in c10d
    parameters.sort(key=lambda name: names.source_of(name, kind) is not None
                    or not names.is_output(name, ["x"]))
    # What the module finds when it is asked, and has not itself
    lazy = [n for n in others if n not in vars(module) and hasattr(module, n)]
    code = compile(f"lambda {', '.join(lazy)}: lambda {', '.join(parameters)}: ({text}\n)",
                   "<call>", "eval")
    function = eval(code, vars(module))(*(getattr(module, n) for n in lazy))
    function.__name__ = function.__qualname__ = first
    function.written_out = Written(text, tuple(n for n in others if hasattr(module, n)))
    return function


class Written:
    """The text of a call, and which of its names are the module's."""

    def __init__(self, text, of_module):
        self._text = text
        self._of_module = of_module

    def source(self, spelled):
        """The call as a script has it; `spelled(name)` is a name of the module there. Raises
        SubjectError where it is not known which names are."""
        lines = self._text.splitlines()
        tree = list(ast.walk(ast.parse(self._text, mode="eval")))
        nodes = [n for n in tree if isinstance(n, ast.Name) and n.id in self._of_module]
        # Before Python 3.12 nobody says where in an f-string a name stands
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
    """`_Gather.apply` of `_Gather.apply(x)[0]`."""
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
    """In the order of their first use."""
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
    """Known names are the call's, unless the call calls them; others only where nothing else is
    meant."""
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
