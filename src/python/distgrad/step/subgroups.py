"""Knows the job's process groups: what a factor may count, and over which ranks a reduction may
have gone."""

from ..saving import process_groups
from ..words import ranks_text


def subgroups(runs):
    """Returns {ranks: name or ""} of the groups that are smaller than all ranks."""
    if runs.team.global_ranks != list(range(runs.team.size)):
        return {}
    own = [(tuple(group["ranks"]), group["name"])
           for group in process_groups(runs.rank, runs.team.size)]
    return dict(sorted(found for row in runs.gather(own) for found in row))


def counts(groups):
    """Returns {what a factor may count: number} of groups."""
    return {f"ranks along {name}" if name else "ranks in a group": len(ranks)
            for ranks, name in groups.items()}


def partitions(groups, size):
    """Returns {text: {rank: the ranks of its group}} of groups that divide all ranks."""
    found = {}
    for n in {len(ranks) for ranks in groups}:
        alike = [ranks for ranks in groups if len(ranks) == n]
        for first in alike:  # Meshes have several divisions into groups of one size.
            chosen = [first]
            for ranks in alike:
                if not any(set(ranks) & set(other) for other in chosen):
                    chosen.append(ranks)
            if n * len(chosen) == size:
                text = " or ".join(map(ranks_text, sorted(chosen)))
                found[text] = {rank: ranks for ranks in chosen for rank in ranks}
    return found
