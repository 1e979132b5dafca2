"""Prepares a program before it runs: its expressions, which steps gradients go through, and its
collectives as calls."""

import functools

import torch

from ..words import read_number
from .call import Call
from .collectives import TRAITS
from .language import Expression, InvalidExpression, inner_of_gradient_norm
from .values import rank_names


_SOME_TENSOR = torch.empty(0)


class InvalidAt(InvalidExpression):
    """Carries the JSON pointer of the invalid text."""

    def __init__(self, pointer, message):
        super().__init__(message)
        self.pointer = pointer


class Plan:
    """Holds the program's expressions, and which of its steps gradients go through. The same on
    every rank. Raises InvalidAt."""

    def __init__(self, program):
        known = rank_names(program, 0)
        on_gradient = set()
        for item in program["inputs"]:
            known[item["name"]] = _SOME_TENSOR
            if item.get("requires_grad", True):
                on_gradient.add(item["name"])
        self.steps = []  # per step a tuple of expressions: an operand's, or the arguments'
        self.depends_on_gradient = []
        self.arguments_on_gradient = []
        self.has_code = any("call" in step for step in program["steps"])
        for step in program["steps"]:
            expressions = tuple(_compiled_at(e, known) for e in _expressions_of(step))
            self.steps.append(expressions)
            self.arguments_on_gradient.append(
                [not on_gradient.isdisjoint(e.names) for e in expressions])
            self.depends_on_gradient.append(any(self.arguments_on_gradient[-1]))
            known[step["name"]] = _SOME_TENSOR
            if self.depends_on_gradient[-1]:
                on_gradient.add(step["name"])
        inner = inner_of_gradient_norm(program["loss"]["text"])
        self.loss_is_gradient_norm = inner is not None
        if self.loss_is_gradient_norm and self.has_code:
            raise InvalidAt(program["loss"]["pointer"],
                            "a program that calls code has no squared_gradient_norm")
        loss = program["loss"] if inner is None else {**program["loss"], "text": inner}
        self.loss = _compiled_at(loss, known)
        self.reaches_loss = self._trace_back(program["steps"])

    def _trace_back(self, steps):
        reached = set(self.loss.names)
        result = []
        for step, expressions in zip(reversed(steps), reversed(self.steps)):
            result.append(step["name"] in reached)
            if result[-1]:
                reached.update(*(e.names for e in expressions))
        return result[::-1]


def _expressions_of(step):
    if "call" in step:
        return step["call"]["args"]
    return [step["expr"] if "expr" in step else step["collective"]["operand"]]


def _compiled_at(expression, known):
    try:
        return _compiled(expression["text"], frozenset(known.items()))
    except InvalidExpression as error:
        raise InvalidAt(expression["pointer"], str(error)) from None


@functools.lru_cache(maxsize=4096)
def _compiled(text, known):
    return Expression(text, dict(known))


def call_of(step, groups):
    """Returns the step's Call, or None for a step that is no collective."""
    spec = step.get("collective")
    if spec is None:
        return None
    kind = spec["kind"]
    options = TRAITS[kind].options
    op = spec["op"] if "op" in options else "sum"
    without_dim = None if TRAITS[kind].shape == "joined" else 0
    dim = spec.get("dim", without_dim) if "dim" in options else None
    return Call(
        kind=kind,
        step=step["name"],
        op=op,
        factor=read_number(spec["factor"]) if op == "premul_sum" else None,
        root=spec["root"] if "root" in options else 0,
        dim=dim,
        splits=_rows(spec.get("splits")) if "splits" in options and spec.get("splits") else None,
        pairs=_rows(spec.get("pairs", ())) if "pairs" in options else None,
        group=groups[spec["group"]],
    )


def _rows(lists):
    return tuple(map(tuple, lists))
