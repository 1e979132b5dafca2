"""Words of the messages that both tests expect."""

import itertools


def _listed(ranks):
    """Returns ranks as messages list them: "0-2", "0, 2, 3"."""
    is_run = len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1
    return f"{ranks[0]}-{ranks[-1]}" if is_run else ", ".join(map(str, ranks))


def is_in(text, message, odd, world, **words):
    """Returns whether the message holds the text about the odd rank and the others. A rank that
    dies in its first collective may do so before the others are connected, so that only some of
    them are named."""
    others = [rank for rank in range(world) if rank != odd]
    if text.format(odd=odd, others=_listed(others), **words) in message:
        return True
    few = itertools.chain.from_iterable(itertools.combinations(others, n)
                                        for n in range(1, len(others)))
    one = text.replace("ranks {others} are", "rank {others} is").replace("ranks {", "rank {")
    return "killed by" in message and any(
        (one if len(ranks) == 1 else text).format(odd=odd, others=_listed(ranks), **words)
        in message for ranks in few)
