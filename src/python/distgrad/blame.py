"""Where the ranks of a step wait for each other in vain: what their notes show of the collectives
that each entered (ranks/noting.py), of which this module has the file and the reading."""

import json
import math
import mmap
import struct

from .words import ranks_text

_BYTES = 1 << 16
_HEAD = struct.Struct("=II")  # a version, odd while the text is written; whether it waits
_BETWEEN_TWO = ("send", "recv")

# How Gloo ends the process of a rank that is sent more than its call takes.
_ABORTS = ("op.preamble.length <= op.nbytes", "Received data size doesn't match")


class CallFile:
    """A rank's notes, in a file that outlives it. For noting.install()."""

    step = -1

    def __init__(self, path):
        with open(path, "w+b") as file:
            file.truncate(_BYTES)
            self._memory = mmap.mmap(file.fileno(), _BYTES)
        self._version = 0

    def note(self, text, waits):
        content = text.encode("utf-8", "replace")
        content = content if len(content) < _BYTES - _HEAD.size else b""
        _HEAD.pack_into(self._memory, 0, self._version + 1, 0)
        self._memory[_HEAD.size : _HEAD.size + len(content) + 1] = content + b"\0"
        self._version += 2
        _HEAD.pack_into(self._memory, 0, self._version, int(waits))

    def set_waits(self, waits):
        _HEAD.pack_into(self._memory, 0, self._version, int(waits))


def noted(path):
    """The last note of a CallFile: what noting.py writes, and whether it waits in that; {} where it
    entered nothing, None where nothing is known."""
    try:
        with open(path, "rb") as file:
            content = file.read()
        version, waits = _HEAD.unpack_from(content)
        text = content[_HEAD.size:].partition(b"\0")[0]
        if version % 2:
            return None
        return {**json.loads(text), "waits": bool(waits)} if version else {}
    except (OSError, ValueError, struct.error):
        return None


def is_aborted_by_gloo(failure):
    """The victim of what another rank sent, or not: sizes differ, and who is wrong is not said."""
    return failure["kind"] == "crash" and any(words in failure["output"] for words in _ABORTS)


def waits_in_vain(failure):
    """Whether its failure is that others did not come, or came with another call."""
    message = "\n".join(line for line in failure["text"].lower().splitlines()
                        if not line.startswith(" "))  # not the code that raised it
    return (failure["kind"] == "hang" or is_aborted_by_gloo(failure)
            or any(words in message for words in ("timed out", "timeout")))


def explanation(notes):
    """Of {rank: its note}: which calls do not fit together, or which ranks have not entered what
    others wait in; empty where the notes show neither."""
    known = {rank: note for rank, note in notes.items() if note is not None}
    return _differing(known) or _absent(known)


def _differing(notes):
    """The first call of a group that its ranks make in different ways."""
    by_call = {}
    for rank, note in notes.items():
        for call in [*note.get("recent", ()), note] if note else ():
            if call["group"]:
                by_call.setdefault((call["group"], call["number"]), {})[rank] = call
    for (_, number), calls in sorted(by_call.items(), key=lambda item: item[0][1]):
        if len(calls) > 1 and not _fit(list(calls.values())):
            ranks = next(iter(calls.values()))["ranks"]
            said = {}
            for rank, call in sorted(calls.items()):
                said.setdefault(f"{_call_text(call)} in {call['place']}", []).append(rank)
            each = "; ".join(f"on {ranks_text(whose)} {what}" for what, whose in said.items())
            return (f"the ranks' calls do not fit together. Call {number} of {_of(ranks)} is"
                    f" {each}")
    return ""


def _fit(calls):
    if all(_is_message(call) for call in calls):
        counts = {call["kind"]: _elements(call) for call in calls}
        return counts.get("send", 0) <= counts.get("recv", float("inf"))
    sizes = {(call["dtype"], _elements(call)) for call in calls
             if call["dtype"] and call["sizes_agree"]}
    return len(sizes) <= 1 and len({(call["kind"], call["op"], call["root"])
                                    for call in calls}) == 1


def _is_message(call):
    return call["kind"] in _BETWEEN_TWO


def _elements(call):
    return math.prod(call["shape"])


def _absent(notes):
    """Of the calls that ranks wait in the first that others of its group have not entered."""
    waiting = {}
    for rank, note in notes.items():
        if note.get("waits") and note["group"]:
            waiting.setdefault((note["number"], note["group"]), {})[rank] = note
    for (number, group), calls in sorted(waiting.items(), key=lambda item: item[0][0]):
        call = next(iter(calls.values()))
        absent = [rank for rank in call["ranks"]
                  if rank in notes and rank not in calls and _entered(notes[rank], group) < number]
        if absent:
            side = "the other side of " if _is_message(call) else ""
            return (f"{ranks_text(absent)} had not entered {side}the {_call_text(call)} that"
                    f" {ranks_text(sorted(calls))} waited in ({call['place']}, call {number} of"
                    f" {_of(call['ranks'])})")
    return ""


def _entered(note, group):
    counts = {entry["group"]: entry["calls"] for entry in note.get("entered", ())}
    return counts.get(group, 0 if note.get("reported_all", True) else float("inf"))


def _call_text(call):
    op = f" {call['op']}" if call["op"] and call["op"] != "sum" else ""
    word = {"send": " to", "recv": " from"}.get(call["kind"], " with root")
    root = f"{word} {call['root']}" if call["root"] >= 0 else ""
    size = f" of {call['shape']} {call['dtype']}" if call["dtype"] else ""
    return f"{call['kind']}{op}{size}{root}"


def _of(ranks):
    return f"the group of {ranks_text(ranks)}"
