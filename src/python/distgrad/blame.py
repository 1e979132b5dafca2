"""Where the ranks of a step wait for each other in vain: the files of what each notes of the
collectives that it enters (ranks/noting.py), and what these show."""

import json
import mmap
import os
import struct
import subprocess

from .driver import executable
from .ranks.board import NoteSlot

_BYTES = 1 << 16
_HEAD = struct.Struct("=Ii")  # NoteSlot's, before the text

# How Gloo ends the process of a rank that is sent more than its call takes.
_ABORTS = ("op.preamble.length <= op.nbytes", "Received data size doesn't match")


class CallFile(NoteSlot):
    """A rank's notes, in a file that outlives it. For noting.install()."""

    step = -1

    def __init__(self, path):
        with open(path, "w+b") as file:
            file.truncate(_BYTES)
            super().__init__(mmap.mmap(file.fileno(), _BYTES), 0, _BYTES)


_UNKNOWN = {"note": None, "waits": False}


def noted(path):
    """{"note", "waits"} of a CallFile: the text that noting.py wrote last, empty where the rank
    entered nothing, None where nothing is known; and whether it waits in that call."""
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
    """The victim of what another rank sent, or not: sizes differ, and who is wrong is not said."""
    return failure["kind"] == "crash" and any(words in failure["output"] for words in _ABORTS)


def waits_in_vain(failure):
    """Whether its failure is that others did not come, or came with another call."""
    message = "\n".join(line for line in failure["text"].lower().splitlines()
                        if not line.startswith(" "))  # not the code that raised it
    return (failure["kind"] == "hang" or is_aborted_by_gloo(failure)
            or any(words in message for words in ("timed out", "timeout")))


def explanation(failures):
    """Of ranks' failures: which calls do not fit together, or which ranks have not entered what
    others wait in; empty where the notes show neither. `distgrad` says it, as it does of a case."""
    notes = [{"rank": rank, "is_finished": failure["kind"] == "finished",
              **failure.get("noted", _UNKNOWN)} for rank, failure in sorted(failures.items())]
    ran = subprocess.run([os.path.abspath(executable()), "--unmet-calls"], input=json.dumps(notes),
                         capture_output=True, text=True)
    return ran.stdout if ran.returncode == 0 else ""
