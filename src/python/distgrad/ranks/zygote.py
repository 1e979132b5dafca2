"""Runs the zygote. It loads torch once and forks a rank whenever the driver asks, so a rank starts
in milliseconds.

It starts no thread and runs no autograd, since neither survives a fork. The user's code is imported
in the ranks, or once in a process that goes on as the zygote (importing.py).
"""

import importlib
import os
import resource
import sys

from . import garbage, times
from .process import adopt_orphans, set_name


def main(arguments):
    preload, places = "", []
    while len(arguments) > 2 and arguments[0] in ("--preload", "--import"):
        if arguments[0] == "--preload":
            preload = arguments[1]
        else:
            places.append(arguments[1])
        arguments = arguments[2:]
    if len(arguments) != 2 or arguments[0] != "--zygote" or not arguments[1].isdigit():
        print("usage: python -m distgrad.ranks [--preload MODULES] [--import PLACE]... --zygote FD"
              " (distgrad starts this itself)", file=sys.stderr)
        return 2
    set_name("dg zygote")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["OMP_NUM_THREADS"] = "1"  # also, a pool of threads would not survive the fork
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    adopt_orphans()
    library, worker = _load(preload)
    times.write()
    if places:
        from .importing import imported

        worker.set_up()
        if imported(places):
            times.write()
    start = library.serve_zygote(int(arguments[1]))
    if start is not None:
        times.forget()
        worker.be_worker(start)
    return 0


def _load(preload):
    """Loads torch, and with the worker all that every rank needs. `preload` names more of torch's
    modules."""
    times.note_interpreter()
    with times.spent_in("torch"), garbage.left_alone(for_good=True):
        from . import library, worker

        library.loaded()
        for module in filter(None, preload.split(",")):
            try:
                importlib.import_module(module)
            except ImportError:  # another torch lacks it: the ranks import what they need
                pass
    return library, worker
