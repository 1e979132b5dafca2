"""Proves that ranks wait for each other for ever inside one plan. Each rank says in the store when
it has stood still for a while or is through with the plan, and how many collectives it has entered.

A rank that is through enters no more of the plan's collectives. If all others stand still, nothing
moves in their processes, and they have entered more collectives or other ones, nobody will ever
come. That is proven long before a time-out."""

import contextlib
import os
import pickle
import threading
import time
from dataclasses import dataclass

from torch.distributed import distributed_c10d as c10d

from ..stillness import is_still, times_of

_STILL_S = 1.0
_POLLING = 0.008  # Each thread that only polls, such as Gloo's event loops, uses less of a core.
_LOOK_S = 0.5  # Two looks at the others, this far apart, must show the same.
_BETWEEN_TWO = ("send", "recv", "isend", "irecv", "batch_isend_irecv")


@dataclass(frozen=True)
class State:
    """Describes one rank in a plan. entered is ((group's name, number of calls), ...); collective
    is what it waits in, empty if it is through or that is not known; where is in the user's
    code."""

    plan: int
    is_done: bool
    entered: tuple
    collective: str = ""
    where: str = ""
    moved: int = 0  # The rank has moved on this often.

    def waits(self):
        return not self.is_done


def never_met(states):
    """Returns whether these states of all ranks prove that the waiting ones wait in vain."""
    waiting = [s for s in states.values() if s.waits()]
    calls = {(s.entered, s.collective) for s in states.values()}
    return bool(waiting) and len({s.plan for s in states.values()}) == 1 and len(calls) > 1


def text_of(states):
    """Returns text such as "rank 1 never entered the all_reduce that ranks 0, 2 wait in"."""
    from ..words import ranks_text

    waiting = {rank: s for rank, s in states.items() if s.waits()}
    names = sorted({s.collective for s in waiting.values()})
    counts = {rank: dict(s.entered) for rank, s in states.items()}
    most = {}
    for rank in waiting:
        for group, count in counts[rank].items():
            most[group] = max(most.get(group, 0), count)
    absent = [rank for rank, s in states.items() if s.is_done
              and any(counts[rank].get(group, 0) < count for group, count in most.items())]
    verb = "waits" if len(waiting) == 1 else "wait"
    who = ranks_text(sorted(waiting))
    if len(names) == 1 and names[0] and names[0] not in _BETWEEN_TWO and absent:
        return f"{ranks_text(absent)} never entered the {names[0]} that {who} {verb} in"
    if len(names) > 1 and not absent and all(names):
        told = [f"{ranks_text([r for r, s in waiting.items() if s.collective == name])} in"
                f" {name}" for name in names]
        return f"the ranks wait for each other in different collectives: {', '.join(told)}"
    done = sorted(set(states) - set(waiting))
    is_in = f" in {names[0]}" if len(names) == 1 and names[0] else ""
    return (f"{who} {verb}{is_in} for ever"
            + (f", while {ranks_text(done)} {'is' if len(done) == 1 else 'are'} through" if done
               else ""))


class Waiting:
    """Tells this rank's state and looks at the others', in the thread that watches."""

    def __init__(self, store, key, rank, size, where_now, end):
        """Takes where_now(), which returns (collective, place in the user's code) of the main
        thread, with an empty collective outside of torch.distributed, and end(names), which ends
        the waits in the groups of these names."""
        self._store, self._key, self._rank, self._size = store, key, rank, size
        self._where_now, self._end = where_now, end
        self._plan, self._is_done, self._since = 0, True, time.monotonic()
        self._begun, self._moved = {}, 0
        self._first = None  # Its threads had used this processor time when the rank last moved.
        self._still_since = 0.0
        self._told, self._seen, self._looked_at = None, None, 0.0
        self.states = None  # It has all ranks' states once these prove that they never meet.

    @contextlib.contextmanager
    def one_plan(self):
        self._begun, self._plan, self._is_done = calls_entered(), self._plan + 1, False
        self._first = None
        try:
            yield
        finally:
            self._is_done, self._since = True, time.monotonic()

    def look(self):
        """Ends the wait if it has become known that it is in vain."""
        if self.states or self._size == 1:
            return
        state = self._state()
        if state != self._told:
            self._tell(state)
        if state is None or state.is_done:
            self._seen = None
            return
        now = time.monotonic()
        if self._seen is not None and now - self._looked_at < _LOOK_S:
            return
        before, self._seen, self._looked_at = self._seen, self._all_states(), now
        if self._seen is None or self._seen != before or not never_met(self._seen):
            return
        self.states = self._seen
        self._end([name for name, _ in state.entered])

    def _state(self):
        """Returns this rank's State, or None while it moves."""
        now = time.monotonic()
        if self._is_done:
            is_long = now - self._since > _STILL_S
            return State(self._plan, True, self._entered(), moved=self._moved) if is_long else None
        sample = {0: times_of(os.getpid())}
        threads = len(sample[0][1]) if sample[0] else 0
        if not is_still(self._first, sample, now - self._still_since, _POLLING * (threads + 2)):
            self._first, self._still_since, self._moved = sample, now, self._moved + 1
            return None
        if now - self._still_since < _STILL_S:
            return None
        collective, where = self._where_now()
        if not collective:
            return None
        return State(self._plan, False, self._entered(), collective, where, self._moved)

    def _entered(self):
        return tuple(sorted((name, count) for name, count in calls_entered(self._begun).items()
                            if count > 0))

    def _tell(self, state):
        with contextlib.suppress(RuntimeError):
            self._store.set(f"{self._key}/state/{self._rank}", pickle.dumps(state))
            self._told = state

    def _all_states(self):
        """Returns {rank: State}, or None if a rank moves or has never said anything."""
        states = {}
        keys = [f"{self._key}/state/{rank}" for rank in range(self._size)]
        with contextlib.suppress(RuntimeError):
            for rank, key in enumerate(keys):
                if not self._store.check([key]):
                    return None
                state = pickle.loads(self._store.get(key))
                if state is None:
                    return None
                states[rank] = state
            return states
        return None


def is_main_thread():
    return threading.current_thread() is threading.main_thread()


def calls_entered(since=None, ended=()):
    """Returns {group's name: number of collectives, sends and receives that this rank entered},
    all of them or those since calls_entered() returned `since`, also of groups that have ended."""
    found = {}
    for group, name in _named(ended):
        with contextlib.suppress(RuntimeError):
            number = group._get_sequence_number_for_group()
            found[name] = number - (since.get(name, 0) if since else 0)
    return found


def entered_smaller(size, since, ended=()):
    """Returns whether this rank communicated in a group of fewer ranks than `size` since
    calls_entered() returned `since`."""
    return any(group.size() < size for group in _groups_entered(since, ended))


def met_outside(ranks, since, ended=()):
    """Returns the ranks, other than these, with which this rank communicated since calls_entered()
    returned `since`, as far as it did so in groups."""
    return {rank for group in _groups_entered(since, ended)
            for rank in c10d.get_process_group_ranks(group)} - set(ranks)


def _groups_entered(since, ended):
    entered = calls_entered(since, ended)
    return [group for group, name in _named(ended) if entered.get(name)]


def _named(ended):
    return [*c10d._world.pg_names.items(), *((group, id(group)) for group in ended)]
