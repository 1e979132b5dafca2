"""Writes to this rank's slot on the board that it shares with the driver: where the rank is within
a case. The library writes which case it is."""

import ctypes
import mmap
import os
import struct
import time

IDLE, CONNECT, FORWARD, BACKWARD, SYNC, REPLY, LOAD = range(7)

# Limits the ranks that count driven calls: the counts use the slots behind theirs.
MOST_IN_STEP = 512
_CALLS = 8 + 24 * MOST_IN_STEP
_NOTES = 8 + 24 * 1024  # the notes lie behind all slots
_NOTE_BYTES = 4096
_YIELDS = 200  # looks at the others without a sleep in between
_LOOK_S = 50e-6


def local_rank(rank):
    """Returns the rank's number among the ranks of its host."""
    return int(os.environ.get("DISTGRAD_LOCAL_RANK", rank))


def local_size(world_size):
    return min(world_size, int(os.environ.get("DISTGRAD_LOCAL_SIZE", world_size)))


class NoteSlot:
    """Holds a version, odd while the text is written, a flag for whether the rank waits, and the
    text."""

    def __init__(self, memory, start, size):
        self._memory = memory
        self._text = slice(start + 8, start + size)
        self._version = ctypes.c_uint32.from_buffer(memory, start)
        self._waits = ctypes.c_int32.from_buffer(memory, start + 4)

    def note(self, text, waits):
        """Writes which collective this rank is in (noting.py). Leaves out text that is too long."""
        content = text.encode("utf-8", "replace")
        if len(content) >= self._text.stop - self._text.start:
            content = b""
        self._version.value += 1
        self._memory[self._text.start : self._text.start + len(content) + 1] = content + b"\0"
        self._waits.value = int(waits)
        self._version.value += 1

    def set_waits(self, waits):
        self._waits.value = int(waits)


class Board:
    """Uses the offsets of docs/protocol.md. Each store is one aligned word, as the driver reads at
    any time."""

    def __init__(self, fd, rank):
        self._memory = mmap.mmap(fd, 0)
        at = 8 + 24 * rank
        self._port = ctypes.c_int32.from_buffer(self._memory, 0)
        self._case_id = ctypes.c_uint64.from_buffer(self._memory, at)
        self._step = ctypes.c_int32.from_buffer(self._memory, at + 16)
        self._phase = ctypes.c_int32.from_buffer(self._memory, at + 20)
        self._calls = None
        if rank < MOST_IN_STEP:
            self._calls = ctypes.c_uint64.from_buffer(self._memory, _CALLS + 8 * rank)
            self._calls.value = 0
        self._note = NoteSlot(self._memory, _NOTES + _NOTE_BYTES * rank, _NOTE_BYTES)
        self.note("", False)

    def note(self, text, waits):
        self._note.note(text, waits)

    def set_waits(self, waits):
        self._note.set_waits(waits)

    def _is_through(self, case_id, rank):
        at = 8 + 24 * rank
        (current,) = struct.unpack_from("=Q", self._memory, at)
        if current != case_id:
            return current > case_id
        (phase,) = struct.unpack_from("=i", self._memory, at + 20)
        return phase == REPLY

    def wait_for_calls(self, count, world_size):
        """Waits until every rank has finished the first `count` calls that this case drives, or the
        case itself."""
        case_id = self._case_id.value
        wanted = case_id << 32 | count
        self._calls.value = wanted
        looks = 0
        for rank in range(world_size):
            while struct.unpack_from("=Q", self._memory, _CALLS + 8 * rank)[0] < wanted:
                if self._is_through(case_id, rank):
                    break
                looks += 1
                if looks < _YIELDS:
                    os.sched_yield()  # there may be more ranks than cores
                else:
                    time.sleep(_LOOK_S)

    def enter(self, step, phase):
        self._step.value = step
        self._phase.value = phase

    def set_phase(self, phase):
        self._phase.value = phase

    @property
    def step(self):
        return self._step.value

    @property
    def phase(self):
        return self._phase.value

    @property
    def store_port(self):
        return self._port.value

    @store_port.setter
    def store_port(self, port):
        self._port.value = port
