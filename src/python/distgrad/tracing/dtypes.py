"""How exact the runs are: a model is as exact as the shortest dtype that it computes in."""

import torch

from .joining import tolerance_of_dtype


def coarsest(traces):
    """Of what modules gave, float32 also where something is converted to it on the way (losses,
    norms); None where no module gave anything. Whether short dtypes are on the gradients' way, the
    modules tell."""
    found = {output["value"].dtype for trace in traces for output in trace["outputs"]}
    if found == {torch.float64} and any(torch.float32 in trace["casts"] for trace in traces):
        found.add(torch.float32)
    return max(found, key=tolerance_of_dtype, default=None)


def narrowed(trace, dtype):
    """The trace with nothing in it more exact than that dtype."""

    def narrow(x):
        if x is None or tolerance_of_dtype(x.dtype) >= tolerance_of_dtype(dtype):
            return x
        return x.to(dtype)

    outputs = [{
        **output, "value": narrow(output["value"]),
        "gradient": narrow(output["gradient"])
    } for output in trace["outputs"]]
    arrived = {name: narrow(x) for name, x in trace["arrived"].items()}
    gradients = {name: (narrow(x), at) for name, (x, at) in trace.get("gradients", {}).items()}
    return {**trace, "outputs": outputs, "arrived": arrived, "gradients": gradients}
