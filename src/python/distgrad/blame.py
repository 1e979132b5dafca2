"""Explains where the ranks of a step wait for each other in vain, from files in which each notes
the collectives that it enters (ranks/noting.py)."""

import json
import mmap
import os
import struct
import subprocess

from .driver import executable
from .ranks.board import NoteSlot

_BYTES = 1 << 16
_HEAD = struct.Struct("=Ii")  # what NoteSlot writes before the text

# Gloo aborts the process of a rank that is sent more than its call takes, with these words.
_ABORTS = ("op.preamble.length <= op.nbytes", "Received data size doesn't match")


class CallFile(NoteSlot):
    """Keeps a rank's notes in a file that outlives it. For noting.install()."""

    step = -1

    def __init__(self, path):
        with open(path, "w+b") as file:
            file.truncate(_BYTES)
            super().__init__(mmap.mmap(file.fileno(), _BYTES), 0, _BYTES)


_UNKNOWN = {"note": None, "waits": False}


def noted(path):
    """Reads {"note", "waits"} of a CallFile. The note is the text that noting.py wrote last, empty
    if the rank entered nothing, None if nothing is known. `waits` says whether the rank waits in
    that call."""
    try:
        with open(path, "rb") as file:
            content = file.read()
        version, waits = _HEAD.unpack_from(content)
        text = content[_HEAD.size:].partition(b"\0")[0].decode("utf-8", "replace")
    except (OSError, struct.error):
        return _UNKNOWN
    is_known = version == 0 or version % 2 == 0 and text
    return {"note": text if is_known else None, "waits": bool(waits)}


def is_aborted_by_gloo(failure):
    """Returns whether Gloo aborted the process, as another rank sent a different size. Who is wrong
    remains open."""
    return failure["kind"] == "crash" and any(words in failure["output"] for words in _ABORTS)


def waits_in_vain(failure):
    """Returns whether the rank failed because others did not come, or came with another call."""
    message = "\n".join(line for line in failure["text"].lower().splitlines()
                        if not line.startswith(" "))  # leaves out the code that raised it
    return (failure["kind"] == "hang" or is_aborted_by_gloo(failure)
            or any(words in message for words in ("timed out", "timeout")))


def explanation(failures):
    """Explains the ranks' failures: which calls do not fit together, or which ranks have not
    entered what others wait in. Returns "" if the notes show neither. Asks `distgrad`, which says
    the same of a case."""
    notes = [{"rank": rank, "is_finished": failure["kind"] == "finished",
              **failure.get("noted", _UNKNOWN)} for rank, failure in sorted(failures.items())]
    ran = subprocess.run([os.path.abspath(executable()), "--unmet-calls"], input=json.dumps(notes),
                         capture_output=True, text=True)
    return ran.stdout if ran.returncode == 0 else ""
