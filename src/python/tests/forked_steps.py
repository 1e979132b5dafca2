"""check_step's processes as forks of a test's, which has imported torch and runs no autograd: torch
is imported once for all checks."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch.distributed.fsdp  # noqa: E402, F401
import torch.distributed.pipelining  # noqa: E402, F401
import torch.distributed.tensor.parallel  # noqa: E402, F401

import distgrad  # noqa: E402
from distgrad import step_host, step_process, stepping  # noqa: E402


def _run_processes(folder, request):
    step_host.write_request(folder, request)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            step_process.main(folder, str(parent))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    failures = json.loads(Path(folder, "outcome").read_text())
    if failures:
        raise distgrad.RankError(stepping._failure_text(failures), failures)


def use_forks():
    stepping._run_processes = _run_processes


def report_of(parallel, single, world_size, **options):
    """check_step's report, of a step that is wrong, too."""
    try:
        return distgrad.check_step(parallel, single, world_size, timeout_s=200, **options)
    except AssertionError as error:
        return error.report
