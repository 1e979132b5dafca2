"""Words of the messages that both tests expect."""


def all_but(odd, world):
    """Of a world's ranks all but one, as messages list them: "0-2", "0, 2, 3"."""
    others = [rank for rank in range(world) if rank != odd]
    is_run = len(others) > 2 and others[-1] - others[0] == len(others) - 1
    return f"{others[0]}-{others[-1]}" if is_run else ", ".join(map(str, others))
