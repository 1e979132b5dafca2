"""Finds which parameters are one variable, and on which ranks a part of it lies.

A parameter that several ranks hold with the same bits is one variable with copies, and is moved
alike on all of them. If its values differ, each rank (or group of equal ones) holds a piece of its
own. A DTensor itself tells which piece a rank has.
"""

import fnmatch
import hashlib
from dataclasses import dataclass

import torch

_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(frozen=True)
class Piece:
    """Describes a parameter's part that the ranks in `holders` hold with the same values. index is
    its number among the parameter's pieces; digest is that of its values, or "" if these differ.
    is_constant says that all its elements are one number, so that pieces may be equal by chance;
    declared says that a DTensor or the caller tells who its holders are."""

    name: str
    index: int
    shape: tuple
    holders: tuple
    digest: str
    is_constant: bool
    declared: bool

    @property
    def key(self):
        return f"{self.name}/{self.index}"


def plain(name):
    """Returns a parameter's or module's name without DDP's, FSDP's and compile's wrappers."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def local_of(x):
    """Returns what this process holds of a tensor, without a copy."""
    if hasattr(x, "trigger_wait"):  # An AsyncCollectiveTensor has this.
        x = x.trigger_wait()
    return x._local_tensor if hasattr(x, "_local_tensor") and hasattr(x, "placements") else x


def has_shares(x):
    """Returns whether x is a DTensor of which each rank has a share of a sum. A row-wise
    embedding's output, for example, is spoilt by any operator that is not the plan's."""
    return hasattr(x, "placements") and hasattr(x, "device_mesh") and any(
        p.is_partial() for p in x.placements)


def gradient_of(p):
    """Copies the gradient that an optimizer sees for this process's part of a parameter, or returns
    None. All ranks of a DTensor's mesh call it, as it may redistribute the gradient."""
    if p.grad is None:
        return None
    g = p.grad.detach()
    if hasattr(g, "placements") and hasattr(p, "placements") and g.placements != p.placements:
        g = g.redistribute(p.device_mesh, p.placements)
    g = local_of(g)
    return (g.to_dense() if g.is_sparse else g).clone()


def named_parameters(model, frozen=()):
    """Returns {name: parameter} of those that are trained, or have one of the names in `frozen`,
    and have a part in this process."""
    return {plain(name): p for name, p in model.named_parameters()
            if (p.requires_grad or plain(name) in frozen) and local_of(p).numel()}


def padding_rows(model, parameters):
    """Returns {name: row of this rank's part} of embeddings' padding_idx, whose gradient torch
    keeps 0."""
    names, found = {id(p): name for name, p in parameters.items()}, {}
    for module in model.modules():
        name = names.get(id(getattr(module, "weight", None)))
        row = getattr(module, "padding_idx", None)
        if name is None or not isinstance(row, int):
            continue
        first, *_ = _offset(module.weight) or (0,)
        if 0 <= row - first < len(local_of(module.weight)):
            found[name] = row - first
    return found


def under_one_name(parameters, copies):
    """Returns `parameters` with the first of the names in "embedding.weight=head.weight", an entry
    of `copies`, for any of them: one parameter has another name on each stage of a pipeline."""
    first = {plain(name): plain(names[0]) for names in (text.split("=") for text in copies)
             for name in names[1:]}
    return {first[name] if first.get(name, name) not in parameters else name: p
            for name, p in parameters.items()}


def described(parameters, model):
    """Describes this rank's named_parameters() for pieces(), by plain values that can be sent to
    all ranks."""
    found, of_ddp = {}, _of_ddp(model)
    for name, p in parameters.items():
        local = local_of(p.detach())
        found[name] = {"shape": tuple(local.shape), "at": _offset(p), "digest": digest(local),
                       "is_copy": bool(_mesh(p)) or id(p) in of_ddp,
                       "mesh": _mesh(p), "is_constant": bool((local == local.flatten()[0]).all())}
    return found


def _of_ddp(model):
    """Returns ids of the parameters that DistributedDataParallel keeps equal."""
    found = set()
    for module in model.modules():
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            found |= {id(p) for name, p in module.module.named_parameters()
                      if name not in module.parameters_to_ignore}
    return found


def pieces(by_rank, copies=(), apart=()):
    """Returns all pieces in the order of the first rank's model. by_rank has what each rank's
    described() gave. Names that match patterns in `copies` are one variable, those in `apart` are
    one per rank, whatever their values are."""
    found, copies = [], [text.partition("=")[0] for text in copies]
    for name in dict.fromkeys(name for rows in by_rank for name in rows):
        groups = {}
        for rank, rows in enumerate(by_rank):
            if name in rows:
                groups.setdefault(_group(name, rank, rows[name], copies, apart), []).append(rank)
        joined = {}
        for holders in groups.values():
            rows = [by_rank[rank][name] for rank in holders]
            same = {row["digest"] for row in rows}
            value = same.pop() if len(same) == 1 else ""
            # Copies may lie on several meshes, as for hand-cut layers that FSDP shards.
            key = (value, rows[0]["at"]) if value and not matches(name, apart) else holders[0]
            joined.setdefault(key, (rows[0]["shape"], value, rows[0]["is_constant"], []))[3].extend(
                holders)
        declared = matches(name, (*copies, *apart)) or any(rows[name]["is_copy"] for rows in by_rank
                                                           if name in rows)
        for index, (shape, value, is_constant, holders) in enumerate(joined.values()):
            found.append(Piece(name, index, shape, tuple(sorted(holders)), value, is_constant,
                               declared))
    return found


def may_be_pieces(piece, every):
    """Returns whether equal values show nothing, because they are one number, as zeros of biases
    and ones of norms, and another parameter is cut into pieces, or some ranks do not have it."""
    return piece.is_constant and not piece.declared and any(
        not other.is_constant and set(piece.holders) - set(other.holders) for other in every)


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def digest(local):
    """Returns a text that is the same for tensors of the same bits, shape and dtype."""
    flat = local.detach().resolve_conj().contiguous().reshape(-1)
    data = flat.cpu().view(torch.uint8) if flat.numel() else flat.cpu()
    done = hashlib.blake2b(data.numpy().tobytes() if data.numel() else b"", digest_size=12)
    done.update(f"{tuple(local.shape)} {local.dtype}".encode())
    return done.hexdigest()


def _group(name, rank, row, copies, apart):
    if matches(name, apart):
        return rank
    if matches(name, copies):
        return row["shape"]
    return row["at"], row["shape"], row["mesh"] or row["digest"]


def _offset(p):
    """Returns where the local part of a DTensor begins in the whole, or () for a plain tensor."""
    if not hasattr(p, "placements") or not hasattr(p, "device_mesh"):
        return ()
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return tuple(compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)[1])


def _mesh(p):
    """Returns the ranks of a DTensor's mesh, on which replicas are copies; () for others."""
    if not hasattr(p, "placements") or not hasattr(p, "device_mesh"):
        return ()
    return tuple(sorted(p.device_mesh.mesh.flatten().tolist()))
