"""Chooses what carries a rank's collectives, and where its tensors are. A rank serves one backend
on one device for its life.

CUDA is first touched here, in a rank. The zygote never touches it, as CUDA does not survive a fork.
"""

import os

import torch
import torch.distributed as dist

from .board import local_rank, local_size
from .call import NotOffered

# The rank itself reports errors: c10d's own threads must neither end the process nor wait beside
# it, and wait() looks for NCCL's errors. src/rank/backends/nccl/nccl.cpp does the same.
_NCCL_ENVIRONMENT = {
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
_SHARE_GPU = "DISTGRAD_SHARE_GPU"  # set by the driver (--share-gpu)


class Transport:
    """Holds `backend`, "gloo" or "nccl", and the device. `device` is "cpu" or "cuda". Raises
    NotOffered with the reason if this torch lacks one."""

    def __init__(self, backend, device, rank, world_size):
        self.backend = backend
        self.device = torch.device("cpu")
        if backend not in ("gloo", "nccl"):
            raise NotOffered(f"ranks in Python run on gloo or nccl, not on {backend}")
        if device == "cuda":
            self.device = _cuda_device(backend, rank, world_size)
        if backend == "nccl":
            if not dist.is_nccl_available():
                raise NotOffered(f"the torch {torch.__version__} of this interpreter has no NCCL")
            os.environ.update(_NCCL_ENVIRONMENT)


def _cuda_device(backend, rank, world_size):
    if not torch.cuda.is_available():
        raise NotOffered(f"the torch {torch.__version__} of this interpreter finds no GPU")
    count = torch.cuda.device_count()
    here = local_size(world_size)
    if backend == "nccl" and here > count:
        if not os.environ.get(_SHARE_GPU):
            raise NotOffered(f"{here} ranks need as many GPUs, and there are {count}; --share-gpu"
                             " lets ranks share one")
        _allow_sharing(rank)
    torch.backends.cudnn.allow_tf32 = False  # on by default, but the bounds are those of the dtype
    device = torch.device("cuda", local_rank(rank) % count)
    torch.cuda.set_device(device)
    return device


def _allow_sharing(rank):
    """Lets ranks share a GPU. NCCL 2.30 and later allow it if asked; older ones refuse two ranks on
    one GPU. Ranks that call themselves different hosts, and talk over loopback, get past that."""
    if torch.cuda.nccl.version() >= (2, 30):
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
        return
    os.environ.setdefault("NCCL_HOSTID", f"distgrad-{os.getppid()}-{rank}")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_IB_DISABLE", "1")
