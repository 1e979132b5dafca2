"""Shortens text of users' code, which may have any length, for reports."""

_LONGEST = 8192


def cut(text, longest=_LONGEST):
    left_out = len(text) - longest
    if left_out <= 0:
        return text
    half = longest // 2
    return f"{text[:half]} ... ({left_out} characters left out) ... {text[-half:]}"
