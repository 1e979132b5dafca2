"""Of a script: how it runs and what it prints."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def shown(value):
    if value is None or not value.dim():
        return "None" if value is None else f"{value.item():.6g}"
    numbers = [f"{number:.6g}" for number in value.flatten().tolist()]
    return "[" + ", ".join(numbers[:6]) + (", ...]" if len(numbers) > 6 else "]")


def report(losses, true_losses, compared):
    """Prints what the ranks observed beside the truth; whether they differ."""
    table = [("gradient of", "", "observed", "truth", "")]
    for name, where, seen, wanted, bound in compared:
        value = torch.zeros_like(wanted) if seen is None else seen.double()
        same = value.shape == wanted.shape and torch.isclose(
            value, wanted, rtol=0, atol=bound, equal_nan=True).all()
        table.append((name, where, shown(seen), shown(wanted), "" if same else "<-- differs"))
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    for row in table:
        print("  ".join(text.ljust(width) for text, width in zip(row, [*widths, 0])).rstrip())
    print("losses by rank:", *(f"{loss:.9g}" for loss in losses),
          "| truth:", *(f"{loss:.9g}" for loss in true_losses))
    return any(row[4] for row in table)


def start(rank, port, code):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    if run(rank):
        code.value = 1


def main():
    if "TORCHELASTIC_RUN_ID" in os.environ:  # under torchrun
        dist.init_process_group("gloo")
        return run(dist.get_rank())
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    code = mp.get_context("spawn").Value("i", 0)
    mp.spawn(start, (store.port, code), nprocs=world_size)
    return code.value
