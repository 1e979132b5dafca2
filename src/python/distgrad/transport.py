"""Sends a function of a test file to another process of the same interpreter.

A function at the top of a module goes by name, and the module is imported there. A function made
inside another one, a lambda, or a script's own function (it may stand under `if __name__ ==
"__main__":`) goes by value: its code, its defaults and what it closes over. A class made inside a
function cannot go.

The other side imports a file that is no importable module (a script, a test file of pytest's) under
the module's own name. A script that was `__main__` becomes `__mp_main__`, as in multiprocessing, so
that `if __name__ == "__main__":` guards it.

It does not use cloudpickle: the interpreter is the user's and need have nothing but torch, and what
cloudpickle sends by value (a script's globals, classes) would be another copy on every rank.
"""

import importlib
import importlib.util
import inspect
import io
import marshal
import os
import pickle
import sys
import types

_MAIN_THERE = "__mp_main__"


class TransportError(TypeError):
    """The value cannot be sent to another process. The text says what to do instead."""


def dumps(value):
    """Returns bytes for loads(). Raises TransportError."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    try:
        pickler.dump(value)
    except TransportError:
        raise
    except Exception as error:  # whatever a __reduce__ raises
        raise TransportError(f"{_named(value)} cannot be sent to the ranks: {error}. Make what it"
                             " uses inside the function itself, or at the top of the"
                             " module") from None
    return pickle.dumps((pickler.files, buffer.getvalue()))


def loads(data):
    """Returns what dumps() was given. Imports the modules that it needs, which may raise
    anything."""
    files, payload = pickle.loads(data)
    return _Unpickler(io.BytesIO(payload), files).load()


def place_of(target):
    """Returns (module's name, dotted name in it) of a function, class or method at the top of a
    module, or of an object that a module holds; None if there is no such name."""
    # An autograd.Function's apply has such an owner; it is built in since torch 2.12 or so.
    owner = getattr(target, "__self__", None)
    own_name = getattr(target, "__name__", "")
    if owner is not None and not isinstance(owner, types.ModuleType) and hasattr(owner, own_name):
        at = place_of(owner)
        return at and (at[0], f"{at[1]}.{target.__name__}")
    name = getattr(target, "__qualname__", None)
    module = sys.modules.get(getattr(target, "__module__", None) or type(target).__module__)
    if module is None:
        return None
    if isinstance(name, str) and _at(module, name) is target:
        return module.__name__, name
    for candidate in (module, sys.modules.get("__main__")):
        for held, value in list(vars(candidate).items()) if candidate else ():
            if value is target and held.isidentifier():
                return candidate.__name__, held
    return None


def line_of(function):
    """Returns "FILE:LINE" of a function's definition, relative if it lies below the working
    directory, or the "FILE:FUNCTION" that distgrad step was given; "" if it has no Python code."""
    code = getattr(inspect.unwrap(getattr(function, "func", function)), "__code__", None)
    if code is None:
        return getattr(function, "text", "")
    return f"{code.co_filename.removeprefix(os.path.join(os.getcwd(), ''))}:{code.co_firstlineno}"


class _Pickler(pickle.Pickler):
    def __init__(self, buffer):
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.files = {}  # module -> its file, for those that import may not find

    def reducer_override(self, value):
        if isinstance(value, types.ModuleType):
            self._note(value.__name__)
            return importlib.import_module, (value.__name__,)
        if isinstance(value, type):
            return self._reduce_class(value)
        if isinstance(value, types.FunctionType):
            return self._reduce_function(value)
        return NotImplemented

    def _reduce_class(self, value):
        if "<locals>" in value.__qualname__ and _at(sys.modules.get(value.__module__),
                                                    value.__qualname__) is not value:
            raise TransportError(f"the class {value.__qualname__} is made inside a function and"
                                 " cannot be sent to the ranks: move it to the top of its module")
        self._note(value.__module__)
        return NotImplemented

    def _reduce_function(self, function):
        self._note(function.__module__)
        by_name = function.__module__ != "__main__"
        if by_name and _at(sys.modules.get(function.__module__), function.__qualname__) is function:
            return NotImplemented
        cells = function.__closure__ or ()
        made = (marshal.dumps(function.__code__), function.__module__, function.__name__,
                function.__qualname__, len(cells))
        filled = [(i, cell.cell_contents) for i, cell in enumerate(cells) if _is_filled(cell)]
        # Sent as state: a function may close over itself, and the pickler knows it by then.
        state = (function.__defaults__, function.__kwdefaults__, dict(function.__dict__), filled)
        return _make_function, made, state, None, None, _fill_function

    def _note(self, name):
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if file and file.endswith(".py") and not getattr(module, "__path__", None):
            self.files[name] = os.path.abspath(file)


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer, files):
        super().__init__(buffer)
        for name, file in files.items():
            _import(name, file)


def _import(name, file):
    if name == "__main__":
        if getattr(sys.modules.get("__main__"), "__file__", None) != file:
            _run_file(_MAIN_THERE, file, "__main__")
        return
    if name in sys.modules:
        return
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise  # the module is there and lacks something itself
        _run_file(name, file)


def _run_file(name, file, *aliases):
    folder = os.path.dirname(file)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    for known in (name, *aliases):
        sys.modules[known] = module  # before it runs, as import does
    spec.loader.exec_module(module)


def _make_function(code, module, name, qualname, cells):
    namespace = sys.modules[module].__dict__
    function = types.FunctionType(marshal.loads(code), namespace, name, None,
                                  tuple(types.CellType() for _ in range(cells)))
    function.__qualname__ = qualname
    return function


def _fill_function(function, state):
    function.__defaults__, function.__kwdefaults__, attributes, filled = state
    function.__dict__.update(attributes)
    for i, content in filled:
        function.__closure__[i].cell_contents = content


def _is_filled(cell):
    try:
        cell.cell_contents
    except ValueError:  # a name that is assigned later, or never
        return False
    return True


def _at(module, dotted):
    found = module
    for part in dotted.split("."):
        found = getattr(found, part, None)
    return found


def _named(value):
    return getattr(value, "__qualname__", None) or type(value).__name__


def check_parameters(name, function, offered):
    """Returns the names of what the function takes of that. Raises TypeError if it wants more."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # no signature to read: the call will tell
        return []
    unknown = [p.name for p in parameters
               if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
               and (p.name not in offered or p.kind == p.POSITIONAL_ONLY)]
    if unknown:
        gets = "gets `rank` and `world_size`, under these names" if offered else "gets no arguments"
        raise TypeError(f"{name} {gets}: what to pass for {', '.join(f'`{u}`' for u in unknown)} is"
                        " not known. Rename it, or wrap the function:"
                        f" lambda{' rank, world_size' if offered else ''}: ...")
    return [p.name for p in parameters if p.name in offered]
