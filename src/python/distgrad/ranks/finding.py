"""Lists the functions of a subject for `distgrad audit`: `python -m distgrad.ranks --functions
SUBJECT [KIND,...]`.

Imports the user's module as a rank does, with a torch.distributed world of one, but in its own
process, so the import's time counts for no case. After whatever the module prints, the last line of
the output is MARK and JSON,

    {"functions": [{"kind", "name", "problem"}, ...], "unnamed": [names], "built_in": false}
    or {"error": text}

A `problem` says why the function cannot be called. `unnamed` are Functions that communicate
although their name is not a collective's. `built_in` says that the subject runs every collective by
distgrad's own `in_place` or `reference`.
"""

import json
import sys

MARK = "\x1edistgrad functions "

# These words mean many things. A function of such a name counts only if its kind is asked for.
_PLAIN_WORDS = {"copy", "slice", "split"}


def functions_of(text, asked):
    """Returns the answer for the subject `text`. `asked` lists the only kinds to look for, or is ()
    for those that names tell."""
    from . import adapters_loading, adapters_torch, modes
    from .call import SubjectError
    from .subjects import BUILT_IN, place_and_name

    text, _ = modes.split_mode(text)
    if text[len("python:"):] in BUILT_IN:
        return _answer(built_in=True)
    place, name = place_and_name(text)
    try:
        module = adapters_loading.load_module(place)
        if name is not None:
            return _answer([_named(module, place, name)])
        if module.__name__ in adapters_torch.PLAIN:
            return _answer(built_in=True)
        return _answer(_all(module, place, asked), _unnamed(module))
    except SubjectError as error:
        return {"error": str(error)}


def _answer(functions=(), unnamed=(), built_in=False):
    return {"functions": list(functions), "unnamed": list(unnamed), "built_in": built_in}


def _named(module, place, name):
    from . import adapters_loading, adapters_written
    from .subjects import kind_of

    adapters_loading.find_name(module, adapters_written.called(name), place)
    return {"kind": kind_of(place, name), "name": name, "problem": ""}


def _all(module, place, asked):
    from . import adapters_loading, adapters_names, adapters_torch

    for kind in asked or adapters_names.KINDS:
        if adapters_torch.is_torch_module(module):
            names = adapters_torch.torch_functions(module, kind)
        else:
            names = [n for n, _ in adapters_loading.find_all(module, kind)]
        for name in names:
            if asked or name not in _PLAIN_WORDS:
                yield {"kind": kind, "name": name, "problem": _problem(module, kind, place, name)}


def _problem(module, kind, place, name):
    from .call import SubjectError
    from .subjects import bind

    try:
        bind(getattr(module, name), kind, place, name)
    except SubjectError as error:
        return str(error)
    return ""


def _unnamed(module):
    from . import adapters_loading, adapters_torch

    return () if adapters_torch.is_torch_module(module) else adapters_loading.find_unnamed(module)


def _join_a_world_of_one():
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def main(arguments):
    if not 1 <= len(arguments) <= 2:
        print("usage: python -m distgrad.ranks --functions SUBJECT [KIND,...] (distgrad starts this"
              " itself)", file=sys.stderr)
        return 2
    from . import cuts  # noqa: F401  before any of the user's modules, as in a rank

    _join_a_world_of_one()
    answer = functions_of(arguments[0], tuple(filter(None, "".join(arguments[1:]).split(","))))
    print(f"\n{MARK}{json.dumps(answer)}", flush=True)
    return 0
