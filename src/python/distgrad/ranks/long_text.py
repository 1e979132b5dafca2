"""Text of users' code, which may be of any length, as it is reported."""

_LONGEST = 8192


def cut(text, longest=_LONGEST):
    left_out = len(text) - longest
    if left_out <= 0:
        return text
    half = longest // 2
    return f"{text[:half]} ... ({left_out} characters left out) ... {text[-half:]}"
