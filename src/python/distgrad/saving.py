"""Saves a model's gradients for `distgrad compare`, one .safetensors file a rank.

Call it on every rank, after backward and before the optimiser's step:

    loss.backward()
    save_gradients(model, "grads")

Needs nothing but torch; the format is written by hand. docs/compare.md describes the metadata.
"""

import ctypes
import json
import os
from collections.abc import Mapping

_DTYPE_NAMES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
}


def save_gradients(model, folder, *, step=None, mesh=None):
    """Writes this rank's gradients to `folder`/rank_R.safetensors and returns the path.

    model: a module (plain, DistributedDataParallel, FSDP2, tensor-parallel, compiled), whose
        parameters' `.grad` are saved, or a dict from name to tensor or None. Tensors and DTensors
        of float64, float32, float16 or bfloat16; of a DTensor its local piece, with its placements.
        Complex ones are saved as pairs, with one more dimension.
    step: a number; the file then goes to `folder`/step_NUMBER.
    mesh: the DeviceMesh of all ranks. Only its names of axes are used, and only where no parameter
        is a DTensor on such a mesh.

    The process group gives the rank and world size; without one, RANK and WORLD_SIZE do, as a
    launcher sets them; without both it is rank 0 of 1. Communicates with nobody. The file is
    written whole or not at all. Raises TypeError for gradients of another dtype, OSError if the
    file cannot be written.
    """
    metadata = {}
    if step is not None:
        metadata["step"] = int(step)
        folder = os.path.join(folder, f"step_{int(step)}")
    return save(model, folder, mesh=mesh, **metadata)


def save(model, folder, *, mesh=None, place=None, **metadata):
    """Saves as save_gradients does, with more metadata. `place` is a (rank, world_size) to use
    instead of this process's."""
    rank, world_size = place or _rank_and_world_size()
    meshes = _Meshes(world_size)
    if mesh is not None:
        meshes.index_of(mesh)
    tensors, parameters = {}, {}
    for name, parameter, gradient in _gradients_of(model):
        described = gradient if gradient is not None else parameter
        if not _is_dtensor(described):
            parameters[name] = {}
        elif described.device_mesh.get_coordinate() is None:
            parameters[name] = {"elsewhere": True}
            continue
        else:
            meshes.add_root_of(described.device_mesh)
            parameters[name] = _layout_of(described, meshes)
        if gradient is not None:
            tensors[name] = _local_tensor(name, gradient)
    metadata = {
        "format": 1,
        "rank": rank,
        "world_size": world_size,
        "mesh": meshes.world_axes(),
        "meshes": meshes.described,
        "parameters": parameters,
        "listing": "given" if isinstance(model, Mapping) else "model",
        "groups": process_groups(rank, world_size),
        **metadata,
    }
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"rank_{rank}.safetensors")
    _write(path, tensors, {f"distgrad.{key}": json.dumps(value) for key, value in metadata.items()})
    return path


def _rank_and_world_size():
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    # A launcher's rank may have no process group yet, or have destroyed it.
    rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size):
        return int(rank), int(world_size)
    return 0, 1


def process_groups(rank, world_size):
    """Returns [{"name", "ranks"}] of the groups that this rank is in, except the world and groups
    of one rank. A DeviceMesh names its own groups."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return []
    world = getattr(dist.distributed_c10d, "_world", None)  # there is no public list of them
    found = []
    for group, ranks in getattr(world, "pg_group_ranks", {}).items():
        name = getattr(group, "group_desc", "").removeprefix("mesh_")
        entry = {"name": "" if name in ("undefined", "default_pg") else name,
                 "ranks": sorted(ranks)}
        if 1 < len(ranks) < world_size and rank in ranks and entry not in found:
            found.append(entry)
    return found


def _gradients_of(model):
    """Returns (name, parameter or None, gradient or None) of everything that is trained."""
    import torch

    if isinstance(model, Mapping):
        for name, gradient in model.items():
            if gradient is not None and not isinstance(gradient, torch.Tensor):
                raise TypeError(f"the gradient of {name!r} is a {type(gradient).__name__}, and"
                                " neither a tensor nor None")
        return [(str(name), None, gradient) for name, gradient in model.items()]
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(model, DistributedDataParallel):
        model = model.module
    return [(n, p, p.grad) for n, p in model.named_parameters() if p.requires_grad]


def _is_dtensor(tensor):
    return tensor is not None and hasattr(tensor, "to_local") and hasattr(tensor, "placements")


class _Meshes:
    """Describes each mesh that parameters lie on once."""

    def __init__(self, world_size):
        self.world_size = world_size
        self.described = []

    def index_of(self, mesh):
        ranks = mesh.mesh.flatten().tolist()
        names = mesh.mesh_dim_names or [f"dim_{d}" for d in range(mesh.mesh.dim())]
        entry = {"axes": dict(zip(names, mesh.mesh.shape)), "ranks": ranks}
        if entry not in self.described:
            self.described.append(entry)
        return self.described.index(entry)

    def add_root_of(self, mesh):
        """Adds the root mesh, since it has the names of the axes that a submesh leaves out."""
        root = getattr(mesh, "_get_root_mesh", None)
        if root is None:
            from torch.distributed import device_mesh

            resources = getattr(device_mesh, "_mesh_resources", None)
            root = (lambda: resources.get_root_mesh(mesh)) if resources else (lambda: mesh)
        self.index_of(root())

    def world_axes(self):
        for entry in self.described:
            if len(entry["ranks"]) == self.world_size:
                return entry["axes"]
        return {}


def _layout_of(tensor, meshes):
    index = meshes.index_of(tensor.device_mesh)
    return {
        "shape": list(tensor.shape) + ([2] if tensor.is_complex() else []),
        "mesh": index,
        "placements": {
            axis: _placement_text(placement, tensor.dim())
            for axis, placement in zip(meshes.described[index]["axes"], tensor.placements)
        },
    }


def _placement_text(placement, dims):
    if placement.is_partial():
        return f"Partial({placement.reduce_op})"
    if placement.is_replicate():
        return "Replicate"
    # _StridedShard is cut after the axes to its right. In some versions it is no Shard.
    if hasattr(placement, "split_factor"):
        return f"_StridedShard(dim={placement.dim % dims}, sf={placement.split_factor})"
    return f"Shard({placement.dim % dims})"


def _local_tensor(name, gradient):
    """Returns (dtype name, shape, the contiguous tensor in the CPU's memory). Raises TypeError."""
    import torch

    tensor = gradient.detach()
    if _is_dtensor(tensor):
        tensor = tensor.to_local()
    if hasattr(tensor, "trigger_wait"):  # the result of a collective that is still running
        tensor = tensor.trigger_wait()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.dtype in (torch.complex64, torch.complex128):
        tensor = torch.view_as_real(tensor.resolve_conj())
    if str(tensor.dtype) not in _DTYPE_NAMES:
        raise TypeError(f"the gradient of {name} is {tensor.dtype}: float64, float32, float16 and"
                        " bfloat16 can be saved")
    tensor = tensor.resolve_neg().cpu().contiguous()
    return _DTYPE_NAMES[str(tensor.dtype)], list(tensor.shape), tensor


def _write(path, tensors, metadata):
    header, at = {"__metadata__": metadata}, 0
    for name, (dtype, shape, tensor) in tensors.items():
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    temporary = f"{path}.{os.getpid()}.part"
    try:
        with open(temporary, "wb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            for _, _, tensor in tensors.values():
                size = tensor.numel() * tensor.element_size()
                if size > 0:  # without numpy, and without a copy
                    file.write((ctypes.c_char * size).from_address(tensor.data_ptr()))
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise
