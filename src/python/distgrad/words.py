"""Small pieces of the texts that reports are made of."""


def ranks_text(ranks):
    """ "rank 0", "ranks 0, 2"."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def some(names, most):
    """ "a, b and 3 more": at most so many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def count(n, what):
    """ "1 rank", "2 ranks"."""
    return f"{n} {what}" + ("" if n == 1 else "s")
