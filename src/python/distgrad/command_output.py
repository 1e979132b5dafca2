"""Writes the text or the JSON of a report for commands in Python. Needs no torch."""

import json
import os

from .visible_text import without_commands


class OutputError(Exception):
    """The output cannot be written. The text is one line for the user."""


def say(text):
    """Prints the text at once. Raises OutputError."""
    try:
        print(text, flush=True)
    except OSError as error:
        # The rest of the buffer would fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise OutputError(f"cannot write standard output: {error.strerror}") from None


def write_json(path, report):
    """Writes the report, of dicts, lists, texts and numbers; `path` "-" is standard output. Raises
    OutputError."""
    text = json.dumps(report, indent=1)
    if path == "-":
        say(without_commands(text))
        return
    try:
        with open(path, "w") as file:
            file.write(text + "\n")
    except OSError as error:
        raise OutputError(f"--json {path}: {error.strerror}") from None
