"""Names what is wrong with a measured backward, by a table of pure functions.

Each function takes a Pair and returns a Mistake, or None if it does not apply. If several apply,
the first in the table is reported, as it is the most specific. If none applies, the mistake is
`other-backward`.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Optional

import torch

from ..words import ranks_text
from .formulas import Names, bases_of, formula, number


@dataclass(frozen=True)
class Mistake:
    """Says in one sentence, text, what the backward does, and on which ranks gradients are wrong.
    dtype is set if the mistake is `precision`: the roundings are this dtype's."""

    name: str
    text: str
    ranks: tuple
    dtype: Optional[torch.dtype] = None


ANOTHER_MAP = "the backward is another linear map than the right one"
NOT_ZERO = "there is a gradient where the right one is zero"


def mistake_in(pair):
    """Returns the first Mistake that applies, else other-backward."""
    found = next((mistake for holds in TABLE if (mistake := holds(pair))), None)
    is_to_be_zero = all(pair.right_is_zero(r, k) for r, k in pair.wrong())
    return found or Mistake("other-backward", NOT_ZERO if is_to_be_zero else ANOTHER_MAP,
                            _wrong_rows(pair))


# Roundings on the way may be off by a few eps, relative to what is rounded, but by less than an
# eps of the next dtype.
NARROWER = {dtype: few * torch.finfo(dtype).eps
            for dtype, few in ((torch.float32, 4), (torch.float16, 1), (torch.bfloat16, 4))}


def roundings_of(dtype):
    return f"the gradient is off by roundings of {str(dtype)[6:]} size"


# ---- the rows of the table


def exchanged_on(pair, other):
    """Returns the ranks on which this output's cotangents were taken for those of `other`, a pair
    of the same input, as if these ranks entered the collectives in another order; else None."""
    if pair.ranks < 2 or _same_shapes(pair, True) != _same_shapes(other, True):
        return None
    apart = [k for k in range(pair.ranks) if not pair.is_right(0, k)]
    for r, k in pair.pairs():
        if (r in apart) == (k in apart):
            same = pair.is_right(r, k) and other.is_right(r, k)
        else:
            same = pair.is_zero(r, k) and other.equals(r, k, pair.right[r][k])
        if not same or not other.right_is_zero(r, k) or pair.right_is_zero(r, k):
            return None
    return min(apart, [k for k in range(pair.ranks) if k not in apart], key=len)


def no_gradient(pair) -> Optional[Mistake]:
    """Applies if the gradient is zero on all wrong ranks."""
    ranks = _wrong_rows(pair)
    if not ranks or not all(pair.is_zero(r, k) for r in ranks for k in range(pair.ranks)):
        return None
    return Mistake("no-gradient",
                   f"{_on(ranks, pair)} the gradient is zero or missing where the right one is not",
                   ranks)


def identity_backward(pair) -> Optional[Mistake]:
    """Applies if each rank has its own cotangent unchanged, or what that cotangent alone gives
    through an output that is the same on all ranks."""
    if not _drops_others(pair):
        return None
    if all(pair.identity[r][r] is not None and pair.equals(r, r, pair.identity[r][r])
           for r in range(pair.ranks)):
        return _mistake("identity-backward", pair,
                        "each rank's own cotangent was passed on as it is, and the other ranks'"
                        " were dropped")
    if _is_own_part(pair) and _outputs_alike(pair) and not _has_others_elements(pair):
        own = [r for r in range(pair.ranks) if not pair.is_zero(r, r)]  # Of a broadcast, the root.
        who = ranks_text(own) if len(own) == 1 else "each rank"
        return _mistake("identity-backward", pair,
                        f"{who} went on with its own cotangent, and the other ranks' were dropped")
    return None


def identity_then_summed(pair) -> Optional[Mistake]:
    """Applies if what identity_backward() describes is then summed over the ranks, as by Megatron's
    layers, which take a copy of their input."""
    n = pair.ranks
    if n < 2 or not _outputs_alike(pair) or _has_others_elements(pair):
        return None
    if not all(pair.equals(r, k, pair.right[k][k]) for r, k in pair.pairs()):
        return None
    return _mistake("identity-backward", pair,
                    "each rank went on with its own cotangent, and what the ranks made of that was"
                    " summed")


def own_slice(pair) -> Optional[Mistake]:
    """Applies if each rank has only its own loss's gradient for its slice."""
    if _is_own_part(pair) and _outputs_alike(pair) and _has_others_elements(pair):
        return _mistake("own-slice", pair,
                        "each rank got only what its own loss saw of the part that it gave: the"
                        " other ranks' cotangents of that part were dropped")
    return None


def wrong_group(pair) -> Optional[Mistake]:
    """Applies if cotangents are right within several groups of ranks that should be one, or are
    reduced over other groups than the right ones."""
    right = _groups([[not pair.right_is_zero(r, k) for k in range(pair.ranks)]
                     for r in range(pair.ranks)])
    if right and 1 < len(right) < pair.ranks:
        return _other_groups(pair, right)
    grid = pair.coefficients()
    if grid is None or any(grid[r][k] not in (0, 1) for r, k in pair.pairs()):
        return None
    parts = _groups([[c == 1 for c in row] for row in grid])
    if not parts or not 1 < len(parts) < pair.ranks:
        return None
    return _mistake("wrong-group", pair,
                    f"the cotangents were reduced over the ranks {_sets(parts)} by themselves")


def _other_groups(pair, right):
    """Applies if cotangents came from other groups of ranks than the right ones."""
    parts = _groups([[not pair.is_zero(r, k) for k in range(pair.ranks)]
                     for r in range(pair.ranks)])
    if not parts or len(parts) == pair.ranks or parts == right:
        return None
    for part in right:
        for r in part:
            block, others = pair.right[r][r], [pair.right[r][k] for k in part]
            if any(b.shape != block.shape or bool(((b - block).abs() > 2 * pair.room[r][r]).any())
                   for b in others):
                return None
            if not all(pair.is_zero(r, k) or pair.equals(r, k, block) for k in range(pair.ranks)):
                return None
    over = "all ranks" if len(parts) == 1 else f"the ranks {_sets(parts)}"
    return _mistake("wrong-group", pair,
                    f"the cotangents were reduced over {over}, and not over {_sets(right)} by"
                    " themselves")


def _groups(is_in):
    """Returns the groups, given for each rank a row that says which ranks are in its group, or None
    if groups overlap or a rank is not in its own."""
    members = [tuple(k for k, held in enumerate(row) if held) for row in is_in]
    parts = sorted(set(members))
    disjoint = sum(map(len, parts)) == len(members)
    return parts if disjoint and all(r in m for r, m in enumerate(members)) else None


def _sets(parts):
    return " and ".join("{" + ", ".join(map(str, part)) + "}" for part in parts)


def missing_reduction(pair) -> Optional[Mistake]:
    """Applies if all that arrives is right, but some of what should arrive is absent."""
    grid = pair.coefficients()
    if grid is None:
        return None
    counted = [k for k in range(pair.ranks)
               if any(not pair.right_is_zero(r, k) for r in range(pair.ranks))]
    absent = [k for k in counted if all(grid[r][k] == 0 for r in range(pair.ranks))]
    needed = [(r, k) for r, k in pair.pairs() if not pair.right_is_zero(r, k)]
    if {grid[r][k] for r, k in needed} != {0, 1} or not _rest_is_right(pair, needed):
        return None
    lacking = {(r, k) for r, k in needed if grid[r][k] == 0}
    if _is_own_part(pair):
        text = "each rank has only what its own cotangent gives: the other ranks' are absent"
    elif lacking == {(r, k) for r, k in needed if k in absent}:
        what, verb = ("cotangents", "are") if len(absent) > 1 else ("cotangent", "is")
        text = f"the {what} of {ranks_text(absent)} {verb} in no rank's gradient"
    elif lacking == {(r, k) for r, k in needed if r == k}:
        text = "each rank has the other ranks' cotangents, and lacks its own"
    else:
        text = "some ranks lack some of the ranks' cotangents"
    return _mistake("missing-reduction", pair, text)


def forgotten_op(pair) -> Optional[Mistake]:
    """Applies if the backward is that of a sum, and the forward is no sum."""
    if pair.ranks < 2 or pair.is_divided or not _is_of_a_sum(pair):
        return None
    return _mistake("forgotten-op", pair,
                    "the cotangents were summed, which is right only for a plain sum")


def _is_of_a_sum(pair):
    if _one_factor(pair) == pair.ranks and _is_each_once(pair):
        return True  # The forward is an average, of which every rank may have a part.
    if any(pair.identity[r][k] is None or not pair.equals(r, k, pair.identity[r][k])
           for r, k in pair.pairs()):
        return False
    # If the gradient is another multiple of the right one, the forward is no average either.
    return (_one_factor(pair) in (None, pair.ranks)
            and not any(pair.right_is_zero(r, k) for r, k in pair.pairs()))


def _is_each_once(pair):
    """Returns whether elements go to other ranks, too, and the backward passes each cotangent on
    unchanged or not at all."""
    return not pair.is_local() and pair.by_element and all(
        _are_zeros_and_ones(pair.measured[r][k], pair.room[r][k]) for r, k in pair.pairs())


def _are_zeros_and_ones(block, room):
    return bool((torch.minimum(block.abs(), (block - 1).abs()) <= room).all())


def summed_twice(pair) -> Optional[Mistake]:
    """Applies if gradients are N times the right ones because they were summed once more."""
    if pair.ranks < 2 or _one_factor(pair) != pair.ranks or not _is_summed_once_more(pair):
        return None
    return _mistake("double-reduction", pair,
                    f"the gradient is {pair.ranks} times the right one, {pair.ranks} being the"
                    " number of ranks: summed over the ranks once too often, or not divided where"
                    " it should be")


def scaled(pair) -> Optional[Mistake]:
    """Applies if all wrong ranks' gradients are one number times the right ones."""
    ranks = _wrong_rows(pair)
    c = _one_factor(pair, ranks)
    if c is None or c == 0:
        return None
    return Mistake("scaled",
                   f"{_on(ranks, pair)} the gradient is {number(c)} times the right"
                   f" one{_meaning(c, pair)}", ranks)


def scaled_by_rank(pair) -> Optional[Mistake]:
    """Applies if each rank's gradient, or each rank's cotangent, has a factor of its own."""
    if pair.ranks < 2:
        return None
    rows = [_row_factor(pair, r) for r in range(pair.ranks)]
    if all(c for c in rows):
        has_any = {r: c for r, c in enumerate(rows)
                   if any(not pair.right_is_zero(r, k) for k in range(pair.ranks))}
        return _mistake("scaled", pair, "each rank's gradient is the right one times a number of"
                        f" its own: {_by_rank(has_any)}")
    columns = [_column_factor(pair, k) for k in range(pair.ranks)]
    if all(c for c in columns):
        return _mistake("scaled", pair, "each rank's cotangent counts times a number of its own:"
                        f" {_by_rank(dict(enumerate(columns)))}")
    return None


def _row_factor(pair, r):
    """Returns the factor between this rank's gradient and the right one, 1 if both are zero, or
    None if there is no such factor."""
    blocks = [(r, k) for k in range(pair.ranks)]
    if any(not pair.right_is_zero(*block) for block in blocks):
        return _one_factor(pair, [r])
    return 1 if all(pair.is_zero(*block) for block in blocks) else None


def _column_factor(pair, k):
    """Returns the factor between all blocks of this rank's cotangents and the right ones, 1 if the
    right ones are zero, or None if there is no such factor."""
    rows = [r for r in range(pair.ranks) if not pair.right_is_zero(r, k)]
    if any(not pair.is_zero(r, k) for r in range(pair.ranks) if r not in rows):
        return None
    found = [pair.relative(r, k) for r in rows]
    if not rows or None in found:
        return None if None in found else 1
    exact = next((c for c in found if isinstance(c, Fraction)), found[0])
    return exact if all(pair.equals(r, k, float(exact) * pair.right[r][k],
                                    (1 + abs(float(exact))) * pair.room[r][k])
                        for r in rows) else None


def _by_rank(factors):
    return ", ".join(f"{number(c)} on rank {r}" for r, c in factors.items())


def double_reduction(pair) -> Optional[Mistake]:
    """Applies if there is one reduction too many, before or after the right backward, or if some
    cotangents are counted twice."""
    if pair.ranks < 2:
        return None
    n = range(pair.ranks)
    if _is_summed_once_more(pair):
        return _mistake("double-reduction", pair,
                        "each rank has the sum of the gradients that are right for all ranks")
    if _all_are(pair, lambda r, k: _sum([pair.right[r][j] for j in n], pair.right[r][k])):
        return _mistake("double-reduction", pair,
                        "the cotangents were summed over the ranks once more")
    grid = pair.coefficients()
    if grid is None:
        return None
    held = {grid[r][k] for r, k in pair.pairs() if not pair.right_is_zero(r, k)}
    if held != {1, 2}:
        return None
    return _mistake("double-reduction", pair,
                    "some cotangents are counted twice" + _whose_twice(grid, pair))


def wrong_slice(pair) -> Optional[Mistake]:
    """Applies if the right blocks, or elements of them, are in other places."""
    found = _other_ranks_blocks(pair) or _other_elements(pair) or _others_elements(pair)
    return found and _mistake("wrong-slice", pair, found)


def zero_input(pair) -> Optional[Mistake]:
    """Applies if the gradient is wrong where an operand is 0, and nowhere else."""
    if pair.zero_rows is None or not any(bool(rows.any()) for rows in pair.zero_rows):
        return None
    # If the right gradient is 0 wherever the input is not, zeros need not be the cause.
    if not any(bool((pair.right[r][k].abs() > pair.room[r][k])[~pair.zero_rows[r]].any())
               for r, k in pair.pairs()):
        return None
    for r, k in pair.pairs():
        wrong = pair.excess(r, k) > 0
        if bool(wrong[~pair.zero_rows[r]].any()):
            return None
        if not bool((pair.measured[r][k][wrong].isnan() | (pair.measured[r][k][wrong] == 0)).all()):
            return None
    return _mistake("zero-input", pair,
                    "the gradient is 0 or NaN where an input is 0, and right elsewhere")


def precision(pair) -> Optional[Mistake]:
    """Applies if the gradient is right within the roundings of a narrower dtype. Along random
    directions a mistake in one of many elements would look the same, so these do not count. A
    half-precision error counts only if the gradient's numbers are of that dtype. One factor for all
    comes from one rounding at most."""
    factor = _one_factor(pair, _wrong_rows(pair))
    for dtype, share in NARROWER.items() if pair.by_element else ():
        if factor is not None and abs(float(factor) - 1) > torch.finfo(dtype).eps:
            continue
        if not all(_near(pair, r, k, share) for r, k in pair.pairs()):
            continue
        if factor is None and _error_has_a_formula(pair):
            continue
        if dtype == torch.float32 or _are_of(dtype, pair.measured):
            return Mistake("precision", roundings_of(dtype), _wrong_rows(pair), dtype)
    return None


def _error_has_a_formula(pair):
    """Returns whether the error is multiples of blocks, which roundings never are."""
    error = [[m - r for m, r in zip(*rows)] for rows in zip(pair.measured, pair.right)]
    return formula(error, pair.room, bases_of(pair), Names()) is not None


def _are_of(dtype, blocks):
    return all(bool((m.to(dtype).to(m.dtype) == m).all()) for row in blocks for m in row)


# The most specific ones are first. mistake_in() is called only with pairs that are wrong.
TABLE = (
    no_gradient,
    zero_input,
    identity_backward,
    identity_then_summed,
    own_slice,
    wrong_group,
    missing_reduction,
    forgotten_op,
    precision,
    summed_twice,
    scaled,
    double_reduction,
    wrong_slice,
    scaled_by_rank,
)


# ---- right for what


OBJECTIVES = ("sum", "mean", "replicated")
COPIED = ", copied"


def objectives(pair, is_alike=True):
    """Returns the objectives for which the measured backward is right: those above, and each with
    the input as one tensor of which every rank holds a copy ("sum, copied"). is_alike says that the
    output is the same on all ranks; otherwise it has no replicated loss."""
    if all(pair.is_zero(r, k) and pair.right_is_zero(r, k) for r, k in pair.pairs()):
        return {loss + copied for loss in OBJECTIVES for copied in ("", COPIED)}
    found = set() if pair.wrong() else {"sum"}
    if pair.ranks < 2:
        return found
    if _one_factor(pair) == Fraction(1, pair.ranks):
        found.add("mean")
    if is_alike and _same_shapes(pair, by_column=True):
        rights = [sum(row) / pair.ranks for row in pair.right]
        if _add_up_to(pair, rights):
            found.add("replicated")
        if _same_shapes(pair, by_column=False) and _add_up_to(pair, [sum(rights)] * pair.ranks):
            found.add("replicated" + COPIED)
    if _same_shapes(pair, by_column=False):
        for loss, divisor in (("sum", 1), ("mean", pair.ranks)):
            if _is_summed_once_more(pair, divisor):
                found.add(loss + COPIED)
    if not is_alike and "sum" in found:  # This does not hold for copies: outputs may be alike.
        found.add("replicated")
    return found


def _add_up_to(pair, rights):
    """Returns whether each rank's gradient is this if all cotangents are equal."""
    return all(bool(((sum(measured) - right).abs() <= sum(room)).all())
               for measured, right, room in zip(pair.measured, rights, pair.room))


def _same_shapes(pair, by_column):
    """Returns whether all ranks have the output (or the input) in one size, other than 0."""
    sizes = {pair.right[r][k].shape[1 if by_column else 0] for r, k in pair.pairs()}
    return len(sizes) == 1 and 0 not in sizes


# ---- what they are made of


def _mistake(name, pair, text):
    return Mistake(name, text, _wrong_rows(pair))


def _wrong_rows(pair):
    return tuple(sorted({r for r, _ in pair.wrong()}))


def on_ranks(ranks, count):
    """Returns "on every rank" or "on rank 1", say, given how many ranks there are."""
    return "on every rank" if len(ranks) == count else f"on {ranks_text(ranks)}"


def _on(ranks, pair):
    return on_ranks(ranks, pair.ranks)


def _drops_others(pair):
    """Returns whether no rank has anything of another's cotangent though some should."""
    apart = [(r, k) for r, k in pair.pairs() if r != k]
    return all(pair.is_zero(r, k) for r, k in apart) and any(not pair.right_is_zero(r, k)
                                                             for r, k in apart)


def _is_own_part(pair):
    return (_drops_others(pair) and all(pair.is_right(r, r) for r in range(pair.ranks))
            and any(not pair.is_zero(r, r) for r in range(pair.ranks)))


def _outputs_alike(pair):
    """Returns whether each input goes into all ranks' outputs alike."""
    return all(pair.right[r][k].shape == pair.right[r][r].shape and bool(
        ((pair.right[r][k] - pair.right[r][r]).abs() <= pair.room[r][k] + pair.room[r][r]).all())
               for r, k in pair.pairs())


def _has_others_elements(pair):
    """Returns whether outputs have elements that depend only on other ranks' inputs."""
    n = range(pair.ranks)
    reached = [[(pair.right[r][k].abs() > pair.room[r][k]).any(0) for k in n] for r in n]
    return any(bool((~reached[k][k] & reached[r][k]).any()) and bool(reached[k][k].any())
               for r in n for k in n)


def _rest_is_right(pair, needed):
    return all(pair.is_right(r, k) for r, k in pair.pairs() if (r, k) not in needed)


def _one_factor(pair, ranks=None):
    """Returns the factor between all blocks of these ranks (None: all ranks) and the right ones, or
    None if there is no such factor."""
    found = set()
    for r in range(pair.ranks) if ranks is None else ranks:
        for k in range(pair.ranks):
            c = pair.relative(r, k)
            if c is None:
                return None
            if not pair.right_is_zero(r, k):
                found.add(c)
    if len(found) == 1:
        return found.pop()
    exact = sorted(c for c in found if isinstance(c, Fraction))
    mean = [sum(map(float, found)) / len(found)] if found else []
    return next((c for c in [*exact, *mean] if _is_times(pair, ranks, c)), None)


def _is_times(pair, ranks, c):
    """Returns whether all blocks of these ranks are c times the right ones."""
    return all(pair.equals(r, k, float(c) * pair.right[r][k], (1 + abs(float(c))) * pair.room[r][k])
               for r in (range(pair.ranks) if ranks is None else ranks) for k in range(pair.ranks))


def _meaning(c, pair):
    """Says what a factor comes from: a reduction only if the right gradient has other ranks'
    cotangents, and an average only if it is their plain sum."""
    n = pair.ranks
    if n == 1 or c not in (n, Fraction(1, n)):
        return ": its sign is turned" if c == -1 else ""
    text = f", {n} being the number of ranks"
    if pair.is_local():
        return text
    if c == n:
        return text + ": summed over the ranks once too often, or not divided where it should be"
    if all(_is_passed_on(pair, r, k) for r, k in pair.pairs()
           if r != k and not pair.right_is_zero(r, k)):
        return text + ": the ranks' cotangents were averaged, and not summed"
    return text


def _is_passed_on(pair, r, k):
    """Returns whether the right block takes each cotangent unchanged or not at all."""
    right, room, identity = pair.right[r][k], pair.room[r][k], pair.identity[r][k]
    if identity is not None and bool(((right - identity).abs() <= room).all()):
        return True
    return pair.by_element and _are_zeros_and_ones(right, room)


def _is_summed_once_more(pair, divisor=1):
    """Returns whether every rank has the sum of all ranks' right gradients, divided by this."""
    return _all_are(pair,
                    lambda r, k: _sum([row[k] / divisor for row in pair.right], pair.right[r][k]))


def _all_are(pair, block_of):
    for r, k in pair.pairs():
        block = block_of(r, k)
        if block is None or not pair.equals(r, k, block, pair.room[r][k] * pair.ranks):
            return False
    return bool(pair.wrong())


def _sum(blocks, like):
    return sum(blocks) if all(block.shape == like.shape for block in blocks) else None


def _whose_twice(grid, pair):
    twice = {(r, k) for r, k in pair.pairs() if grid[r][k] == 2}
    if twice == {(r, r) for r in range(pair.ranks)}:
        return ": each rank's own"
    sources = sorted({k for _, k in twice})
    return f": {ranks_text(sources)}'s" if len(sources) < pair.ranks else ""


def _other_ranks_blocks(pair):
    """Returns text on what the backward does if its blocks are the right ones of other ranks."""
    n = pair.ranks
    moved = False
    if _held(n, pair.is_zero) != _held(n, pair.right_is_zero):
        return None  # There are more blocks or fewer, so they did not just change places.
    for r, k in pair.pairs():
        if pair.is_zero(r, k) and pair.right_is_zero(r, k):
            continue
        ways = [(r, k)] + [(a, b) for a, b in pair.pairs() if (a, b) != (r, k)]
        way = next(((a, b) for a, b in ways
                    if not pair.right_is_zero(a, b) and pair.equals(r, k, pair.right[a][b])), None)
        if way is None and not pair.is_zero(r, k):
            return None
        moved |= way is not None and way != (r, k) and not pair.is_right(r, k)
    if not moved or n < 2 or not (_are_slices(pair) and _is_due_once(pair)
                                  or _are_rows_moved(pair)):
        return None
    return "ranks got what belongs to other ranks"


def _are_slices(pair):
    """Returns whether the right backward passes parts of the cotangents on unchanged."""
    return all(_are_zeros_and_ones(pair.right[r][k], pair.room[r][k]) for r, k in pair.pairs())


def _is_due_once(pair):
    """Returns whether each element of a cotangent goes into one element on one rank at most."""
    n = range(pair.ranks)
    return all(int((torch.cat([pair.right[r][k] for r in n]).abs()
                    > torch.cat([pair.room[r][k] for r in n])).sum(0).max()) <= 1
               for k in n if pair.right[0][k].shape[1])


def _are_rows_moved(pair):
    """Returns whether each rank has all that is right for one rank, each for another one."""
    n = range(pair.ranks)
    whose = [[a for a in n if all(pair.equals(r, k, pair.right[a][k]) for k in n)] for r in n]
    return all(ranks and whose.count(ranks) == len(ranks) for ranks in whose)


def _held(n, is_zero):
    """Returns how many blocks that are not zero each rank has, sorted."""
    return sorted(sum(not is_zero(r, k) for k in range(n)) for r in range(n))


def _other_elements(pair):
    """Returns text if each rank's gradient has the right elements in another order."""
    if not pair.by_element:
        return None
    orders = {}
    for r in range(pair.ranks):
        right, measured = torch.cat(pair.right[r], 1), torch.cat(pair.measured[r], 1)
        room = torch.cat(pair.room[r], 1)
        order = _order_of(measured, right, room)
        if order is None:
            return None
        orders[r] = order
    moved = [r for r, order in orders.items() if order != sorted(order)]
    if not moved:
        return None
    r = moved[0]
    if all(r < len(pair.row_shapes) and orders[r] in _read_transposed(pair.row_shapes[r])
           for r in moved):
        order = "that of the transposed tensor"
    else:
        order = f"on rank {r} {_listed(orders[r])}"
    return f"{_on(moved, pair)} the elements of the gradient are in another order: {order}"


def _others_elements(pair):
    """Returns text if ranks have elements that belong to other ranks, as when uneven slices are
    read as even ones."""
    if not pair.by_element or pair.ranks < 2 or not _same_columns(pair) or not _is_due_once(pair):
        return None
    right = torch.cat([torch.cat(row, 1) for row in pair.right])
    room = torch.cat([torch.cat(row, 1) for row in pair.room])
    owners = [(r, i) for r in range(pair.ranks) for i in range(len(pair.right[r][0]))]
    known = (right.abs() > room).any(1)
    moved, at = {}, 0
    for r in range(pair.ranks):
        for i, row in enumerate(torch.cat(pair.measured[r], 1)):
            own, at = at, at + 1
            if bool(((row - right[own]).abs() <= room[own]).all()):
                continue
            fits = (((row - right).abs() <= room[own]).all(1) & known).nonzero().flatten()
            if len(fits) != 1:
                return None  # The element is no rank's, or not distinct from another one.
            moved.setdefault(r, (i, owners[int(fits[0])]))
    if not any(owner != r for r, (_, (owner, _)) in moved.items()):
        return None
    told = [f"rank {r}'s element {i} is rank {owner}'s element {j}"
            for r, (i, (owner, j)) in moved.items()]
    return f"ranks got elements that belong to other ranks: {', '.join(told)}, and so on"


def _same_columns(pair):
    return all({pair.measured[r][k].shape[1], pair.right[r][k].shape[1]}
               == {pair.right[0][k].shape[1]} for r, k in pair.pairs())


def _order_of(measured, right, room):
    """Returns which right row each measured row is, or None if they are no permutation."""
    order = []
    for i, row in enumerate(measured):
        ways = [i, *(j for j in range(len(right)) if j != i)]
        way = next((j for j in ways
                    if j not in order and bool(((row - right[j]).abs() <= room[i]).all())), None)
        if way is None:
            return None
        order.append(way)
    return order


def _read_transposed(shape):
    """Returns the orders of elements if a transposed tensor is read as a contiguous one, or the
    reverse."""
    if len(shape) != 2:
        return []
    numbers = torch.arange(int(torch.Size(shape).numel())).reshape(shape)
    return [numbers.T.reshape(-1).tolist(),
            numbers.reshape(shape[1], shape[0]).T.reshape(-1).tolist()]


def _listed(order):
    text = ", ".join(map(str, order[:12]))
    return f"({text}{', ...' if len(order) > 12 else ''})"


def _near(pair, r, k, share):
    measured, right = pair.measured[r][k], pair.right[r][k]
    return bool(((measured - right).abs() <= pair.room[r][k] + share * right.abs()).all())
