"""Connects the ranks of a check by a Gloo group of their own, in which rank 0 leads.

Rank 0 sends plans and gets results; only the function itself waits in the group under test. When a
rank raises while others are inside one of the function's collectives, it breaks its connections of
the group under test after a while, so that they raise, too. If a rank does not answer any more, the
store tells what it was doing when it became late.
"""

import contextlib
import ctypes
import datetime
import itertools
import pickle
import sys
import threading
import time
import traceback
import weakref

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..own_device import own_device
from ..ranks import noting, unwaited
from ..stepping import ECHOES
from ..words import ranks_text
from .report import GradcheckReport
from .waiting import Waiting, is_main_thread

# Messages that hold one of these tell that a wait ended by what another rank did, or did not do.
BROKEN_WAITS = (*ECHOES, "Timed out waiting", "Application timeout caused pair closure")
_GRACE_S = 0.7  # A rank that raised waits so long before it breaks its connections.
_MARGIN_S = 5.0
_CONNECT_S = 10.0  # All ranks have at least this time to call the check.
_PACKET = 1 << 14  # bytes
_WATCH_S = 0.25
_TOGETHER_S = 1.0  # After this time all ranks have seen that they must leave.
_TORCH_DISTRIBUTED = dist.__file__.rpartition("/")[0]
_TORCH = torch.__file__.rpartition("/")[0]
_TORCH_OPS = f"{_TORCH}/_ops.py"
_TAG, _POISON_TAG = 7205, 2**30 + 7205
_kept = weakref.WeakKeyDictionary()  # group -> _Control, as connecting takes longer than a check
_connected = weakref.WeakKeyDictionary()  # group -> how often it was connected


class Lost(RuntimeError):
    """Says that a rank did not answer. silent is its rank in the group under test."""

    def __init__(self, silent, why):
        super().__init__(why)
        self.silent = silent

    def report(self, team, stack=None):
        """Returns the report. stack tells where the rank hangs, if that is known."""
        text = (f"not done after {team.timeout_s:g} s, but at" if stack else
                "does not answer any more: it died, hangs, or left")
        error = {"ranks": [self.silent], "doing": "in the function" if stack else "in gradcheck",
                 "text": text, "where": "", "traceback": stack or ""}
        return GradcheckReport("error", team.size, team.backend, errors=[error],
                               global_ranks=list(team.global_ranks))


class _Control:
    """Connects the ranks of `group` without a group of torch.distributed's. new_group() counts
    groups for their names, so if only some ranks made one here, the groups that the caller makes
    next would not find each other."""

    def __init__(self, group, seconds, caller):
        self.checks = itertools.count()
        _connected[group] = _connected.get(group, 0) + 1
        store = c10d._world.pg_map[group][1]
        self.store = dist.PrefixStore(f"distgrad-gradcheck/{_connected[group]}", store)
        rank, ranks = dist.get_rank(group), dist.get_process_group_ranks(group)
        try:
            self.store.set(f"came/{rank}", "")
            self.gloo = dist.ProcessGroupGloo(self.store, rank, len(ranks),
                                              datetime.timedelta(seconds=seconds))
        except RuntimeError as error:
            absent = []
            with contextlib.suppress(RuntimeError):
                absent = [r for i, r in enumerate(ranks) if not self.store.check([f"came/{i}"])]
            raise RuntimeError(
                f"{caller}: {ranks_text(absent)} did not call it within {seconds:g} s" if absent
                else f"{caller}: the ranks of the group could not connect:"
                f" {str(error).splitlines()[0]}") from None


class Team:
    """Is this rank's end of a check, and a context in which Gloo waits at most `timeout_s`."""

    def __init__(self, group, timeout_s, caller="gradcheck"):
        """Takes the name of the function that the user calls."""
        self.group = group or dist.group.WORLD
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.backend = dist.get_backend(self.group)
        self.global_ranks = dist.get_process_group_ranks(self.group)
        self.timeout_s = timeout_s
        # A rank that is inside the function for too long says so itself before this time.
        self._patience_s = 3 * timeout_s + 60
        self._control = _control_of(self.group, timeout_s, caller)
        self._check = next(self._control.checks)
        waiting = (Waiting(self._control.store, str(self._check), self.rank, self.size,
                           self._where_now, self._break_those_in)
                   if self.gives_up_by_itself() and is_main_thread() else None)
        self.watch = Watch(self._report_late, self._leave, timeout_s, waiting,
                           None if self.gives_up_by_itself() else self._leave_with_others)
        self._timeouts = []

    def __enter__(self):
        self._device = own_device()
        self._device.__enter__()
        for backend in _gloo_backends():
            self._timeouts.append((backend, backend.options._timeout))
            backend._set_default_timeout(datetime.timedelta(seconds=self.timeout_s))
        self.watch.start()
        return self

    def __exit__(self, *error):
        self._device.__exit__(*error)
        self.watch.stop()
        for backend, timeout in self._timeouts:
            backend._set_default_timeout(timeout)

    def leads(self):
        return self.rank == 0

    # -- messages

    def send_to_all(self, value):
        """Sends a value from rank 0. Raises Lost."""
        self._send(pickle.dumps(value), range(1, self.size))

    def collect(self, own, failure, seconds):
        """Returns what each rank gave, by rank. This rank's part took `seconds`. Raises Lost."""
        wait = self.timeout_s + min(_MARGIN_S, self.timeout_s) + seconds
        with self._breaking_later(failure):
            return [own, *self._receive(range(1, self.size), wait)]

    def give(self, value, failure):
        """Sends to rank 0, which may wait for this one in the group under test. Raises Lost."""
        with self._breaking_later(failure):
            self._send(pickle.dumps(value), [0])

    def next_plan(self):
        """Waits for rank 0's next plan. Raises Lost."""
        return self._receive([0], self._patience_s)[0]

    def _send(self, data, ranks):
        """Sends a first packet of fixed size, which tells how much follows. Messages are few, as
        each wakes threads on both sides."""
        head = torch.frombuffer(
            bytearray(len(data).to_bytes(8, "little") + data[:_PACKET - 8].ljust(_PACKET - 8)),
            dtype=torch.uint8)
        rest = torch.frombuffer(bytearray(data[_PACKET - 8:]),
                                dtype=torch.uint8) if len(data) > _PACKET - 8 else None
        for packet in (head, rest) if rest is not None else (head,):
            works = [(rank, self._started("send", packet, rank)) for rank in ranks]
            for rank, work in works:
                self._wait_for(work, rank, self._patience_s)

    def _receive(self, ranks, seconds):
        heads = {rank: torch.empty(_PACKET, dtype=torch.uint8) for rank in ranks}
        works = {rank: self._started("recv", head, rank) for rank, head in heads.items()}
        values = []
        for rank, head in heads.items():
            self._wait_for(works[rank], rank, seconds)
            data = _bytes_of(head)
            size, data = int.from_bytes(data[:8], "little"), data[8:]
            if size > len(data):
                rest = torch.empty(size - len(data), dtype=torch.uint8)
                self._wait_for(self._started("recv", rest, rank), rank, seconds)
                data += _bytes_of(rest)
            values.append(pickle.loads(data))
        return values

    def _started(self, operation, tensor, rank):
        try:
            return getattr(self._control.gloo, operation)([tensor], rank, _TAG)
        except (RuntimeError, ValueError) as error:
            raise Lost(rank, str(error)) from None

    @staticmethod
    def _wait_for(work, rank, seconds):
        try:
            work.wait(datetime.timedelta(seconds=seconds))
        except RuntimeError as error:
            raise Lost(rank, str(error)) from None

    # -- when something is wrong

    def publish(self, outcome):
        """Leaves the outcome in the store for ranks that cannot be sent to any more. They look
        there once their connection is closed."""
        self._forget()
        with contextlib.suppress(RuntimeError):
            self._control.store.set(self._key("outcome"), pickle.dumps(outcome))
        _break_gloo(self._control.gloo, self.rank, self.size)

    def published(self):
        """Returns what rank 0 published, after waiting a while, or None."""
        self._forget()
        key = self._key("outcome")
        with contextlib.suppress(RuntimeError):
            self._control.store.wait([key],
                                     datetime.timedelta(seconds=min(_MARGIN_S, self.timeout_s)))
            return pickle.loads(self._control.store.get(key))
        return None

    def late(self, rank):
        """Returns where a rank was when it had been in one call for `timeout_s`, or None if it
        never was."""
        with contextlib.suppress(RuntimeError):
            key = self._key(f"late/{rank}")
            if self._control.store.check([key]):
                return pickle.loads(self._control.store.get(key))
        return None

    def _report_late(self, stack):
        with contextlib.suppress(RuntimeError):
            self._control.store.set(self._key(f"late/{self.rank}"), pickle.dumps(stack))

    def _where_now(self):
        """Returns the main thread's (collective, place), empty if outside torch.distributed."""
        frames = _unwatched(traceback.extract_stack(sys._current_frames().get(self.watch.main)))
        if not frames[-1].filename.startswith(_TORCH_DISTRIBUTED) and not (
                ".wait(" in (frames[-1].line or "") or frames[-1].filename == _TORCH_OPS):
            return "", ""
        own = [f for f in shown_frames(frames) if not f.filename.startswith(_TORCH)]
        inside = [f.name for f in frames[frames.index(own[-1]):] if f is not own[-1]
                  and f.name not in ("wrapper", "wait", "_wait", "__call__")] if own else []
        where = f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""
        return inside[0] if inside else "wait", where

    @staticmethod
    def _break_those_in(names):
        """Breaks the groups of these names, in which this rank may be waiting."""
        for group, name in list(c10d._world.pg_names.items()):
            if name in names:
                _break(group, dist.get_rank(group), dist.get_world_size(group))

    def _leave(self):
        """Breaks the group under test. NCCL's watchdog ends the process of a rank whose peer has
        gone, so that all ranks leave at once."""
        if not self.gives_up_by_itself():
            if self._leave_with_others():
                return
            with contextlib.suppress(RuntimeError):
                self._control.store.set(self._key("break at"), str(time.time() + _TOGETHER_S))
            time.sleep(_TOGETHER_S)
        _break(self.group, self.rank, self.size)

    def _leave_with_others(self):
        """Breaks the group under test if some rank has said when. Returns whether one has."""
        with contextlib.suppress(RuntimeError):
            key = self._key("break at")
            if self._control.store.check([key]):
                time.sleep(max(0.0, float(self._control.store.get(key)) - time.time()))
                _break(self.group, self.rank, self.size)
                return True
        return False

    def gives_up_by_itself(self):
        """Returns whether a collective of the group under test raises after a time-out."""
        return all(map(_is_gloo, _backends_of(self.group)))

    @contextlib.contextmanager
    def _breaking_later(self, failure):
        """Breaks the group after a failure of this rank unless the body is done soon: the others
        may be waiting for it, and cannot be asked. After a closed connection it does so at once."""
        grace = 0 if failure is not None and failure.is_echo else _GRACE_S
        timer = threading.Timer(grace, self._leave)
        timer.daemon = True
        if failure is not None and self.size > 1:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _key(self, what):
        return f"{self._check}/{what}"

    def _forget(self):
        """Drops the control group, which is of no use after a message that did not come."""
        _kept.pop(self.group, None)


class Watch:
    """Notices, in a thread of its own and once a check, that the main thread has been in one call
    for too long."""

    def __init__(self, on_late, on_stuck, seconds, waiting=None, breaks=None):
        """Takes on_stuck(), which runs a while after on_late(stack) if the call goes on: Gloo's
        collectives give up by themselves, its sends and receives do not. waiting, a Waiting, may
        know sooner that this rank waits in vain. breaks() breaks the group if another rank did, and
        returns whether it has."""
        self._on_late, self._on_stuck, self._seconds = on_late, on_stuck, seconds
        self._waiting = waiting
        self._breaks = breaks
        self.main = threading.get_ident()
        self._since = None
        # The late stack is kept here if it was not in torch.distributed, which waits for others.
        self.hung_at = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="distgrad-gradcheck", daemon=True)
        self.is_late = False

    def start(self):
        self._thread.start()

    def stop(self):
        self._stop.set()

    def one_plan(self):
        return self._waiting.one_plan() if self._waiting else contextlib.nullcontext()

    def states(self):
        """Returns all ranks' states if they show that ranks wait for each other for ever."""
        return self._waiting and self._waiting.states

    @contextlib.contextmanager
    def one_call(self):
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def _run(self):
        while not self._stop.wait(min(_WATCH_S, self._seconds / 4)):
            since = self._since
            if self._waiting:
                self._waiting.look()
            if self._breaks and self._breaks():
                self._breaks = None
            if since is not None and time.monotonic() - since > self._seconds:
                self.is_late = True
                main = sys._current_frames().get(self.main)
                frames = shown_frames(traceback.extract_stack(main))
                stack = "".join(traceback.format_list(users_frames(frames)))
                if not any(f.filename.startswith(_TORCH_DISTRIBUTED) for f in frames):
                    self.hung_at = stack
                self._on_late(stack)
                if not self._stop.wait(_GRACE_S) and self._since == since:
                    self._on_stuck()
                return


def shown_frames(frames, caller=__file__):
    """Returns a stack's frames from the user's function on, which a file of the caller's folder
    calls."""
    here = caller.rpartition("/")[0]
    last = max((i for i, f in enumerate(frames) if f.filename.startswith(here)), default=-1)
    return _unwatched(frames[last + 1:])


def _unwatched(frames):
    """Leaves out the frames of those that wrap calls and never wait by themselves."""
    return [f for f in frames if f.filename not in (noting.__file__, unwaited.__file__)]


def users_frames(frames):
    """Returns frames without torch's, except for the innermost call into torch."""
    inner = next((i for i in range(len(frames), 0, -1)
                  if not frames[i - 1].filename.startswith(_TORCH)), 0)
    return [f for f in frames[:inner] if not f.filename.startswith(_TORCH)] + frames[inner:][:1]


def _control_of(group, timeout_s, caller):
    if group not in _kept:
        _kept[group] = _Control(group, max(timeout_s, _CONNECT_S), caller)
    return _kept[group]


def _gloo_backends():
    return list({id(b): b for group in list(c10d._world.pg_map) for b in _backends_of(group)
                 if _is_gloo(b)}.values())


def _backends_of(group):
    found = []
    for device in group._device_types:
        with contextlib.suppress(RuntimeError):
            found.append(group._get_backend(device))
    return found


def _is_gloo(backend):
    return hasattr(dist, "ProcessGroupGloo") and isinstance(backend, dist.ProcessGroupGloo)


def _break(group, rank, size):
    """Ends the group's waits here and on the other ranks. The group cannot be used any more."""
    backends = _backends_of(group)
    for backend in backends:
        if _is_gloo(backend):
            _break_gloo(backend, rank, size)
    if not all(map(_is_gloo, backends)):
        with contextlib.suppress(RuntimeError):
            group.abort()


def _break_gloo(backend, rank, size):
    """Breaks a Gloo group by a wait that is too long, after which Gloo closes all connections."""
    for other in range(size):
        if other == rank:
            continue
        try:
            backend.recv([torch.zeros(1)], other,
                         _POISON_TAG).wait(datetime.timedelta(milliseconds=1))
        except RuntimeError as error:  # A connection that was closed before closes no others.
            if "Timed out" in str(error):
                return


def _bytes_of(tensor):
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())
