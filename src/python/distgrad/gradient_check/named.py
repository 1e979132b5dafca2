"""Checks FILE:FUNCTION before anything is imported or started: whether the file is there and has
such a name. This module needs no torch."""

import ast
import difflib
import os
import sys


class NotThere(Exception):
    """Says in one line for the user what does not exist."""


def parts_of(text):
    """Splits a command-line text into (FILE or module, NAME, "(ARGUMENTS)..." or "")."""
    head = text.partition("(")[0]
    place, _, name = head.rpartition(":")
    return place, name, text[len(head):]


def look_for(text):
    """Raises NotThere if the file, module or name does not exist."""
    place, name, _ = parts_of(text)
    if not place.endswith(".py"):
        _look_for_package(place.partition(".")[0], place)
        return
    path = os.path.abspath(os.path.expanduser(place))
    if not os.path.isfile(path):
        folder = os.path.dirname(path)
        there = os.listdir(folder) if os.path.isdir(folder) else []
        raise NotThere(f"no such file: {place}"
                       + _did_you_mean(os.path.basename(path), filter(_is_python, there)))
    names = _names_in(path)
    first = name.partition(".")[0]
    if names is None or first in names:
        return
    made = [n for n, is_made in names.items() if is_made and not n.startswith("_")]
    nearest = difflib.get_close_matches(first, made, 3, 0.5)
    listed = nearest + [n for n in made if n not in nearest]
    shown = ", ".join(listed[:12]) + (", ..." if len(listed) > 12 else "")
    raise NotThere(f"{place} has no {first!r}{_did_you_mean(first, made)}; it has "
                   + (shown or "no functions or classes"))


def _look_for_package(package, place):
    path = [os.getcwd(), *sys.path]
    try:
        known = package in sys.modules or any(
            finder.find_spec(package, path) for finder in sys.meta_path
            if hasattr(finder, "find_spec"))
    except (ImportError, ValueError, OSError):
        return
    if package.isidentifier() and not known:
        near = [p for p in (place, f"{place}.py") if os.path.isfile(p) and _is_python(p)]
        hint = f" (a file is named with its ending: {near[0]})" if near else ""
        raise NotThere(f"no module named {package!r}{hint}")


def _names_in(path):
    """Returns {name: whether it is a top-level function or class} for the names that the file
    binds; None if that cannot be known, for example because of `from x import *`."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None  # The later import reports what is wrong with the file.
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            if node.name == "*":
                return None
            found[(node.asname or node.name).partition(".")[0]] = False
        elif isinstance(node, ast.Name) and node.id in ("globals", "setattr", "exec", "vars"):
            return None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id, False)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name == "__getattr__":
                return None
            found[node.name] = node in tree.body
    return found


def _did_you_mean(word, there):
    near = difflib.get_close_matches(word, list(there), 1, 0.7)
    return f" (did you mean {near[0]}?)" if near else ""


def _is_python(name):
    return name.endswith(".py")
