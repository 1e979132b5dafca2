"""Finds names for the modules that a step calls, although it does not tell its model."""

import gc

import torch

from .variables import plain


def output_name(module, call=0, index=0):
    """Returns text such as "head (call 2) (tensor 3)" for a module's output."""
    return ((module or "the model") + (f" (call {call + 1})" if call else "")
            + (f" (tensor {index + 1})" if index else ""))


def names_of(modules, wanted):
    """Returns {key: name} for called modules {key: module}, with distinct names as the model's
    named_modules() has them, without those of wrappers. `wanted` has names of parameters. One run's
    model may be inside another module (a loss that holds it, a trainer) and the other run's not, so
    both are named as `wanted` has it."""
    own = _own_names(modules)
    parameters = [plain(f"{own[key]}.{name}".removeprefix("."))
                  for key, module in modules.items() for name, _ in module.named_parameters()]
    rename = _Renaming(parameters, wanted)
    found, taken = {}, set()
    for key, module in modules.items():
        name = rename(own[key])
        if name in taken:  # A wrapper has the name of what it wraps.
            name = f"{name} ({type(module).__name__})".strip()
        while name in taken:
            name += "'"
        taken.add(name)
        found[key] = name
    return found


def _own_names(modules):
    """Returns {key: name} within the module's root, "" for a root itself, or "(its class)" if no
    root has it."""
    alive = [m for m in gc.get_objects() if _is_module(m)]
    children = {id(child) for m in alive for child in m._modules.values() if child is not None}
    order = {id(m): i for i, m in enumerate(modules.values())}
    roots = [m for m in alive if id(m) not in children]
    roots.sort(key=lambda root: min((order[id(m)] for m in root.modules() if id(m) in order),
                                    default=len(order)))
    found = {}
    for root in roots:
        for name, module in root.named_modules():
            found.setdefault(id(module), plain(name))
    return {key: found.get(id(m), f"({type(m).__name__})") for key, m in modules.items()}


def _is_module(x):
    try:  # isinstance() would ask proxies, which warn or do more when asked.
        return issubclass(type(x), torch.nn.Module) and "_modules" in x.__dict__
    except Exception:
        return False


class _Renaming:
    """Finds the prefix that recorded names have in addition (`strip`) or lack (`add`)."""

    def __init__(self, recorded, wanted):
        counts, self.strip, self.add = {}, "", ""
        recorded, wanted = set(recorded), set(wanted)
        if recorded & wanted:
            return
        for name in recorded:
            for prefix, rest in _splits(name):
                if rest in wanted:
                    counts[prefix, ""] = counts.get((prefix, ""), 0) + 1
        for name in wanted:
            for prefix, rest in _splits(name):
                if rest in recorded:
                    counts["", prefix] = counts.get(("", prefix), 0) + 1
        best = max(counts, key=counts.get, default=None)
        if best and 2 * counts[best] >= len(wanted):
            self.strip, self.add = best

    def __call__(self, name):
        if self.strip and (name + ".").startswith(self.strip):
            return name[len(self.strip):]
        return (self.add + name).rstrip(".") if not name.startswith("(") else name


def _splits(name):
    """Returns [(a name's first parts, the rest)], with no first parts at the beginning."""
    parts = name.split(".")
    return [("".join(part + "." for part in parts[:i]), ".".join(parts[i:]))
            for i in range(len(parts))]
