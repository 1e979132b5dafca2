"""Evaluates `--input` of the command line: small expressions for tensors in the scenario language,
to which random tensors are added.

    randn(4, 3)    arange(6.).reshape(2, 3) + rank    [ones(2), None]    3    "sum"

Functions of torch may be named without `torch.`; `rank` and `world_size` are known. Random tensors
differ from rank to rank and from input to input, and are the same in every run.
"""

import ast
import re

import torch

from ..ranks import allow_list
from ..ranks.language import Expression, InvalidExpression

_RANDOM = {"rand": torch.rand, "randn": torch.randn, "randint": torch.randint,
           "randperm": torch.randperm}
_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)(.*)", re.DOTALL)


def split_name(text):
    """Returns ("mask", "ones(3)") for `mask=ones(3)`, and (None, text) if there is no name."""
    match = _NAMED.fullmatch(text)
    return (match[1], match[2].strip()) if match else (None, text.strip())


def value_of(text, number, rank, world_size, dtype):
    """Returns this rank's value of input `number`'s expression. Raises InvalidExpression."""
    if not text:
        raise InvalidExpression("an expression is empty")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidExpression(f"{getattr(error, 'msg', None) or error}: {text}") from None
    if isinstance(tree, ast.Constant) and (tree.value is None or isinstance(tree.value,
                                                                            (str, bool))):
        return tree.value
    known = {"rank": rank, "world_size": world_size}
    generator = torch.Generator().manual_seed(1000 * number + rank)
    tree = _Plain(known, generator, dtype).visit(tree)
    return Expression(ast.unparse(tree), known).value(known, dtype)


class _Plain(ast.NodeTransformer):
    """Adds `torch.` to torch's functions, and replaces random calls by names of made tensors."""

    def __init__(self, known, generator, dtype):
        self._known, self._generator, self._dtype = known, generator, dtype

    def visit_Call(self, node):
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name):
            return node
        name = node.func.id
        if name in _RANDOM:
            return self._random(node)
        if name in allow_list.TORCH and name not in allow_list.PYTHON:
            node.func = ast.Attribute(ast.Name("torch", ast.Load()), name, ast.Load())
        return node

    def _random(self, node):
        if node.keywords:
            raise InvalidExpression(f"{node.func.id} takes no keyword arguments here")
        arguments = [Expression(ast.unparse(a), self._known).value(self._known, self._dtype)
                     for a in node.args]
        kind = {"generator": self._generator}
        if node.func.id in ("rand", "randn"):
            kind["dtype"] = self._dtype
        try:
            made = _RANDOM[node.func.id](*arguments, **kind)
        except (TypeError, RuntimeError, ValueError) as error:
            raise InvalidExpression(f"{str(error).splitlines()[0]} ({ast.unparse(node)})") from None
        name = f"random_{len(self._known)}"
        self._known[name] = made
        return ast.Name(name, ast.Load())
