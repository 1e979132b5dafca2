"""What a rank hands over of a gradient, and how the ranks' pieces are laid over the single run's gradient.

A DTensor is joined by its placements, and by nothing else: index numbers are cut as the placements say, so that each element of a
piece says which element of the whole it is. Whether replicas agree is then seen, and not assumed.
"""

import dataclasses


def piece_of(name, value):
    """The piece of a gradient that this process holds, as a dict for torch.save:

    {}                                         the gradient is None
    {"tensor"}                                 a plain tensor
    {"tensor", "index", "shape", "mesh", "axes", "coordinate", "partial", "placements"}   a DTensor: its local tensor, int64
        numbers of its elements in the whole of that shape, the ranks of the mesh, names or None, where this rank is in it, what
        is yet to be reduced, as [[mesh dim, op]]
    {"outside": True}                          a DTensor on a mesh that this rank is not in
    """
    import torch

    if value is None:
        return {}
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"the gradient of {name!r} is a {type(value).__name__}, and neither a tensor nor None")
    if not hasattr(value, "device_mesh") or not hasattr(value, "placements"):
        return {"tensor": _plain(value)}
    mesh = value.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return {"outside": True}
    piece = {"shape": list(value.shape), "mesh": mesh.mesh.tolist(), "axes": list(mesh.mesh_dim_names or ()),
             "coordinate": list(coordinate), "placements": str(tuple(value.placements))}
    piece["index"] = _index(value, mesh, coordinate)
    piece["partial"] = [[dim, str(p.reduce_op)] for dim, p in enumerate(value.placements) if p.is_partial()]
    piece["tensor"] = _plain(value.to_local())
    if piece["tensor"].shape != piece["index"].shape:
        raise ValueError(f"{name!r}: the local tensor is {list(piece['tensor'].shape)}, where {piece['placements']} of"
                         f" {list(value.shape)} on {mesh} asks for {list(piece['index'].shape)}")
    return piece


def _plain(value):
    value = value.detach()
    return (value.to_dense() if value.layout.__str__() != "torch.strided" else value).cpu().clone()


def _index(value, mesh, coordinate):
    import torch

    index = torch.arange(value.numel()).reshape(value.shape)
    for dim, placement in enumerate(value.placements):
        if placement.is_partial() or placement.is_replicate():
            continue
        parts, at = mesh.size(dim), coordinate[dim]
        if type(placement).__name__ == "Shard":
            chunks = index.chunk(parts, placement.dim)
            index = chunks[at] if at < len(chunks) else index.narrow(placement.dim, 0, 0)
        elif hasattr(placement, "_split_tensor"):  # _StridedShard, of FSDP over tensor parallel
            index = placement._split_tensor(index, parts, with_padding=False, contiguous=True)[0][at]
        else:
            raise TypeError(f"how to join a gradient that is placed {placement} is not known")
    return index.contiguous()


@dataclasses.dataclass
class Held:
    """What one rank holds of a gradient, flat, in float64 (complex128)."""

    rank: int
    value: object  # tensor
    index: object  # tensor: which elements of the whole
    dtype: object
    axes: tuple = ()  # of its mesh: (name, ranks along it)


class Misfit(Exception):
    """The pieces do not make up a tensor of the truth's shape; the text says why."""


def lay_out(pieces, truth, reduce):
    """({rank: piece}, the single run's tensor, None or "sum", "mean", ...) -> ([Held], how they were joined, or "").
    Raises Misfit. Pieces that are None are left out."""
    pieces = {rank: p for rank, p in pieces.items() if "tensor" in p}
    distributed = [rank for rank, p in pieces.items() if "index" in p]
    if distributed and len(distributed) < len(pieces):
        raise Misfit(f"a DTensor on ranks {_listed(distributed)} and a plain tensor on the others")
    if not distributed:
        return _lay_out_plain(pieces, truth, reduce)
    for piece in pieces.values():
        if piece["shape"] != list(truth.shape):
            raise Misfit(f"its shape is {piece['shape']} as a DTensor, and {list(truth.shape)} in the single run")
    return _reduce_partial(pieces), ""


def _lay_out_plain(pieces, truth, reduce):
    import torch

    whole = torch.arange(truth.numel())
    shapes = {rank: list(p["tensor"].shape) for rank, p in pieces.items()}
    if all(shape == list(truth.shape) for shape in shapes.values()):
        held = [Held(rank, wide(p["tensor"]).flatten(), whole, p["tensor"].dtype) for rank, p in pieces.items()]
        return (_reduced(held, reduce), f"{reduce} over the ranks") if reduce else (held, "")
    if reduce:
        raise Misfit(f"to be reduced, but of shapes {_shapes(shapes)}; the single run's is {list(truth.shape)}")
    dim = _joining_dim(list(shapes.values()), list(truth.shape))
    if dim is None:
        raise Misfit(f"the ranks' shapes are {_shapes(shapes)}, and joined along no dim do they make {list(truth.shape)}")
    held, at, numbers = [], 0, whole.reshape(truth.shape)
    for rank, piece in sorted(pieces.items()):
        size = shapes[rank][dim]
        index = numbers.narrow(dim, at, size).flatten()
        held.append(Held(rank, wide(piece["tensor"]).flatten(), index, piece["tensor"].dtype))
        at += size
    return held, f"joined along dim {dim}"


def _joining_dim(shapes, whole):
    fitting = [d for d in range(len(whole)) if all(len(s) == len(whole) for s in shapes)
               and all(s[:d] + s[d + 1:] == whole[:d] + whole[d + 1:] for s in shapes) and sum(s[d] for s in shapes) == whole[d]]
    return fitting[0] if len(fitting) == 1 else None


def _reduce_partial(pieces):
    held = {}
    for rank, p in pieces.items():
        mesh = p["mesh"]
        names = p["axes"] or [f"mesh dim {d}" for d in range(len(p["coordinate"]))]
        axes = tuple((name, tuple(_along(mesh, p["coordinate"], d))) for d, name in enumerate(names))
        held[rank] = Held(rank, wide(p["tensor"]).flatten(), p["index"].flatten(), p["tensor"].dtype, axes)
    for dim in reversed(range(max(len(p["coordinate"]) for p in pieces.values()))):
        before = dict(held)
        for rank, p in pieces.items():
            op = dict(map(tuple, p["partial"])).get(dim)
            if op is None:
                continue
            group = [before[r] for r in held[rank].axes[dim][1] if r in before]
            if any(g.index.shape != held[rank].index.shape for g in group):
                raise Misfit(f"partial along {held[rank].axes[dim][0]}, but of different shapes along it")
            held[rank] = dataclasses.replace(held[rank], value=_reduced(group, op)[0].value)
    return list(held.values())


def _reduced(held, op):
    """Every rank with the reduction of all of them."""
    import torch

    stacked = torch.stack([h.value for h in held])
    made = {"sum": lambda: stacked.sum(0), "mean": lambda: stacked.mean(0), "avg": lambda: stacked.mean(0),
            "max": lambda: stacked.amax(0), "min": lambda: stacked.amin(0), "product": lambda: stacked.prod(0)}
    if op not in made:
        raise Misfit(f"how to reduce by {op!r} is not known")
    value = made[op]()
    return [dataclasses.replace(h, value=value) for h in held]


def _along(mesh, coordinate, dim):
    """The ranks of a nested list that differ from `coordinate` in `dim` only."""
    import torch

    place = tuple(slice(None) if d == dim else c for d, c in enumerate(coordinate))
    return torch.tensor(mesh)[place].tolist()


def wide(tensor):
    """In float64, or complex128: every value exactly."""
    import torch

    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _listed(ranks):
    return ", ".join(map(str, sorted(ranks)))


def _shapes(shapes):
    return ", ".join(f"{shape}" for shape in shapes.values())
