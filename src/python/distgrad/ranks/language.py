"""Evaluates the scenario language (docs/expressions.md) with Python itself.

An expression is parsed, and its whole tree is checked against what is allowed, before anything of
it is compiled or run. Python then gives it its meaning, so nothing here can differ from Python. The
driver's front end also checks types; that is not repeated here, since it evaluates each expression
as well and refuses the case.
"""

import ast
import builtins
import contextlib
import operator
import resource

import torch

from . import allow_list as allowed

_MOST_DEPTH = 200
_MOST_TURNS = 100_000  # of a loop; also elements of a list that is not written out
_MOST_BYTES = 4 << 30  # held beyond what the process has already
_INTEGER_BITS = 63

_REFUSED_KEYWORDS = frozenset(
    "device generator layout memory_format names out pin_memory requires_grad".split())
# These are fields of torch's named results. On other values such an attribute is at most a method,
# which cannot be called.
_FIELDS = frozenset(
    "values indices min max sign logabsdet eigenvalues eigenvectors Q R U S Vh std mean var".split()
)


class InvalidExpression(Exception):
    """The expression is not part of the language, or has no value. The message stands alone."""


class Expression:
    """Holds one checked, compiled expression. `names` are the names of `known` that it uses. Raises
    InvalidExpression."""

    def __init__(self, text, known):
        check = _Check(frozenset(known))
        tree = _parsed(text)
        body = check.visit(tree.body, 0)
        tree = ast.fix_missing_locations(ast.Expression(body))
        try:
            self._code = compile(tree, "<expression>", "eval")
        except (RecursionError, MemoryError, ValueError, SyntaxError) as error:
            raise InvalidExpression(f"the expression cannot be compiled: {error}") from None
        self.text = text
        self.names = frozenset(check.used)

    def evaluate(self, values, dtype, accept_number=False, device=None):
        """Returns a tensor. `dtype` is the default dtype of constructors and that of a number's
        tensor; constructors make tensors on `device`. Raises InvalidExpression."""
        result = self.value(values, dtype, device)
        if isinstance(result, torch.Tensor):
            return result
        if accept_number and isinstance(result, (bool, int, float)):
            return torch.tensor(result, dtype=dtype)
        raise InvalidExpression(f"this is a {type(result).__name__}, not a tensor: {self.text}")

    def value(self, values, dtype, device=None):
        """Returns the value, whatever it is: a tensor, a number, a list. Raises
        InvalidExpression."""
        scope = dict(_LANGUAGE)
        scope.update((name, values[name]) for name in self.names)
        before = torch.get_default_dtype()
        try:
            torch.set_default_dtype(dtype)
            with _MemoryBound(device), _constructing_on(device):
                return eval(self._code, scope)
        except InvalidExpression:
            raise
        except Exception as error:
            # torch.utils.checkpoint raises this to stop once it has what it needs.
            if type(error).__name__ == "_StopRecomputationError":
                raise
            raise InvalidExpression(f"{error} ({type(error).__name__} in {self.text})") from error
        finally:
            torch.set_default_dtype(before)


def inner_of_gradient_norm(loss):
    """Returns what a loss squared_gradient_norm(...) has in its parentheses; None for another loss.
    The driver's front end has checked that the parentheses are the whole loss."""
    text = loss.strip(" \t")
    return (text[len("squared_gradient_norm("):-1]
            if text.startswith("squared_gradient_norm(") else None)


def _parsed(text):
    if not text.isascii():  # Python would take some other characters for ASCII ones
        raise InvalidExpression("only ASCII characters are allowed in an expression")
    if "\n" in text or "\r" in text:
        raise InvalidExpression("an expression is one line")
    try:
        return ast.parse(text.strip(" \t"), "<expression>", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidExpression(f"{getattr(error, 'msg', None) or error}: {text}") from None


def _constructing_on(device):
    return contextlib.nullcontext() if device is None or device.type == "cpu" else device


class _MemoryBound:
    """Makes allocations fail that would take the process far beyond what it holds. Does nothing on
    GPUs, as CUDA maps their memory into the process; a tensor that does not fit is then CUDA's
    error."""

    def __init__(self, device):
        self._bounds = device is None or device.type == "cpu"

    def __enter__(self):
        if not self._bounds:
            return
        self._before = resource.getrlimit(resource.RLIMIT_DATA)
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[5]) * resource.getpagesize()
        soft, hard = self._before
        bounds = [held + _MOST_BYTES] + [b for b in (soft, hard) if b != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (builtins.min(bounds), hard))

    def __exit__(self, *_):
        if self._bounds:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)


# ---- the check


class _Check:
    """Walks the tree and refuses node types without a method here. Returns the tree to compile: the
    same, but operators on numbers and the turns of loops are bounded."""

    def __init__(self, known):
        self._known = known
        self._bound = []  # names that the surrounding comprehensions bind
        self.used = set()

    def visit(self, node, depth):
        if depth > _MOST_DEPTH:
            raise InvalidExpression("the expression is nested too deeply")
        visit = getattr(self, "_" + type(node).__name__.lower(), None)
        if visit is None:
            raise InvalidExpression(f"{type(node).__name__} is not part of the scenario language")
        return visit(node, depth + 1)

    def _all(self, nodes, depth):
        return [self.visit(node, depth) for node in nodes]

    # -- values

    def _constant(self, node, depth):
        if node.value is Ellipsis or isinstance(node.value, (str, bytes, complex)):
            raise InvalidExpression(f"{node.value!r} cannot stand here")
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            _within_64_bits(node.value)
        return node

    def _name(self, node, depth):
        if node.id in self._bound:
            return node
        if node.id not in self._known:
            what = "a module" if node.id == "torch" else "unknown"
            raise InvalidExpression(f'the name "{node.id}" is {what}')
        self.used.add(node.id)
        return node

    def _tuple(self, node, depth):
        node.elts = self._all(node.elts, depth)
        return node

    _list = _tuple

    def _attribute(self, node, depth):
        dotted = self._dotted(node)
        if dotted is not None:
            plain = dotted[len("torch.") :]
            if plain in allowed.DTYPES or plain in allowed.CONSTANTS:
                return node
            raise InvalidExpression(f"{dotted} is not a value and is not allowed in a scenario")
        if node.attr not in allowed.ATTRIBUTES and node.attr not in _FIELDS:
            raise InvalidExpression(f".{node.attr} is not allowed in a scenario")
        node.value = self.visit(node.value, depth)
        return node

    def _dotted(self, node):
        """Returns "torch.linalg.det" or the like; None if it does not begin with the module
        torch."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        is_torch = isinstance(node, ast.Name) and node.id == "torch" and bool(parts)
        return ".".join(["torch", *reversed(parts)]) if is_torch else None

    def _subscript(self, node, depth):
        node.value = self.visit(node.value, depth)
        node.slice = self._index(node.slice, depth)
        return node

    def _index(self, node, depth):
        if isinstance(node, ast.Tuple):
            node.elts = [self._index_item(item, depth) for item in node.elts]
            return node
        return self._index_item(node, depth)

    def _index_item(self, node, depth):
        if isinstance(node, ast.Constant) and node.value is Ellipsis:
            return node
        if isinstance(node, ast.Slice):
            for part in ("lower", "upper", "step"):
                if getattr(node, part) is not None:
                    setattr(node, part, self.visit(getattr(node, part), depth))
            return node
        return self.visit(node, depth)

    # -- operators

    def _binop(self, node, depth):
        sign = type(node.op).__name__
        if sign not in _OPERATORS:
            raise InvalidExpression(f"{sign} is not part of the scenario language")
        return _calling(sign, [self.visit(node.left, depth), self.visit(node.right, depth)])

    def _unaryop(self, node, depth):
        node.operand = self.visit(node.operand, depth)
        return node

    def _boolop(self, node, depth):
        node.values = self._all(node.values, depth)
        return node

    def _compare(self, node, depth):
        if len(node.ops) != 1:
            raise InvalidExpression("chained comparisons are not part of the scenario language")
        if isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            raise InvalidExpression("'is' is not part of the scenario language; compare with ==")
        node.left = self.visit(node.left, depth)
        node.comparators = self._all(node.comparators, depth)
        return node

    def _ifexp(self, node, depth):
        node.test = self.visit(node.test, depth)
        node.body = self.visit(node.body, depth)
        node.orelse = self.visit(node.orelse, depth)
        return node

    # -- calls

    def _call(self, node, depth):
        self._check_callee(node)
        if isinstance(node.func, ast.Attribute) and self._dotted(node.func) is None:
            node.func.value = self.visit(node.func.value, depth)
        node.args = [self._argument(node, argument, depth) for argument in node.args]
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg in _REFUSED_KEYWORDS or keyword.arg == "inplace":
                raise InvalidExpression(
                    f"the argument {keyword.arg or '**'} is not allowed in a scenario")
            keyword.value = self._argument(node, keyword.value, depth)
        if any(keyword.arg == "rounding_mode" for keyword in node.keywords):
            node.args.insert(0, node.func)
            node.func = ast.Name("<rounded>", ast.Load())
        return node

    def _check_callee(self, node):
        callee = node.func
        if isinstance(callee, ast.Name):
            shadowed = callee.id in self._known or callee.id in self._bound
            if shadowed or callee.id not in allowed.PYTHON:
                raise InvalidExpression(f"{callee.id} is not a function of the scenario language")
            if node.keywords:
                raise InvalidExpression(f"{callee.id} takes no keyword arguments here")
            return
        if not isinstance(callee, ast.Attribute):
            raise InvalidExpression("this is not a function")
        dotted = self._dotted(callee)
        if dotted is None:
            if callee.attr not in allowed.METHODS:
                raise InvalidExpression(f".{callee.attr} is not a pure tensor function and is not"
                                        " allowed in a scenario")
        elif dotted.startswith("torch.nn.functional."):
            self._check_functional(node, callee.attr, dotted)
        else:
            module, _, name = dotted.rpartition(".")
            functions = {"torch": allowed.TORCH, "torch.linalg": allowed.LINALG}.get(module, ())
            if name not in functions:
                raise InvalidExpression(
                    f"{dotted} is not a pure tensor function and is not allowed in a scenario")

    @staticmethod
    def _check_functional(node, name, dotted):
        """Allows only the listed arguments, since some functions work in place if an argument tells
        them to."""
        if dotted != f"torch.nn.functional.{name}" or name not in allowed.FUNCTIONAL:
            raise InvalidExpression(
                f"{dotted} is not a pure tensor function and is not allowed in a scenario")
        if not allowed.FUNCTIONAL[name]:
            return
        positional, _, keyword_only = allowed.FUNCTIONAL[name].partition("*, ")
        names = [_argument_name(a) for a in positional.split(", ") if a]
        others = [_argument_name(a) for a in keyword_only.split(", ") if a]
        if len(node.args) > len(names):
            raise InvalidExpression(
                f"{dotted} takes at most {len(names)} positional arguments here")
        for keyword in node.keywords:
            if keyword.arg not in names + others:
                raise InvalidExpression(f"{dotted} has no argument {keyword.arg} here")

    def _argument(self, call, node, depth):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if getattr(call.func, "attr", "") == "to":  # where it would name a device
                raise InvalidExpression("scenarios run on the device that distgrad chooses")
            return node
        if isinstance(node, ast.GeneratorExp):
            folds = isinstance(call.func, ast.Name) and call.func.id in ("sum", "max", "min")
            if not folds or len(call.args) != 1:
                raise InvalidExpression(
                    "a generator is an argument only of sum, max or min; write [...]")
            return self._comprehension(node, depth)
        return self.visit(node, depth)

    # -- comprehensions

    def _listcomp(self, node, depth):
        return self._comprehension(node, depth)

    def _comprehension(self, node, depth):
        loop = node.generators[0]
        if len(node.generators) != 1 or len(loop.ifs) > 1 or loop.is_async:
            raise InvalidExpression("one 'for' and one 'if' are allowed in a comprehension")
        loop.iter = _calling("each", [self.visit(loop.iter, depth)])
        targets = self._targets(loop.target)
        self._bound += targets
        node.elt = self.visit(node.elt, depth)
        loop.ifs = self._all(loop.ifs, depth)
        del self._bound[len(self._bound) - len(targets) :]
        return node

    @staticmethod
    def _targets(target):
        names = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        for name in names:
            if not isinstance(name, ast.Name) or name.id == "torch" or name.id in _LANGUAGE:
                raise InvalidExpression("a comprehension binds names, and no function's name")
        return [name.id for name in names]


def _argument_name(argument):
    return argument.split("=")[0].split()[-1]


def _calling(name, arguments):
    """Returns a call of one of our functions, whose names no text can spell."""
    return ast.Call(ast.Name(f"<{name}>", ast.Load()), arguments, [])


# ---- what it runs with


def _within_64_bits(value):
    if isinstance(value,
                  int) and value.bit_length() > _INTEGER_BITS and value != -(1 << _INTEGER_BITS):
        raise InvalidExpression("an integer does not fit in 64 bits")
    return value


def _bounded(apply):
    """Returns the operator, which refuses what Python would compute for hours: huge integers, long
    lists."""

    def operate(left, right):
        if isinstance(left, int) and isinstance(right, int):
            too_large = ((apply is operator.pow and right > 0 and left.bit_length() * right > 4096)
                         or (apply is operator.lshift and right > 4096))
            if too_large and left not in (-1, 0, 1):
                raise InvalidExpression("an integer does not fit in 64 bits")
            return _within_64_bits(apply(left, right))
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, (list, tuple)) and isinstance(times, int):
                if len(sequence) * times > _MOST_TURNS:
                    raise InvalidExpression(f"a list has more than {_MOST_TURNS} elements")
        result = apply(left, right)
        if isinstance(result, (list, tuple)) and len(result) > _MOST_TURNS:
            raise InvalidExpression(f"a list has more than {_MOST_TURNS} elements")
        return result

    return operate


def _rounded(divide, *arguments, **options):
    """Divides, but refuses an integer quotient that does not fit, since the processor would end the
    process for it."""
    owner = getattr(divide, "__self__", None)
    operands = [owner] if isinstance(owner, torch.Tensor) else []
    operands += [*arguments, *(options[name] for name in ("input", "other") if name in options)]
    if options["rounding_mode"] == "trunc" and len(operands) == 2:
        dtype = torch.result_type(*operands)
        if dtype in (torch.int64, torch.int32):
            least = torch.iinfo(dtype).min
            dividend, divisor = (torch.as_tensor(x).to(dtype) for x in operands)
            if ((dividend == least) & (divisor == -1)).any():
                name = str(dtype)[len("torch.") :]
                raise InvalidExpression(f"{least} / -1 does not fit into {name}")
    return divide(*arguments, **options)


def _range(*arguments):
    result = range(*arguments)
    if len(result) > _MOST_TURNS:
        raise InvalidExpression(f"a range has more than {_MOST_TURNS} elements")
    return result


def _each(values):
    if hasattr(values, "__len__") and len(values) > _MOST_TURNS:
        raise InvalidExpression(f"a loop has more than {_MOST_TURNS} turns")
    return values


_OPERATORS = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": operator.pow,
    "MatMult": operator.matmul,
    "BitAnd": operator.and_,
    "BitOr": operator.or_,
    "BitXor": operator.xor,
    "LShift": operator.lshift,
    "RShift": operator.rshift,
}

# Lists all that an expression can name besides its inputs.
_LANGUAGE = {
    # No text can spell it. torch's C code imports some of its modules late, through the running
    # frame's builtins.
    "__builtins__": {"__import__": builtins.__import__},
    "torch": torch,
    **{name: getattr(builtins, name) for name in allowed.PYTHON},
    "range": _range,
    "<each>": _each,
    "<rounded>": _rounded,
    **{f"<{name}>": _bounded(apply) for name, apply in _OPERATORS.items()},
}
