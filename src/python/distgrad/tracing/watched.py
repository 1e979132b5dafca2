"""The watched run of one process. The ranks leave NAME.trace; the single run begins when all are
there, and draws the conclusions, since parts of its gradient can be asked of its graph alone:
`where`, in JSON."""

import dataclasses
import json
import os
import time

import torch

from ..step.variables import plain
from .arrivals import reached
from .buffers import taken_from_others
from .clipping import clip_factor, clipped_in_pieces, seen_norms
from .dtypes import all_seen, coarsest, computed_in, narrowed
from .finder import Finder
from .joining import off
from .recording import Recording, local_piece
from .report import texts
from .losses import meaning_of_losses, parts_of_losses
from .parts import Cutter
from .shares import are_of_the_losses, meaning, weights_of

_POLL_S = 0.01


class WatchedRank:
    def __init__(self, path, names):
        self._path = path
        self._recording = Recording(wanted=names)

    def start(self):
        self._recording.start()

    def finish(self, found, _):
        gradients = {plain(name): local_piece(g) for name, g in found.items() if g is not None}
        torch.save({**self._recording.trace(), "gradients": gradients}, self._path + "~")
        os.rename(self._path + "~", self._path)


class WatchedSingle:
    def __init__(self, paths, result, wrong, right):
        """`wrong`: the wrong parameters in model order, {"verdict", "factor"}; `right`: names."""
        self._paths, self._result, self._wrong, self._right = paths, result, wrong, right
        self._recording = Recording(True, [plain(name) for name in [*wrong, *right]])

    def start(self):
        # A rank that fails ends this process
        while not all(os.path.exists(path) for path in self._paths):
            time.sleep(_POLL_S)
        self._all_of_ranks = [torch.load(path, weights_only=False) for path in self._paths]
        self._ranks = _as_exact(self._all_of_ranks)
        self._cutter = Cutter(self._ranks)
        self._recording.after_backward = self._cut
        self._recording.start()

    def _cut(self, recording):
        try:
            self._cutter.cut(recording)
        except RuntimeError:  # a graph that can be gone through once only
            self._cutter.lose()

    def finish(self, found, losses):
        found = {plain(name): g for name, g in found.items()}
        trace = self._recording.trace()
        computed = computed_in(trace, self._all_of_ranks)
        seen = all_seen([trace, *self._all_of_ranks])
        trace, *self._ranks = _as_exact([trace, *self._ranks])
        scaled = {name: wrong["factor"] for name, wrong in self._wrong.items()
                  if wrong["verdict"] == "scaled"}
        finder = Finder(trace, self._ranks, list(self._wrong), self._factor(), self._right, scaled,
                        self._off(found))
        departure = finder.departure()
        parts = self._cutter.parts
        weights = (weights_of(parts, [rank["gradients"] for rank in self._ranks], list(self._wrong))
                   if parts else [])
        if departure.stage == "backward" and are_of_the_losses(weights, departure, parts):
            finder.blame_the_losses(departure)
        shares = [{"parameters": w.parameters, "weights": w.by_rank, "meaning": said}
                  for w in weights if (said := meaning(w, parts, self._cutter.module))]
        shares += self._shares_of(losses, found)
        if departure.stage == "after" and any("term of the loss" in share["meaning"]
                                              for share in shares):
            departure.stage = "term"
        absent = [name for name, found in self._wrong.items()
                  if found["verdict"] in ("missing", "zero")]
        if departure.stage in ("after", "weights", "shares"):
            departure.others = []
            departure.lost = reached(self._ranks, absent)
        clippings = [[e for e in t["events"] if e["kind"] == "clipping"]
                     for t in [trace, *self._ranks]]
        where = {"departure": dataclasses.asdict(departure),
                 "parts": [{"ranks": p.ranks, "call": p.call, "tokens": p.tokens} for p in parts],
                 "shares": shares,
                 "computed_in": computed, "dtypes": seen}
        where["text"] = [*texts(departure, shares, len(self._ranks), finder.factor),
                         *seen_norms(clippings[0], clippings[1:]),
                         *clip_factor(clippings[0], clippings[1:], scaled),
                         *(self._behind_backward(found) if departure.stage == "after" else [])]
        with open(self._result, "w") as file:
            json.dump(where, file)

    def _shares_of(self, losses, found):
        """What the ranks' gradients are made of, by the losses that the single run returned."""
        said = []
        observed = [rank["gradients"] for rank in self._ranks]
        self._recording.paused = True
        for parts in parts_of_losses(losses, self._recording.parameters(), found):
            for w in weights_of(parts, observed, list(self._wrong)):
                if means := meaning_of_losses(w, parts):
                    said.append({"parameters": w.parameters, "weights": w.by_rank,
                                 "meaning": means})
        return said

    def _behind_backward(self, found):
        """What became of gradients that backward had made right."""
        truth = {name: g.detach().cpu() for name, g in found.items()
                 if g is not None and local_piece(g)[1] is None}
        observed = [rank["gradients"] for rank in self._ranks]
        unexplained = [n for n, said in self._wrong.items() if said["verdict"] == "unexplained"]
        return (clipped_in_pieces(list(self._wrong), truth, observed)
                or taken_from_others(unexplained, truth, observed))

    def _off(self, truth):
        """By how much of its norm a gradient is wrong at most, where all are by little; None where
        they are not, or it is not known."""
        if any(found["verdict"] != "close" for found in self._wrong.values()):
            return None
        pairs = [(rank["gradients"].get(plain(name)), truth.get(plain(name)))
                 for rank in self._ranks for name in self._wrong]
        if any(mine is None or right is None or mine[0].shape != right.shape
               for mine, right in pairs):
            return None
        return max(off(mine, right.detach().cpu()) for (mine, _), right in pairs)

    def _factor(self):
        """That all wrong gradients are wrong by."""
        factors = [found["factor"] for found in self._wrong.values()]
        return (factors[0] if factors and None not in factors
                and max(factors) - min(factors) <= 0.01 * abs(factors[0]) else None)


def _as_exact(traces):
    dtype = coarsest(traces)
    return [narrowed(trace, dtype) for trace in traces] if dtype else traces


def watched(name, folder, request, single):
    """What watches the process `name`; `single` is the single run's."""
    path = os.path.join(folder, name + ".trace")
    if name != single:
        names = [plain(name) for name in [*request["wrong"], *request["right"]]]
        return WatchedRank(path, names)
    paths = [os.path.join(folder, f"rank-{rank}.trace") for rank in range(request["world_size"])]
    return WatchedSingle(paths, os.path.join(folder, "where"), request["wrong"], request["right"])
