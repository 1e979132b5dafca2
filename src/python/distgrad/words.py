"""Small pieces of the texts that reports are made of, and numbers as JSON has them."""

import math
import textwrap


def ranks_text(ranks):
    """ "rank 0", "ranks 0, 2"."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def some(names, most):
    """ "a, b and 3 more": at most so many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def capitalized(text):
    """Returns the text with its first letter large, and the others as they are."""
    return text[:1].upper() + text[1:]


def count(n, what):
    """ "1 rank", "2 ranks"."""
    return f"{n} {what}" + ("" if n == 1 else "s")


def titled(rows, width):
    """The lines of [(title, text)], at most `width` columns wide: the titles in a column, each
    shown once."""
    indent = max((len(title) for title, _ in rows), default=0) + 3
    lines, last = [], None
    for title, text in rows:
        wrapped = textwrap.wrap(text, width - indent, break_on_hyphens=False) or [""]
        lines.append(f"{title if title != last else '':<{indent}}{wrapped[0]}")
        lines += [" " * indent + more for more in wrapped[1:]]
        last = title
    return lines


def number(value):
    """A number as JSON has it, which has none that are not finite."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def read_number(value):
    return float(value)  # also of the texts "nan", "inf" and "-inf"
