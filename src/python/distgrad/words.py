"""Makes small pieces of the texts of reports, and numbers as JSON has them."""

import math
import textwrap


def ranks_text(ranks):
    """Returns "rank 0" or "ranks 0, 2"."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def some(names, most):
    """Returns "a, b and 3 more": at most `most` names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def capitalized(text):
    """Returns the text with its first letter large, and the others as they are."""
    return text[:1].upper() + text[1:]


def count(n, what):
    """Returns "1 rank" or "2 ranks"."""
    return f"{n} {what}" + ("" if n == 1 else "s")


def titled(rows, width):
    """Returns the lines of [(title, text)], at most `width` columns wide. The titles form a column,
    and each is shown once."""
    indent = max((len(title) for title, _ in rows), default=0) + 3
    lines, last = [], None
    for title, text in rows:
        wrapped = textwrap.wrap(text, width - indent, break_on_hyphens=False) or [""]
        lines.append(f"{title if title != last else '':<{indent}}{wrapped[0]}")
        lines += [" " * indent + more for more in wrapped[1:]]
        last = title
    return lines


def number(value):
    """Returns a number for JSON, which has no numbers that are not finite: these become texts."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def read_number(value):
    return float(value)  # also reads the texts "nan", "inf" and "-inf"
