"""Runs the processes of check_step: one that imports torch, and the ranks and the single run that
it forks.

It is a fresh interpreter, since a process that has run autograd (a test's, for one) cannot be
forked: autograd's threads would be missing. Functions come through distgrad.transport, and users'
modules are imported after the fork.

In its folder it finds `request`. It leaves the gradients in the folders `ranks` and `single`, as
save_gradients writes them, the files that child_processes.py names for each process NAME (`rank-0`,
..., `single`), and `outcome`, the list of failures in JSON.
"""

import contextlib
import importlib
import json
import os
import pickle
import random
from collections.abc import Mapping

from . import blame, saving, transport
from .child_processes import ChildProcesses, join_group
from .ranks import garbage
from .ranks.process import die_with_parent
from .watching import Watch

SINGLE = "single"


def main(folder, parent):
    die_with_parent()
    if os.getppid() != int(parent):
        return
    with open(os.path.join(folder, "request"), "rb") as file:
        request = pickle.load(file)
    if "wrong" in request:  # modules are watched and moved there
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
    with garbage.left_alone(for_good=True):  # once, for all forked processes
        import torch  # noqa: F401
        import torch.distributed  # noqa: F401

        from .ranks import noting  # noqa: F401

        _import_all(request["modules"])
    # With a launcher, `names` lists the processes that belong to this one. Without one, all are
    # here.
    names, place = request.get("names"), request.get("place")
    if names is None:
        names = [f"rank-{rank}" for rank in range(request["world_size"])]
        names += [SINGLE] if request["single"] is not None else []
    together = [] if place else [name for name in names if name != SINGLE]
    processes = ChildProcesses(folder, names, request["timeout_s"],
                               lambda name: _run_and_save(name, folder, request), together=together,
                               apart=(lambda failures: _report(folder, failures)) if place else
                               None)
    _report(folder, processes.run())


def _report(folder, failures):
    path = os.path.join(folder, "outcome")
    with open(path + "~", "w") as file:
        json.dump(failures, file)
    os.rename(path + "~", path)


def _import_all(modules):
    """Imports the modules once and not in each rank. These are torch's only, as other modules may
    do at import what cannot be forked."""
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _run_and_save(name, folder, request):
    import torch

    from .ranks import noting

    rank = None if name == SINGLE else int(name.rpartition("-")[2])
    torch.set_num_threads(1)
    random.seed(request["seed"])
    torch.manual_seed(request["seed"])
    watch, second = Watch(), _second(name, folder, request)
    if rank is not None:
        # The check's own timeout comes first.
        join_group(rank, request["world_size"], request["backend"], folder,
                   request["timeout_s"] + 60, request.get("place"))
        watch.start()
        noting.install(blame.CallFile(os.path.join(folder, name + ".calls")))
    if second:
        second.start()
    with garbage.left_alone():
        function = transport.loads(request["single" if rank is None else "parallel"])
    torch.manual_seed(request["seed"])  # importing the user's module may have drawn
    if second:
        second.ready()
    found, losses = _call(function, rank, request["world_size"]), None
    if rank is None and isinstance(found, tuple) and len(found) == 2:
        found, losses = found
    if "measured" in request:
        return _check_gradients(rank, found, folder, request)
    if not isinstance(found, Mapping):
        raise TypeError(f"the function returned a {type(found).__name__}; it is to return"
                        f" {{parameter: gradient}}")
    reached = sum(gradient is not None for gradient in found.values())
    # The request tells the rank, since the function may have destroyed its process group, or made
    # others.
    place = (0, 1) if rank is None else (rank, request["world_size"])
    saving.save(found, os.path.join(folder, SINGLE if rank is None else "ranks"), place=place,
                **watch.described(reached))
    if second:
        second.finish(lambda: _call(function, rank, request["world_size"]), found, losses)


def _check_gradients(rank, found, folder, request):
    """Checks the gradients for a check_step without a single run. Rank 0 writes `report`."""
    from .step.api import check_gradients

    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError(f"the function returned a {type(found).__name__}; without `single`"
                        " it is to return (model, step)")
    model, step = found
    objective, options = transport.loads(request["measured"])
    report = check_gradients(model, step, objective, raise_exception=False, **options)
    if rank == 0:
        with open(os.path.join(folder, "report"), "wb") as file:
            pickle.dump(report, file)


def _second(name, folder, request):
    """Returns what watches the second run, after a mismatch; else None."""
    if "wrong" not in request:
        return None
    from .step.second_run import watched

    return watched(name, folder, request, SINGLE)


def _call(function, rank, world_size):
    offered = {} if rank is None else {"rank": rank, "world_size": world_size}
    taken = transport.check_parameters(getattr(function, "__name__", "the function"), function,
                                       offered)
    return function(**{name: offered[name] for name in taken})
