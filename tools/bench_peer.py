"""The Python peer of distgrad's benchmarks: pytorch#58005's program as a person would write it.

    x = 1; xx = (rank + 2) * x; y = all_reduce(xx); loss = y * y; x's gradient on every rank

  bench_peer.py cold --ranks 4               spawn 4 gloo processes, run the program once, end
  bench_peer.py warm --ranks 4 --count 100   the processes stay; the program 100 times
  bench_peer.py local-tensor --ranks 4 --count 100
                                             one process simulates them, with LocalTensorMode

Prints one JSON object. wall_s: the mode's work as seen from here, after `import torch`: in cold
with the start and the end of the processes, in warm and local-tensor the programs alone (the
slowest rank), start_s being what came before and after. import_s: the import of torch and
torch.distributed.nn in this process. gradients: of the first eight ranks. Run it with a python
that has torch.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import warnings

_start = time.perf_counter()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.nn  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

IMPORT_S = time.perf_counter() - _start
warnings.filterwarnings("ignore", category=FutureWarning)  # torch.distributed.nn's, from 2.15 on


def program(rank, device="cpu"):
    x = torch.ones((), dtype=torch.float64, device=device, requires_grad=True)
    xx = (rank + 2) * x
    y = torch.distributed.nn.all_reduce(xx)
    (y * y).backward()
    return x.grad.item()


def take_gpu(rank, ranks):
    """The rank's device. Ranks that must share one tell NCCL so (2.30 and later), or look like
    hosts of their own."""
    count = torch.cuda.device_count()
    if ranks > count and torch.cuda.nccl.version() >= (2, 30):
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    elif ranks > count:
        os.environ.update(NCCL_HOSTID=f"bench-{os.getppid()}-{rank}", NCCL_SOCKET_IFNAME="lo",
                          NCCL_IB_DISABLE="1")
    torch.cuda.set_device(rank % count)
    return torch.device("cuda", rank % count)


def run_rank(rank, ranks, count, backend, store, results):
    torch.set_num_threads(1)
    device = take_gpu(rank, ranks) if backend == "nccl" else torch.device("cpu")
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks)
    dist.all_reduce(torch.ones(1, device=device))
    begin = time.perf_counter()
    for _ in range(count):
        gradient = program(rank, device)
    results.put((rank, gradient, time.perf_counter() - begin))
    dist.destroy_process_group()


def spawn(ranks, count, backend):
    with tempfile.TemporaryDirectory() as folder:
        results = mp.get_context("spawn").SimpleQueue()
        begin = time.perf_counter()
        arguments = (ranks, count, backend, os.path.join(folder, "store"), results)
        mp.spawn(run_rank, args=arguments, nprocs=ranks)
        total = time.perf_counter() - begin
        rows = sorted(results.get() for _ in range(ranks))
    return [row[1] for row in rows], max(row[2] for row in rows), total


def cold(ranks, _, backend):
    gradients, _, total = spawn(ranks, 1, backend)
    return {"wall_s": total, "gradients": gradients}


def warm(ranks, count, backend):
    gradients, programs, total = spawn(ranks, count, backend)
    return {"wall_s": programs, "start_s": total - programs, "gradients": gradients}


def local_tensor(ranks, count, _):
    try:
        from torch.distributed._local_tensor import LocalTensorMode
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        sys.exit(f"torch {torch.__version__} has no LocalTensorMode: {error}")
    torch.set_num_threads(1)
    begin = time.perf_counter()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    with LocalTensorMode(ranks) as mode:
        factor = mode.rank_map(lambda rank: torch.tensor(rank + 2.0, dtype=torch.float64))
        start = time.perf_counter() - begin
        begin = time.perf_counter()
        for _ in range(count):
            x = mode.rank_map(lambda rank: torch.ones((), dtype=torch.float64)).requires_grad_()
            y = torch.distributed.nn.all_reduce(factor * x)
            (y * y).backward()
            gradients = [x.grad._local_tensors[rank].item() for rank in range(ranks)]
        programs = time.perf_counter() - begin
    dist.destroy_process_group()
    return {"wall_s": programs, "start_s": start, "gradients": gradients}


def main():
    modes = {"cold": cold, "warm": warm, "local-tensor": local_tensor}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=modes)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--count", type=int, default=1, help="programs (cold: always 1)")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo",
                        help="of cold and warm")
    options = parser.parse_args()
    count = 1 if options.mode == "cold" else options.count
    if options.ranks < 1 or count < 1:
        parser.error("--ranks and --count are at least 1")
    result = modes[options.mode](options.ranks, count, options.backend)
    expected = [(rank + 2) * 2.0 * options.ranks * sum(range(2, options.ranks + 2))
                for rank in range(options.ranks)]  # the gradient of the sum of all ranks' losses
    head = {"mode": options.mode, "ranks": options.ranks, "count": count,
            "torch": torch.__version__, "import_s": IMPORT_S}
    result["as_expected"] = result["gradients"] == expected
    result["gradients"] = result["gradients"][:8]
    print(json.dumps({**head, **result}))


if __name__ == "__main__":
    main()
