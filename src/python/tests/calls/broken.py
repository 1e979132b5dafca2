"""Calls that go wrong in other ways than by a number."""

import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist


def raises(x, w):
    raise ValueError("no such luck")


def raises_odd_text(x, w):
    raise ValueError("half a pair: \ud800, and \x1b[31mred")


def raises_a_book(x, w):
    raise ValueError("a" * 1_000_000 + " the end")


def exits(x, w):
    raise SystemExit(5)


def dies(x, w):
    os.kill(os.getpid(), 11)


def blocks(x, w):
    time.sleep(1000)


def leaves_a_thread(x, w):
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return x * w


def leaves_another_dtype_and_folder(x, w):
    torch.set_default_dtype(torch.float16)
    os.chdir("/usr")
    return x * w


def gives_a_tuple(x, w):
    return x, w


def none_on_rank_1(x, w):
    return x * w if dist.get_rank() == 0 else None


def writes_a_file(x, w):
    Path(__file__).with_name("ran").touch()
    return x * w
