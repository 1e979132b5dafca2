"""How exact the runs are: a model is as exact as the shortest dtype that it computes in."""

import torch

from .joining import tolerance_of_dtype

HALVES = (torch.float16, torch.bfloat16)


def halves(trace):
    """{a half precision: where one process computes in it}. What only
    communicates in it may be a mistake."""
    found = {dtype: place for dtype, place in trace["casts"].items() if dtype in HALVES}
    for output in trace["outputs"]:
        if output["value"].dtype in HALVES:
            found.setdefault(output["value"].dtype, f"as in the output of {output['module']}")
    return found


def computed_in(single, ranks):
    """{dtype's name: (whose, where)} of what is coarser than gradients may be that are saved in a
    wider dtype: float32 of the single run, half precisions of either side."""
    found = {}
    if torch.float32 in single["casts"]:
        found["float32"] = "The single run computes", single["casts"][torch.float32]
    theirs = [halves(trace) for trace in ranks]
    for dtype in HALVES:
        mine = halves(single).get(dtype)
        other = next((places[dtype] for places in theirs if dtype in places), None)
        if mine or other:
            whose = ("Both runs compute" if mine and other else "The single run computes" if mine
                     else "The ranks compute")
            found[str(dtype).removeprefix("torch.")] = whose, mine or other
    return found


def all_seen(traces):
    """{dtype's name: where} of everything that was computed or exchanged."""
    return {str(dtype).removeprefix("torch."): place for trace in traces
            for dtype, place in trace["dtypes"].items()}


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
