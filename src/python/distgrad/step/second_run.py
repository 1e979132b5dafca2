"""Runs check_step's second run, after a mismatch. The single run's losses and outputs are kept, and
the ranks run their step again and again with outputs of modules moved. Rank 0 writes what that
shows to the file `where`, in JSON."""

import contextlib
import json
import os
import time

import torch
import torch.distributed as dist

from .errors import StepError
from .holding import HeldInStep
from .recording import Recording, whole
from .roots import Begun, Roots, can_end
from .running import Repeated, random_states
from .variables import plain
from .where import Where, declared

_MOST_LOSSES = 64  # Of the single run's losses so many are examined for how much they count.


class WatchedSingle:
    def __init__(self, path, request):
        self._path = path
        self._wrong = [plain(name) for name in request["wrong"]]
        self._recording = Recording([*self._wrong, *request["right"]], retains=True)
        self._held = HeldInStep()  # It only notes what the run detaches.

    def start(self):
        self._recording.start()

    def ready(self):
        self._held.__enter__()

    def finish(self, _call, found, losses):
        self._held.__exit__(None, None, None)
        self._recording.stop()
        terms = {}
        with contextlib.suppress(RuntimeError):  # Losses without a graph tell nothing.
            terms = self._terms(losses) if losses is not None else {}
        gradients = {plain(name): whole(g) for name, g in found.items() if g is not None}
        torch.save({**self._recording.trace(), "gradients": gradients, "terms": terms,
                    "detached": list(self._held.places)}, self._path + "~")
        os.rename(self._path + "~", self._path)

    def _terms(self, losses):
        """Returns {wrong parameter: {"loss 3" or "the term size": this one's gradient}}."""
        if isinstance(losses, dict):
            named = {f"the term {name}": x for name, x in losses.items()}
        else:
            losses = torch.atleast_1d(losses)
            named = {f"loss {list(i) if len(i) > 1 else i[0]}": losses[tuple(i)]
                     for i in torch.ones(losses.shape).nonzero().tolist()[:_MOST_LOSSES]}
        parameters = {n: p for n, p in self._recording.parameters.items() if n in self._wrong}
        found = {name: {} for name in parameters}
        for label, loss in named.items():
            gradients = torch.autograd.grad(loss.sum(), list(parameters.values()),
                                            allow_unused=True, retain_graph=True)
            for name, g in zip(parameters, gradients):
                found[name][label] = torch.zeros(()) if g is None else whole(g)
        return found


class WatchedRank:
    def __init__(self, rank, folder, request):
        self._rank, self._folder = rank, folder
        self._request = {**request, "end": time.monotonic() + request["timeout_s"]}
        self._recording = Recording([*request["wrong"], *request["right"]])

    def start(self):
        self._recording.start()

    def ready(self):
        """Notes the random state right before the step."""
        self._random = random_states()

    def finish(self, call, found, _losses):
        """Measures, where call() runs the step once more."""
        self._recording.stop()
        text = os.path.join(self._folder, "where")
        if not dist.is_initialized():
            if self._rank == 0:
                _write(text, {"text": ["Where it begins was not measured, as the step ends its"
                                       " process group."]})
            return
        from ..gradient_check.team import Lost, Team

        returned = {plain(name): whole(g) for name, g in found.items() if g is not None}
        trace = self._recording.trace()
        try:
            with Team(None, self._request["timeout_s"], "check_step") as team:
                runs = Again(call, team, self._random, can_end(self._recording.modules()))
                said = Where(runs, trace, self._recording.names, returned, self._folder,
                              self._request).said()
        except (StepError, Lost) as error:
            said = {"text": ["Where it begins was not measured, as the step failed when it was run"
                             f" again: {str(error).rstrip().splitlines()[-1]}"]}
        if self._rank == 0:
            _write(text, said)


def _write(path, where):
    with open(path + "~", "w") as file:
        json.dump(where, file)
    os.rename(path + "~", path)


class Again(Repeated):
    """Runs the whole step from the same state each time; its loss is where backward begins."""

    model = None

    def __init__(self, call, team, random, can_end):
        """Takes can_end, which says whether forward can run without its backward."""
        super().__init__(team)
        self.objective = "mean"
        self._call, self._random = call, random
        self._can_end, self._ends = can_end, False
        self.held = contextlib.nullcontext()  # Each run is inside this context.
        self._groups = set(dist.distributed_c10d._world.pg_map)

    def run(self):
        """Returns the declared loss, or None if no rank has one."""
        for put, state in self._random:
            put(state)
        every = self.once(lambda: self._loss_of_a_run(ends=False))
        self._ends = all(can_end and n == 1 for _, n, can_end in every)
        return self._declared(every)

    def loss(self):
        """Returns the loss as run() does, without backward if it begins once on every rank."""
        if not self._ends:
            return self.run()
        for put, state in self._random:
            put(state)
        return self._declared(self.once(lambda: self._loss_of_a_run(ends=True)))

    def _declared(self, every):
        self._end_groups()
        self.losses = [loss for loss, *_ in every]
        return declared(self.losses, self.objective)

    def _loss_of_a_run(self, ends):
        with contextlib.suppress(Begun), self.held, Roots(ends=ends) as roots:
            self._call()
        return roots.total, roots.count, self._can_end

    def _end_groups(self):
        """Destroys groups that this run made, except for a DeviceMesh's, which cannot be."""
        made = set(dist.distributed_c10d._world.pg_map) - self._groups
        self.ended = [group for group in made if group.group_desc == "undefined"]
        for group in self.ended:
            dist.destroy_process_group(group)


def watched(name, folder, request, single):
    """Returns what watches the process `name`; the single run's process is `single`."""
    if name == single:
        return WatchedSingle(os.path.join(folder, f"{single}.trace"), request)
    return WatchedRank(int(name.rpartition("-")[2]), folder, request)
