"""Outputs of which the ranks hold other pieces than of the rest."""

_MOST = 3


def pieces_in_another_order(known):
    """[(in words, [outputs])]: of those cut along a dimension into as many pieces, the ones whose
    pieces lie on other ranks than most others'."""
    by_cut = {}
    for one in known:
        if cut := _cut(one):
            dim, count, order = cut
            by_cut.setdefault((dim - one.truth["value"].dim(), count),
                              {}).setdefault(order, []).append(one)
    found = []
    for orders in by_cut.values():
        usual = max(orders, key=lambda order: len(orders[order]))
        for order, ones in orders.items():
            times = 1 if _is_plain(usual) and not _is_plain(order) else 2
            if order != usual and times * len(ones) < len(orders[usual]):
                found.append((f"the ranks hold pieces {_text(order)}, of other outputs that are cut"
                              f" likewise {_text(usual)}", ones))
    return found


def _is_plain(order):
    """In the order of the ranks, once or several times over."""
    count, n = max(order) + 1, len(order)
    return any(order == tuple(r // size % count for r in range(n)) for size in range(1, n + 1))


def names_of(ones):
    return ", ".join(dict.fromkeys(one.label for one in ones[:_MOST]))


def _cut(one):
    """(dim, into how many, which each rank holds), where each rank holds one run of one
    dimension."""
    whole = one.truth["value"].shape
    found = {}
    for piece in one.pieces:
        if piece.place is None or piece.group or piece.rank in found:
            return None
        dims = [d for d, n in enumerate(whole) if len(piece.place.indices[d]) < n]
        # What lies on the leading dimensions is data, which is nobody's mistake.
        if not dims or dims[-1] != len(whole) - 1 or len(whole) < 2:
            return None
        at = piece.place.indices[-1].tolist()
        if at != list(range(at[0], at[0] + len(at))) or whole[-1] % len(at) or at[0] % len(at):
            return None
        found[piece.rank] = (at[0] // len(at), whole[-1] // len(at))
    counts = {count for _, count in found.values()}
    if len(counts) != 1:
        return None
    return len(whole) - 1, counts.pop(), tuple(found[rank][0] for rank in sorted(found))


def _text(order):
    return ", ".join(str(n + 1) for n in order)
