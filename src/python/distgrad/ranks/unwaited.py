"""Finds asynchronous calls of the user's code that nobody waits for.

What such a call writes may or may not be there when it is read. As noting.py does, this watches the
methods of torch's ProcessGroup. Calls that torch begins by itself (FSDP, pipelines) are left out.
"""

import functools
import sys

import torch.distributed as dist

from ..words import ranks_text
from .noting import METHODS
from .places import TORCH, place

_CALLERS = ("/distributed_c10d.py", "/c10d_logger.py", "/noting.py", "/unwaited.py")
_WAITS = ("wait", "get_future", "is_completed", "is_success", "synchronize", "block_current_stream")


def told(by_rank):
    """Returns texts such as "nobody waits in time for all_reduce (layer.py:12)", which name the
    ranks if others do wait. `by_rank` holds each rank's texts()."""
    found = {}
    for rank, texts in enumerate(by_rank):
        for text in texts:
            found.setdefault(text, []).append(rank)
    return [f"nobody waits in time for {text}" if len(ranks) == len(by_rank) else
            f"{ranks_text(ranks)} {'does' if len(ranks) == 1 else 'do'} not wait in time for {text}"
            for text, ranks in found.items()]


class Unwaited:
    """Notes calls while it is on. Waits at once for those of `waited_for`, texts of collectives."""

    def __init__(self, waited_for=()):
        self.waited_for = waited_for
        self._begun = []  # (Work, text): kept, so no other Work takes its id
        self._waited = set()
        self._before = []

    def texts(self):
        """Returns texts such as "all_reduce (layer.py:12)", one for each line."""
        return list(dict.fromkeys(text for work, text in self._begun
                                  if id(work) not in self._waited))

    def __enter__(self):
        self._wait = dist.Work.wait
        for method, (kind, *_) in METHODS.items():
            if hasattr(dist.ProcessGroup, method):
                self._wrap(dist.ProcessGroup, method,
                           functools.partial(self._begin, "isend" if kind == "send" else
                                             "irecv" if kind == "recv" else kind))
        for method in _WAITS:
            if hasattr(dist.Work, method):
                self._wrap(dist.Work, method, self._note_wait)
        return self

    def __exit__(self, *_):
        for owner, name, before in self._before:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._before = []

    def _wrap(self, owner, name, around):
        before = getattr(owner, name)
        # vars() gives what the class holds. What getattr gives would not bind when put back.
        self._before.append((owner, name, vars(owner).get(name)))

        @functools.wraps(before)
        def call(*arguments, **options):
            return around(before, *arguments, **options)

        setattr(owner, name, call)

    def _begin(self, kind, call, *arguments, **options):
        work = call(*arguments, **options)
        if isinstance(work, dist.Work) and not _is_torchs():
            text = f"{kind} ({place()})"
            # Never waits for a message: the other rank may receive it after sending one of its own.
            if text in self.waited_for and kind not in ("isend", "irecv"):
                self._wait(work)
            else:
                self._waited.discard(id(work))  # Another Work had this id, which torch waited for.
                self._begun.append((work, text))
        return work

    def _note_wait(self, call, work, *arguments, **options):
        self._waited.add(id(work))
        return call(work, *arguments, **options)


def _is_torchs():
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.endswith(_CALLERS):
        frame = frame.f_back
    return frame is None or frame.f_code.co_filename.startswith(TORCH)
