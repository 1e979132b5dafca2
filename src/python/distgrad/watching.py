"""Records what each rank of a step computed before anything was reduced: how many backward passes,
and a digest of the gradients.

Ranks with the same digest had the same data. A mean over them changes nothing, so a right one shows
nothing.
"""

import hashlib
import math


class Watch:
    """Watches every new nn.Parameter from start() on, also those that FSDP makes for the gathered
    weights."""

    def __init__(self):
        self._seen = []  # per parameter, a number for each gradient that reached it

    def start(self):
        import torch

        original = torch.nn.Parameter.__new__

        def watched(cls, data=None, requires_grad=True):
            made = original(cls, data, requires_grad)
            if requires_grad and made.is_leaf:
                self._seen.append(seen := [])
                made.register_hook(lambda gradient: seen.append(_checksum(gradient)))
            return made

        torch.nn.Parameter.__new__ = staticmethod(watched)

    def described(self, gradients):
        """Returns the metadata (docs/compare.md) for a step that returned `gradients` gradients."""
        reached = [seen for seen in self._seen if seen]
        found = {"counts": {}, "local": ""}
        passes = max(map(len, reached), default=0)
        if passes > 1:
            found["counts"]["backward passes"] = passes
        is_known = (all(math.isfinite(c) for seen in reached for c in seen)
                    and any(any(seen) for seen in reached))
        # Otherwise some gradients did not come from a watched parameter, and what they are made of
        # is unknown.
        if is_known and len(reached) >= gradients > 0:
            found["local"] = hashlib.sha256(repr(reached).encode()).hexdigest()
        return found


def _checksum(gradient):
    import torch

    try:
        local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        flat = (torch.view_as_real(local.resolve_conj())
                if local.is_complex() else local).detach().reshape(-1).double()
        return float((flat * torch.arange(1.0, flat.numel() + 1, dtype=torch.float64,
                                          device=flat.device).cos()).sum())
    except Exception:  # a gradient that has no numbers, as under tracing: nothing is known
        return math.nan
