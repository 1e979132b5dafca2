"""Cuts the text of a subject, which may hold a call written out. Separators inside a call's
brackets separate nothing. src/model/subject_text.cpp cuts it alike."""

_PREFIX = "python:"
_OPENING, _CLOSING = "([{", ")]}"


def without_calls(text):
    """Returns `text` of the same length with the brackets of calls and their content overwritten:
    "python:m:f(x)[0]" becomes "python:m:f______"."""
    plain, at = list(text), text.find("(")
    while at >= 0:
        if not _begins_call(text, at):
            at = text.find("(", at + 1)
            continue
        while text[at : at + 1] in ("(", "["):
            end = _end_of_brackets(text, at)
            plain[at:end] = "_" * (end - at)
            at = end
            while at < len(text) and _is_of_a_name(text[at]):
                at += 1
        at = text.find("(", end)
    return "".join(plain)


def _is_of_a_name(character):
    return character in "_." or character.isalnum() or character >= "\x80"


def _begins_call(text, end):
    """Returns whether ":NAME" stands before `end`, and "python:" somewhere before that. Other
    brackets are a path's."""
    begin = end
    while begin > 0 and _is_of_a_name(text[begin - 1]):
        begin -= 1
    return begin < end and text[begin - 1] == ":" and _PREFIX in text[: begin - 1]


def _end_of_brackets(text, at):
    depth = 0
    while at < len(text):
        character = text[at]
        if character in "\"'":
            at = _end_of_quotes(text, at)
            continue
        at += 1
        depth += (character in _OPENING) - (character in _CLOSING)
        if character in _CLOSING and depth == 0:
            return at
    return at


def _end_of_quotes(text, begin):
    at = begin + 1
    while at < len(text):
        if text[at] == text[begin]:
            return at + 1
        at += 2 if text[at] == "\\" else 1
    return len(text)
