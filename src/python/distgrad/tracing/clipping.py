"""What clipping has to do with wrong gradients: other norms, norms of the ranks' own pieces, and a
factor that only follows from them."""

import torch

from ..words import ranks_text
from .joining import groupings, tolerance_of
from .report import some

_GAP = 1e-3  # relative: between factors that are not one
_FEW = 4  # numbers, of which a factor is that of a piece
_LEAST = 1e-4  # relative: of norms, what is no rounding in any dtype but the short ones


def seen_norms(single, ranks):
    """What clip_grad_norm_ saw; `single`, `ranks`: its events, of each rank."""
    if not single or not all(ranks):
        return []
    norms, truth, slack = _norms(single, ranks)
    more = ([] if len({len(r) for r in ranks} | {len(single)}) == 1
            else [f"{_place(single, ranks)} is called {len(ranks[0])} times on a rank, and"
                  f" {len(single)} in the single run."])
    if all(abs(n - truth) <= slack * truth for n in norms):
        return more
    seen = ", ".join(f"{n:.4g}" for n in norms[:8])
    text = (f"{_place(single, ranks)} saw the norms {seen} on the ranks, {truth:.4g} in the single "
            "run")
    if groups := _whose_squares_add_up(norms, truth, slack):
        text += "; the squares add up to the latter's over " + " and over ".join(
            map(ranks_text, groups))
    return [text + ".", *more]


def _norms(single, ranks):
    slack = max(_LEAST, 4 * max(event["eps"] for event in [single[-1], *(r[-1] for r in ranks)]))
    return [r[-1]["norm"] for r in ranks], single[-1]["norm"], slack


def _whose_squares_add_up(norms, truth, slack):
    return next((groups for groups in groupings(len(norms))
                 if all(abs(sum(norms[r]**2 for r in group)**0.5 - truth) <= slack * truth
                        for group in groups)), [])


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
    return [f"The factor {truth / norms[0]:.4g} of {some(names)} is the ratio of these norms."
           ] if names else []


def clipped_in_pieces(names, truth, observed):
    """Where the gradients are multiples of the truth's in as many pieces, at most, as there are
    ranks, and the pieces have one norm: each was clipped by its own. `truth`: by name; `observed`:
    by rank {name: (tensor, where it begins)}."""
    known = [name for name in names if name in truth and all(
        name in rank and rank[name][0].shape == truth[name].shape for rank in observed)]
    if not known or any(not rank[n][0].equal(observed[0][n][0]) for rank in observed
                        for n in known):
        return []
    seen = torch.cat([observed[0][n][0].flatten() for n in known])
    whole = torch.cat([truth[n].flatten() for n in known]).double()
    if tolerance_of(seen) > 2e-3:
        return []
    ratios = seen.double() / whole
    is_large = whole.abs() > 1e-3 * float(whole.square().mean().sqrt())
    factors = _factors(ratios[is_large].sort().values, len(observed))
    if len(factors) < 2 or min(factors) <= 0:
        return []
    nearest = (ratios[:, None] - torch.tensor(factors, dtype=ratios.dtype)).nan_to_num().abs(
        ).argmin(1)
    norms = [factor * float(whole[nearest == i].norm()) for i, factor in enumerate(factors)]
    if max(norms) - min(norms) > _GAP * max(norms):
        return []
    listed = ", ".join(f"{factor:.4g}" for factor in factors)
    return [f"The gradients are {listed} times the single run's in {len(factors)} pieces of all"
            f" parameters one behind another, and each piece has the norm {norms[0]:.4g}."]


def _factors(ratios, most):
    """Of sorted ratios, those that occur; none where they are more than that, or some is rare."""
    if len(ratios) < 2:
        return []
    gaps = (ratios[1:] - ratios[:-1] > _GAP * ratios[1:].abs()).nonzero().flatten() + 1
    if len(gaps) >= most:
        return []
    pieces = torch.tensor_split(ratios, gaps)
    return [float(x.median()) for x in pieces] if min(map(len, pieces)) >= _FEW else []


def _place(single, ranks):
    event = next((r[-1] for r in ranks if r), None) or single[-1]
    return f"{event['what']} in {event['place']}"
