"""Takes nested lists, tuples, dicts and dataclasses apart into leaves with paths, and puts them
together again."""

import dataclasses

import torch


def leaves_of(value, path=()):
    """Returns [(path, leaf)] in order; a path is a tuple of keys. None is a leaf."""
    found = []
    for key, child in _children(value):
        found += leaves_of(child, path + (key,))
    return found if _is_container(value) else [(path, value)]


def exchanged(value, replace, path=()):
    """Returns the same structure with each leaf exchanged for replace(path, leaf)."""
    if not _is_container(value):
        return replace(path, value)
    new = {key: exchanged(child, replace, path + (key,)) for key, child in _children(value)}
    if _is_dataclass(value):
        return dataclasses.replace(value, **new)
    if isinstance(value, dict):
        return _like_dict(value, new)
    items = list(new.values())
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def text_of(path, names=()):
    """Returns a path as x, x[0] or batch.mask; `names` are for a first key that is an index."""
    text = ""
    for place, key in enumerate(path):
        if place == 0:
            text = names[key] if isinstance(key, int) and key < len(names) else str(key)
        elif isinstance(key, str) and key.isidentifier():
            text += f".{key}"
        else:
            text += f"[{key!r}]"
    return text


def _is_container(value):
    if isinstance(value, torch.Size):
        return False
    return isinstance(value, (list, tuple, dict)) or _is_dataclass(value)


def _is_dataclass(value):
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _children(value):
    if not _is_container(value):
        return []
    if isinstance(value, dict):
        return list(value.items())
    if _is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)
                if field.init]
    return list(enumerate(value))


def _like_dict(value, new):
    try:
        return type(value)(new)
    except TypeError:  # A defaultdict, for example, cannot be made from a dict.
        copy = value.copy()
        copy.update(new)
        return copy
