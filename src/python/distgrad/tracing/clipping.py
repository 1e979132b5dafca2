"""What clipping has to do with wrong gradients: other norms, norms of the ranks' own pieces, and a
factor that only follows from them."""

from ..words import ranks_text
from .joining import groupings
from .report import some

_LEAST = 1e-4  # relative: of norms, what is no rounding in any dtype but the short ones


def seen_norms(single, ranks):
    """What clip_grad_norm_ saw; `single`, `ranks`: its events, of each rank."""
    if not single and not any(ranks):
        return []
    if bool(single) != any(map(bool, ranks)):
        callers = ranks_text([i for i, r in enumerate(ranks) if r])
        who = "The single run calls" if single else f"Of {callers} alone there are calls of"
        return [f"{who} {_place(single, ranks)}, and the"
                f" {'ranks do' if single else 'single run does'} not."]
    if not all(ranks):
        return [f"Gradients are clipped on {ranks_text([i for i, r in enumerate(ranks) if r])}"
                f" alone, by {_place(single, ranks)}."]
    norms, truth, slack = _norms(single, ranks)
    more = ([] if len({len(r) for r in ranks} | {len(single)}) == 1
            else [f"{_place(single, ranks)} is called {len(ranks[0])} times on a rank, and"
                  f" {len(single)} in the single run."])
    if all(abs(n - truth) <= slack * truth for n in norms):
        return more
    seen = ", ".join(f"{n:.4g}" for n in norms[:8])
    text = (f"{_place(single, ranks)} saw the norms {seen} on the ranks, {truth:.4g} in the single "
            "run")
    if _are_pieces(norms, truth, slack):
        text += ": those of the ranks' own pieces, not that of all"
    return [text + ".", *more]


def _norms(single, ranks):
    slack = max(_LEAST, 4 * max(event["eps"] for event in [single[-1], *(r[-1] for r in ranks)]))
    return [r[-1]["norm"] for r in ranks], single[-1]["norm"], slack


def _are_pieces(norms, truth, slack):
    return any(all(abs(sum(norms[r]**2 for r in group)**0.5 - truth) <= slack * truth
                   for group in groups) for groups in groupings(len(norms)))


def clip_factor(single, ranks, scaled):
    """Of gradients that are only clipped otherwise, since others are wrong; `scaled`: {name:
    factor}."""
    if not single or not all(ranks):
        return []
    norms, truth, slack = _norms(single, ranks)
    if max(norms) - min(norms) > slack * truth or abs(norms[0] / truth - 1) <= slack:
        return []
    names = [name for name, factor in scaled.items()
             if factor and abs(factor * norms[0] / truth - 1) <= 2 * slack]
    return [f"The factor {truth / norms[0]:.4g} of {some(names)} is what clipping makes of that"
            " norm: it is right again where the norm is."] if names else []


def _place(single, ranks):
    event = next((r[-1] for r in ranks if r), None) or single[-1]
    return f"{event['what']} in {event['place']}"
