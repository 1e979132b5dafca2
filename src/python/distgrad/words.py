"""Small pieces of the texts that reports are made of."""


def ranks_text(ranks):
    """ "rank 0", "ranks 0, 2"."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
