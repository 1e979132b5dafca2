"""What departure.py and shares.py found, in words."""

from .. import words
from ..words import ranks_text

_MOST_NAMES = 6
_MOST_CALLS = 5
# Losses; where they are further apart than that, it is left open whether rounding or a mistake did
# it.
_SAME = 1e-5
_SAME_FACTOR = 1e-3


def texts(departure, shares, world_size, factor):
    """Lines. `factor`: observed over truth, of all wrong gradients; None where that is not one
    number."""
    # all: not worth a word
    departure.ranks = departure.ranks if len(departure.ranks) < world_size else ()
    lines = [_departure(departure, factor)]
    lines += [f"Data: {text}." for text in departure.data]
    if departure.upstream and departure.stage == "backward":
        lines.append(f"Wrong upstream of there: {some(departure.upstream)}.")
    lines += departure.tokens
    if departure.also:
        lines.append(f"Backward departs likewise at {some(departure.also)}.")
    if departure.lost:
        lines.append(f"Backward gives a gradient to {some(departure.lost)}, and the step returns"
                     " none, or zeros.")
    if departure.direct and departure.stage == "backward":
        lines.append("What backward gives to"
                     f" {some(departure.direct)}, added up over the ranks before anything is"
                     " reduced, is wrong although it is right at their modules' outputs.")
    if departure.unsummed:
        lines.append("Wrong while each rank has a share of the gradient of their modules' outputs,"
                     f" whose sum is right: {some(departure.unsummed)}.")
    if departure.others:
        lines.append("Wrong although the gradients of their modules' outputs are right:"
                     f" {some(departure.others)}.")
    if departure.stage == "loss":
        lines += [f"The output of {some(departure.silent)}, which needs no gradient, is not that of"
                  " the single run."] if departure.silent else []
        lines += _losses(departure.losses)
    meanings = {}
    for share in shares:
        meanings.setdefault(share["meaning"], []).extend(share["parameters"])
    return [*lines, *(f"{some(names)}: {meaning}." for meaning, names in meanings.items())]


def _departure(d, factor):
    on = f" on {ranks_text(d.ranks)}" if d.ranks else ""
    calls = "; ".join(d.calls[:_MOST_CALLS]) + ("; ..." if len(d.calls) > _MOST_CALLS else "")
    if d.stage == "unknown":
        return f"Nothing is known of where it begins: {d.how}."
    if d.stage == "forward":
        begin = "Forward departs at once, in the output of"
        if d.before:
            begin = f"Forward is right up to the output of {d.before}, and departs in that of"
        since = (f" Since the output of {d.since}, from which it is computed as well:"
                 f" {'; '.join(d.since_calls[:_MOST_CALLS])}." if d.since_calls else "")
        there = f" There lies: {calls}." if calls else ""
        return f"{begin} {d.module}{on}{d.how}.{there}{since}"
    if d.stage == "frozen":
        verb = "is" if len(d.direct) == 1 else "are"
        return (f"{some(d.direct)} {verb} frozen{on} (requires_grad is False), and not in the"
                " single run.")
    if d.stage == "cut":
        return (f"Forward is right in {_all(d)}, but the output of {d.module}{on}{d.how}"
                " needs no gradient, as it does in the single run: it is computed under no_grad,"
                " from what is detached or frozen, or by a call that autograd knows nothing of."
                + (f" Between the output of {d.before} and it lies: {calls}."
                   if calls and d.before else ""))
    if d.stage == "loss":
        what = ("the loss is right, its backward departs" if _is_right(d.losses)
                else "the loss departs, or its backward")
        return (f"Forward is right in {_all(d)}, {what}: the output of {d.module}{on}"
                f" {d.how}." + (f" Behind it lies: {calls}." if calls else ""))
    if d.stage == "backward":
        begin = (f"backward is right down to the output of {d.before}, and departs" if d.before
                 else "backward departs")
        unsummed = (f" The output of {d.unsummed_before}, from which it is computed, has another"
                    " gradient." if d.unsummed_before else "")
        return (f"Forward is right in {_all(d)}; {begin} at {d.module}, whose output{on}"
                f" {d.how}.{unsummed}"
                + (" The loss is computed from it directly, too." if d.is_in_loss else "")
                + (f" {'Between both' if d.before else 'Behind it'} lies: {calls}." if calls
                   else ""))
    right = f"Forward and backward are right in {_all(d)}"
    if d.stage == "term":
        return f"{right}, but another term of the loss counts otherwise."
    if d.stage == "weights":
        whose = "micro-batches'" if d.are_calls else "ranks'"
        return f"{right}, but the {whose} losses do not weigh alike{_times(d)}{_rows(d)}."
    if d.stage == "shares":
        output, how, calls = d.shared[0]
        return (f"Forward is right in {_all(d)}; the output of {output} {how}."
                + (f" Behind it lies: {'; '.join(calls[:_MOST_CALLS])}." if calls else ""))
    behind = f" After backward, or from its hooks: {calls}." if calls else ""
    before = (f" Between the last module and the loss: {'; '.join(d.behind_modules[:_MOST_CALLS])}."
              if d.behind_modules else "")
    if d.stage == "parameters":
        what = (f"no gradient reaches {some(d.direct)} on any rank" if d.is_cut else
                f"what backward gives to {some(d.direct)}, added up over the ranks before anything"
                " is reduced, is wrong" + (f": {d.how}" if d.how else ""))
        return f"{right}, but {what}.{before}"
    if d.stage == "factor":
        return f"{right}: {_after(d.factors, factor)}.{before}{behind}"
    return f"{right}{_times(d)}; the gradients that the step returns are wrong.{behind}"


def _all(d):
    if d.right < d.compared:
        return f"{d.right} of {d.compared} modules"
    return f"all {d.compared} modules" if d.compared > 1 else "the one module that both runs have"


def _after(factors, factor):
    """What becomes of the ranks' parts of the data, where all gradients are wrong by one factor."""
    weight = next(iter(factors.values()))
    behind = factor / weight
    what = "added up" if abs(behind - 1) <= 0.01 else f"added up and multiplied by {_ratio(behind)}"
    times = ("as the single run's loss does" if abs(weight - 1) <= _SAME_FACTOR
             else f"{_ratio(weight)} times as the single run's loss does")
    return (f"each rank's loss weighs its part of the data {times}, and in the end the ranks' "
            f"gradients are {what}")


def _ratio(x):
    inverse = 1 / x
    return (f"1/{round(inverse)}" if abs(inverse) > 1.5
            and abs(inverse - round(inverse)) < 0.01 * abs(inverse) else f"{x:.4g}")


def _times(d):
    values = list(d.factors.values())
    if not values or all(abs(v - 1) <= _SAME_FACTOR for v in values):
        return ""
    if max(values) - min(values) <= 0.01 * max(map(abs, values)):
        return f", where the ranks' losses weigh their parts {values[0]:.4g} times"
    each = "micro-batch {}" if d.are_calls else "rank {}"
    return ": they weigh their parts " + ", ".join(f"{v:.4g} ({each.format(k + d.are_calls)})"
                                                   for k, v in sorted(d.factors.items())) + " times"


def _rows(d):
    if len(set(d.means_over.values())) < 2:
        return ""
    return (", in inverse proportion to how many of their tokens or rows have a gradient: "
            + ", ".join(str(n) for _, n in sorted(d.means_over.items())))


def _is_right(losses):
    """Whether the ranks' are equal to the single run's, or, where they share the data, their mean
    or sum is."""
    if not losses:
        return False
    ranks, single = losses["ranks"], losses["single"]
    shared = [] if losses.get("each") else [[sum(ranks)], [sum(ranks) / len(ranks)]]
    candidates = [*shared, ranks]
    return any(all(abs(x - single) <= _SAME * abs(single) for x in c) for c in candidates)


def _losses(losses):
    if not losses:
        return []
    values = (", ".join(f"{x:.6g}" for x in losses["ranks"][:8])
              + (", ..." if len(losses["ranks"]) > 8 else ""))
    return [f"Losses: {values} on the ranks, {losses['single']:.6g} in the single run."]


def some(names):
    """As many as a line takes."""
    return words.some(names, _MOST_NAMES)
