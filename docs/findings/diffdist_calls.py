"""diffdist's collectives where tensors are not contiguous, and off the root of a broadcast."""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from diffdist import functional

RANKS = 2


def gathered(kind, x):
    """The stack of all ranks' x, on all ranks or on rank 0."""
    buffers = [torch.zeros_like(x) for _ in range(RANKS)]
    if kind == "all_gather":
        return torch.stack(functional.all_gather(buffers, x))
    on_root = dist.get_rank() == 0
    made = functional.gather(x, buffers if on_root else None, dst=0)
    return torch.stack(list(made)) if on_root else made


def gradient(kind, is_transposed):
    """Of Σ w · y, w telling the elements apart, from y or from y transposed: the same number."""
    x = torch.ones(2, 3, requires_grad=True)
    y, w = gathered(kind, x), torch.arange(12.0).reshape(2, 2, 3)
    if y.numel():
        loss = ((y.mT * w.mT.contiguous()) if is_transposed else y * w).sum()
    else:
        loss = y.sum()  # off the root
    loss.backward()
    return x.grad.tolist()


def scattered(is_transposed):
    """What comes of rank 0's two tensors of rows, in one order of memory or another."""
    parts = [torch.arange(6.0).reshape(2, 3) + 10 * r for r in range(RANKS)]
    if is_transposed:
        parts = [part.T.contiguous().T for part in parts]
    on_root = dist.get_rank() == 0
    return functional.scatter(torch.zeros(2, 3), parts if on_root else None, src=0).tolist()


def off_root():
    """Rank 1's own tensor does not reach anybody's loss."""
    x = torch.ones(3, requires_grad=True)
    functional.broadcast(x * 1, src=0).sum().mul(1.0).backward()
    return x.grad.tolist()


def main(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=RANKS)
    for kind in ("all_gather", "gather"):
        plain, transposed = gradient(kind, False), gradient(kind, True)
        print(f"rank {rank}: {kind}: {transposed}, right {plain}")
    plain, transposed = scattered(False), scattered(True)
    print(f"rank {rank}: scatter: {transposed}, right {plain}")
    print(f"rank {rank}: broadcast: {off_root()}, right {[2.0 if rank == 0 else 0.0] * 3}")


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(main, (tempfile.mktemp(),), RANKS)
