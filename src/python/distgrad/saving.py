"""Saves a model's gradients for `distgrad compare`, one .safetensors file a rank.

Call it on every rank, after backward and before the optimiser's step:

    loss.backward()
    save_gradients(model, "grads")

Needs nothing but torch; the format is written by hand. docs/compare.md describes the metadata.
"""

import ctypes
import json
import os

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
    step: a number; the file then goes to `folder`/step_NUMBER.
    mesh: the DeviceMesh of all ranks. Only its names of axes are used, and only where no parameter
        is a DTensor on such a mesh.

    Communicates with nobody. The file is there whole or not at all. Raises TypeError for gradients
    of another dtype, OSError where the file cannot be written.
    """
    rank, world_size = _rank_and_world_size()
    meshes = _Meshes(world_size)
    if mesh is not None:
        meshes.index_of(mesh)
    tensors, parameters = {}, {}
    for name, parameter, gradient in _gradients_of(model):
        described = gradient if gradient is not None else parameter
        if _is_dtensor(described):
            if described.device_mesh.get_coordinate() is None:
                continue  # this rank holds nothing of it
            meshes.add_root_of(described.device_mesh)
            parameters[name] = _layout_of(described, meshes)
        else:
            parameters[name] = {}
        if gradient is not None:
            tensors[name] = _local_bytes(name, gradient)
    metadata = {
        "distgrad.format": "1",
        "distgrad.rank": str(rank),
        "distgrad.world_size": str(world_size),
        "distgrad.mesh": json.dumps(meshes.world_axes()),
        "distgrad.meshes": json.dumps(meshes.described),
        "distgrad.parameters": json.dumps(parameters),
    }
    if step is not None:
        metadata["distgrad.step"] = json.dumps(int(step))
        folder = os.path.join(folder, f"step_{int(step)}")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"rank_{rank}.safetensors")
    _write(path, tensors, metadata)
    return path


def _rank_and_world_size():
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _gradients_of(model):
    """(name, parameter or None, gradient or None) of everything that is trained."""
    if isinstance(model, dict):
        return [(name, None, gradient) for name, gradient in model.items()]
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(model, DistributedDataParallel):
        model = model.module
    return [(n, p, p.grad) for n, p in model.named_parameters() if p.requires_grad]


def _is_dtensor(tensor):
    return tensor is not None and hasattr(tensor, "to_local") and hasattr(tensor, "placements")


class _Meshes:
    """The meshes that parameters lie on, each described once."""

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
        """The whole world's mesh has the names of the axes that a submesh leaves out."""
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
        "shape": list(tensor.shape),
        "mesh": index,
        "placements": {
            axis: _placement_text(placement)
            for axis, placement in zip(meshes.described[index]["axes"], tensor.placements)
        },
    }


def _placement_text(placement):
    if placement.is_partial():
        return f"Partial({placement.reduce_op})"
    if placement.is_replicate():
        return "Replicate"
    # _StridedShard is cut after the axes to its right; in some versions it is no Shard.
    if hasattr(placement, "split_factor"):
        return f"_StridedShard(dim={placement.dim}, sf={placement.split_factor})"
    return f"Shard({placement.dim})"


def _local_bytes(name, gradient):
    """(dtype name, shape, the tensor in the CPU's memory)."""
    tensor = gradient.detach()
    if _is_dtensor(tensor):
        tensor = tensor.to_local()
    if str(tensor.dtype) not in _DTYPE_NAMES:
        raise TypeError(f"the gradient of {name} is {tensor.dtype}: float64, float32, float16 and bfloat16 can be saved")
    if tensor.layout != _strided():
        tensor = tensor.to_dense()
    tensor = tensor.cpu().contiguous()
    return _DTYPE_NAMES[str(tensor.dtype)], list(tensor.shape), tensor


def _strided():
    import torch

    return torch.strided


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
