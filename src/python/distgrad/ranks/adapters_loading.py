"""Finds the file or module that the user named, and a name in it. Every failure is one
SubjectError."""

import difflib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import sysconfig
import traceback

from . import adapters_names as names
from . import garbage, warned
from .call import SubjectError

_FRAMES = 8

loaded = set()  # places of the user's modules that this process has imported, or tried to
# Maps places that were imported before this rank was forked (importing.py) to what they printed and
# warned of.
imported = {}
refused = {}  # places that could not be imported then, with the reason


def load_module(place):
    """Returns the module of `python:PLACE`. PLACE is a FILE.py, which gets a module name of its own
    and whose folder goes on sys.path, or a MODULE, found with the current folder on sys.path as
    with `python -m`. Raises SubjectError."""
    if place.partition(".")[0] != "torch":
        loaded.add(place)
    if place in refused:
        raise SubjectError(refused[place])
    if place in imported:
        output, found = imported.pop(place)
        print(*output, end="")
        warned.again(found)
    return _load_file(place) if place.endswith(".py") else _load_named(place)


def _load_file(place):
    path = os.path.abspath(os.path.expanduser(place))
    if not os.path.isfile(path):
        folder = os.path.dirname(path)
        there = (sorted(f for f in os.listdir(folder) if f.endswith(".py"))
                 if os.path.isdir(folder) else [])
        raise SubjectError(f"no such file: {place}{_did_you_mean(os.path.basename(path), there)}")
    name = "distgrad_subject_" + "".join(c if c.isalnum() else "_" for c in path)
    if name in sys.modules:
        return sys.modules[name]
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, as import does: pickle and dataclasses look there
    try:
        _run_import(place, lambda: spec.loader.exec_module(module))
    except SubjectError:
        del sys.modules[name]
        raise
    return module


def _load_named(place):
    if "/" in place or not all(part.isidentifier() for part in place.split(".")):
        raise SubjectError(f"{place!r} is neither a module's name nor a file ending in .py")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return _run_import(place, lambda: importlib.import_module(place))
    except ModuleNotFoundError as error:
        raise SubjectError(_missing_module(place, error.name)) from None


def _run_import(place, action):
    """Passes on the error if `place` itself or a parent of it is missing. Any other failure is that
    of the user's code and becomes a SubjectError."""
    try:
        with garbage.left_alone():
            return action()
    except SyntaxError as error:
        text = "".join(traceback.format_exception_only(type(error), error)).rstrip()
        raise SubjectError(f"{place} cannot be read:\n{text}") from None
    except SystemExit as error:
        raise SubjectError(f"{place} ends the program while it is imported"
                           f" (SystemExit: {error.code}): what a script does belongs under"
                           " `if __name__ == \"__main__\":`") from None
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (place + ".").startswith(f"{error.name}."):
            raise
        raise SubjectError(
            f"importing {place} raised {with_frames(error)}{_remedy(error, place)}") from None


def _remedy(error, place):
    """Returns advice on failures that the code has only when it is loaded here, or ""."""
    if "initialize the default process group twice" in str(error):
        return ("\n  torch.distributed is initialised already, with a group of the ranks: leave"
                " that out `if torch.distributed.is_initialized()`, or put it under"
                " `if __name__ == \"__main__\":`")
    if "no known parent package" in str(error) and place.endswith(".py"):
        folder, parts = os.path.dirname(os.path.abspath(place)), [os.path.basename(place)[:-3]]
        while os.path.isfile(os.path.join(folder, "__init__.py")):
            folder, parts = os.path.dirname(folder), [os.path.basename(folder), *parts]
        if len(parts) > 1:
            return (f"\n  the file is a module of a package: in {folder} name it"
                    f" python:{'.'.join(parts)}")
    return ""


def with_frames(error):
    """Formats an exception of the user's code: its line, then the last frames."""
    line = "".join(traceback.format_exception_only(type(error), error)).strip()
    return f"{line}\n{_last_frames(error)}"


def _last_frames(error):
    """Formats the last frames of the user's code, without ours, torch's and the import system's."""
    import torch

    others = tuple(
        os.path.dirname(os.path.abspath(file)) + os.sep for file in (__file__, torch.__file__))
    frames = [f for f in traceback.extract_tb(error.__traceback__)
              if "importlib" not in f.filename and not f.filename.startswith(others)]
    return "".join(traceback.format_list(frames[-_FRAMES:])).rstrip()


def _missing_module(place, missing):
    parent, _, last = missing.rpartition(".")
    try:
        paths = importlib.import_module(parent).__path__ if parent else None
        there = [m.name for m in pkgutil.iter_modules(paths)]
    except Exception:
        there = []
    if parent and parent in sys.modules and hasattr(sys.modules[parent], last):
        return (f"{missing} is no module but a name in {parent}: write"
                f" python:{parent}:{place[len(parent) + 1:]}")
    hint = _did_you_mean(last, [n for n in there if len(n) > 2], parent + "." if parent else "")
    near = [f for f in (place, place.replace(".", "/") + ".py") if os.path.isfile(f)]
    if not hint and near:
        hint = f" (a file is named with its ending: python:{near[-1]})"
    return f"no module named {missing!r} for {sys.executable}{hint}"


def find_name(module, dotted, place):
    """Returns the object `NAME` or `NAME.NAME` in `module`. Raises SubjectError if there is
    none."""
    target, path = module, place
    for part in dotted.split("."):
        if not hasattr(target, part):
            there = [n for n in dir(target)
                     if not n.startswith("__") and callable(getattr(target, n, None))]
            nearest = difflib.get_close_matches(part, there, 3, 0.5)
            listed = nearest + [n for n in there if n not in nearest and not n.startswith("_")]
            shown = ", ".join(listed[:12]) + (", ..." if len(listed) > 12 else "")
            raise SubjectError(f"{path} has no {part!r}{_did_you_mean(part, there)}; it has "
                               + (shown or "no functions or classes"))
        target, path = getattr(target, part), f"{path}.{part}" if path != place else part
    return target


def find_kind(module, kind):
    """Returns (name, object), the first of find_all's, or None if there is none."""
    return next(iter(find_all(module, kind)), None)


def find_all(module, kind):
    """Returns every (name, object) of the module that implements `kind`, found by torch's names for
    it, new and old, and by those of well-known classes. Leaves out what the module imported from
    torch or Python's library, private names if there are public ones, and Functions that one of its
    own functions applies."""
    own = _own_callables(module, kind)
    applied = _applied_in(module)
    for private in (False, True):
        named = [(name, own[name]) for name in _names_of(own, kind, private)]
        found = {id(value): (name, value) for name, value in reversed(named)
                 if name not in applied or not isinstance(value, type)}
        if found:
            return list(found.values())[::-1]
    return []


def find_unnamed(module):
    """Returns the names of the module's own autograd.Functions that communicate although their name
    is not a collective's."""
    named = {id(value) for kind in names.KINDS for _, value in find_all(module, kind)}
    applied = _applied_in(module)
    known = {word for words in names.KIND_NAMES.values() for word in words}
    return [name for name, value in _own_callables(module, None).items() if isinstance(value, type)
            and _is_callable_class(value) and hasattr(value, "apply") and id(value) not in named
            and name not in applied and names.plain_name(name) not in known
            and any(names.kind_called(n) for n in _names_in(value.forward))]


def _applied_in(module):
    """Returns the names that the module's collective functions use. A Function among these is only
    the inside of such a function."""
    own = _own_callables(module, None)
    return {n for kind in names.KINDS for private in (False, True)
            for name in _names_of(own, kind, private) for n in _names_in(own[name])}


def _own_callables(module, kind):
    own = {name: value for name, value in vars(module).items()
           if callable(value) and _is_own(value, module)}
    if hasattr(module, "__getattr__") and kind:  # a lazy package
        own.update({n: getattr(module, n) for n in names.KIND_NAMES[kind]
                    if n not in own and hasattr(module, n)})
    return own


def _names_of(own, kind, private):
    """Yields functions before classes, torch's names first."""
    prefix = "_" if private else ""
    for wanted in names.KIND_NAMES[kind]:
        # Functions of other kinds are built from `_gather`, `_reduce` and `_split`.
        if prefix + wanted in own and (not private or "_" in wanted):
            yield prefix + wanted
    for wanted in names.KIND_NAMES[kind]:
        for name, value in own.items():
            if (isinstance(value, type) and name.startswith("_") == private
                    and names.plain_name(name) == wanted and _is_callable_class(value)):
                yield name


def _names_in(function):
    """Returns the names that a function's code uses; () if it has no Python code."""
    return getattr(getattr(inspect.unwrap(function), "__code__", None), "co_names", ())


def _is_callable_class(value):
    import torch

    return issubclass(value, (torch.autograd.Function, torch.nn.Module))


def _is_own(value, module):
    owner = getattr(value, "__module__", None) or module.__name__
    if owner == module.__name__:
        return True
    if owner.split(".")[0] == "torch":
        return module.__name__.split(".")[0] == "torch"
    file = getattr(sys.modules.get(owner), "__file__", None)
    if file is None:  # built in
        return False
    library = sysconfig.get_paths()["stdlib"]
    return (not file.startswith(library + os.sep) or "site-packages" in file
            or "dist-packages" in file)


def _did_you_mean(word, there, prefix=""):
    near = difflib.get_close_matches(word, list(there), 1, 0.7)
    return f" (did you mean {prefix}{near[0]}?)" if near else ""
