"""Measures each autograd.Function that a step calls between two outputs of modules: runs gradcheck
of the function with the arguments that it got there."""

import torch
from torch.utils._pytree import tree_flatten, tree_map

from ..gradient_check.leading import check
from ..gradient_check.passes import Options
from ..gradient_check.waiting import calls_entered, entered_smaller
from ..ranks.places import place
from .roots import is_in_backward
from .seen import functions_noted
from .variables import digest

_MOST = 4  # More calls than this are not measured.
_MOST_ELEMENTS = 1 << 22  # A call's arguments may have so many elements.


def measured(runs, watch, after, before, elsewhere=""):
    """Returns sentences on each function, the same on all ranks, or none if the ranks call
    different ones. watch(act) makes a Watch. In forward the calls lie between the outputs with the
    keys after (None: the step's begin) and before (None: its end). If these lie on other ways, too,
    as `elsewhere` says, there are sentences on functions that are wrong by themselves only."""
    found = _between(runs, watch, after, before)
    every = runs.gather([(text, _digests(args)) for _, text, args, _ in found])
    texts = [[(text, d is not None) for text, d in row] for row in every]
    if any(row != texts[0] for row in texts) or not 0 < len(found) <= _MOST:
        return []
    lines = []
    for i, (function, text, args, strides) in enumerate(found):
        if args is None:
            continue
        since = calls_entered(ended=runs.ended)
        report = check(function.apply, args, {}, runs.team, Options(is_plain=True))
        # It was judged for losses of the whole team. With one per subgroup it may be right.
        is_in_parts = any(runs.gather(entered_smaller(runs.team.size, since, runs.ended)))
        # Arguments that ranks hold alike may be copies of a tensor, with another right gradient.
        may_be_copies = any(len(set(same)) < len(same) for same in zip(*(r[i][1] for r in every)))
        if elsewhere and (report.verdict != "wrong" or report.right_for or is_in_parts):
            continue
        # Other strides than these could leave ranks that wait for each other.
        how = " with contiguous cotangents, which the step's are not" if any(
            runs.gather(bool(strides))) else ""
        lines += _told(f"{text}, {elsewhere or 'called there'},", how, report,
                       may_be_copies or runs.objective == "replicated", is_in_parts)
    return list(dict.fromkeys(lines))


def _digests(args):
    if args is None:
        return None
    return [digest(x.detach()) for x in tree_flatten(args)[0]
            if isinstance(x, torch.Tensor) and x.requires_grad]


def _between(runs, watch, after, before):
    """Returns [(Function, "Name in layer.py:12", copies of its arguments, strides of cotangents
    that are not contiguous)], with None for arguments that are large, or no plain tensors."""
    found, is_open = [], after is None

    def act(key, _):
        nonlocal is_open
        if not is_in_backward() and key in (after, before):
            is_open = key == after

    def note(function, args):
        is_torchs = function.__module__.startswith("torch.") and not function.__module__.startswith(
            "torch.distributed.nn.")
        if is_open and not is_torchs:
            copies = _copies(args) if len(found) < _MOST else None
            strides = set()
            found.append((function, f"{function.__name__} in {place()}", copies, strides))
            return lambda made: _note_strides(made, strides)
        return None

    with watch(act), functions_noted(note):
        runs.run()
    return found


def _note_strides(made, strides):
    """Notes the strides of cotangents of these results if they are not contiguous."""
    def note(g):
        if not g.is_contiguous():
            strides.add(g.stride())

    for x in tree_flatten(made)[0]:
        if isinstance(x, torch.Tensor) and x.requires_grad:
            x.register_hook(note)


def _copies(args):
    tensors = [x for x in tree_flatten(args)[0] if isinstance(x, torch.Tensor)]
    if not any(x.requires_grad for x in tensors) or sum(
            x.numel() for x in tensors) > _MOST_ELEMENTS or any(
                type(x) not in (torch.Tensor, torch.nn.Parameter) for x in tensors):
        return None
    return tree_map(lambda x: x.detach().clone().requires_grad_(x.requires_grad)
                    if isinstance(x, torch.Tensor) else x, tuple(args))


def _told(text, how, report, is_open, is_in_parts):
    """Returns sentences with the formula. They call it wrong only if no objective makes it right,
    as it is not known which one holds here; is_open says that what is right depends on that."""
    if report.verdict == "right":
        formulas = [line for lines in report.formulas.values() for line in lines]
        legends = "".join(f" ({legend})" for legend in report.legends)
        return [f"{text} measured by itself{how}: "
                + (", ".join(formulas) + legends if formulas
                   else "right for the sum of the ranks' losses") + "."]
    lines = []
    for finding in report.findings if report.verdict == "wrong" else ():
        found, right = ", ".join(finding.measured), ", ".join(finding.right)
        found += f" ({finding.legend})" if found and finding.legend else ""
        if (report.right_for or is_in_parts) and found:
            lines.append(f"{text} measured by itself{how}: {found}.")
        elif not report.right_for and not is_in_parts:
            right = "" if is_open else f" in place of {right}"
            lines.append(f"{text} is wrong by itself: {finding.name}"
                         + (f", {found}{right}." if found else f", {finding.text}."))
    return lines
