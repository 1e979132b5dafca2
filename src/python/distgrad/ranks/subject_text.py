"""How the text of a subject is cut, which may have a call written out in it: what parts subjects
means nothing in a call's brackets. src/model/subject_text.cpp cuts it alike."""

_PREFIX = "python:"
_OPENING, _CLOSING = "([{", ")]}"


def without_calls(text):
    """`text` with what calls in it have in brackets overwritten, and the brackets, in the same
    length: "python:m:f(x)[0]" is "python:m:f______"."""
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
    """Whether ":NAME" stands before `end`, and "python:" somewhere before that. Brackets elsewhere
    are a path's."""
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
