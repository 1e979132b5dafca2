"""Escapes foreign text that a command prints, as src/base/visible_text.cpp does for the driver."""

import re

# Matches control characters other than line breaks and tabs, and invisible characters that change
# how others are shown.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\ufff0-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff]")
# Matches what the logs of GitHub and Azure obey: GitHub's where a line begins, behind white space
# of any kind.
_COMMAND = re.compile(r"^([^!-~\n]*)::|##(?=\[|vso\[)", re.MULTILINE)


def visible_text(text):
    return without_commands(_HIDDEN.sub(_escaped, text))


def without_commands(text):
    """Disarms commands. The escapes are JSON's, so a JSON text keeps its meaning."""
    return _COMMAND.sub(_harmless, text)


def on_few_lines(text):
    """Puts the text on one line, except for lines with indentation, such as a traceback's
    frames."""
    return visible_text(re.sub("\n(?!  )", "\\\\n", text))


def _escaped(match):
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _harmless(match):
    return "\\u0023#" if match[1] is None else match[1] + "\\u003a:"
