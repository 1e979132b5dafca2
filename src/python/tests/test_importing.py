"""That the user's modules are imported once, before ranks are forked, where that is as good as an
import in each rank, and that ranks import for themselves where it is not."""

import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from in_a_folder import DISTGRAD, InAFolder

FOLDER = Path(__file__).resolve().parent.parent

# Of each file a line: its number, and whether the process that goes on has imported it.
PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
from distgrad.ranks import importing, worker
worker.set_up()
for i, file in enumerate(sys.argv[2:]):
    if os.fork() == 0:
        in_child = importing.imported([file])
        os.write(1, f"{i} {'once' if in_child else 'each'}\\n".encode())
        os._exit(0)
    os.wait()
"""

SUBJECT = """
import os
import torch
import torch.distributed as dist

with open("imports", "a") as file:
    file.write(f"{os.getpid()}\\n")
BEGINNING

def all_reduce(x, group):
    y = x.clone()
    dist.all_reduce(y, group=group)
    END
    return y
"""


SCENARIO = {"world_size": 2, "inputs": {"x": 1.0}, "steps": [{"y": {"all_reduce": "x"}}],
            "loss": "y * y", "objective": "sum"}


class Imports(InAFolder):
    def assert_imported(self, how, sources):
        files = [f"file{i}.py" for i in range(len(sources))]
        for file, source in zip(files, sources):
            self.write(file, source)
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(FOLDER), *files], text=True,
                              cwd=self.folder, capture_output=True, timeout=100)
        self.assertEqual(done.stderr, "")
        found = dict(line.split() for line in done.stdout.splitlines())
        self.assertEqual([s for i, s in enumerate(sources) if found.get(str(i)) != how], [])

    def test_what_ranks_would_not_share_is_imported_by_each(self):
        self.assert_imported("each", (
                "import os; os.environ.get('RANK')",
                "import os; 'LOCAL_RANK' in os.environ",
                "import os; os.environ.setdefault('WORLD_SIZE', '1')",
                "import os; dict(os.environ).get('RANK')",
                "import os; 'RANK' in os.environ.copy()",
                "import os; {**os.environ}.pop('LOCAL_RANK')",
                "import os; [v for n, v in os.environ.items() if n == 'RANK']",
                "import os, subprocess; subprocess.run(['true'], env=dict(os.environ))",
                "import torch.distributed as dist; dist.is_initialized()",
                "from torch.distributed import get_rank\ntry: get_rank()\nexcept ValueError: pass",
                "import torch.distributed as dist\n"
                "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)",
                "import threading, time\n"
                "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
                "import subprocess; subprocess.Popen(['sleep', '60'])",
                "import signal; signal.signal(signal.SIGTERM, lambda *_: None)",
                "import socket; s = socket.socket()",
                "import select; e = select.epoll()",
                "import multiprocessing; n = multiprocessing.Value('i', 0)",
                "import sys, io; sys.stdout = io.StringIO()",
                "raise ValueError('no')",
                "import sys; sys.exit(0)",
                "import os; os._exit(0)",
                "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
                "breakpoint()",
        ))

    def test_all_else_is_imported_before_the_fork(self):
        self.assert_imported("once", (
                "x = 1",
                "import os; os.environ['MY_FLAG'] = '1'; os.environ.get('HOME')",
                "import torch; w = torch.randn(3); torch.set_default_dtype(torch.float64)",
                "import numpy, json, logging; print('hello'); open('log', 'w').write('x')",
                "import torch\nclass F(torch.autograd.Function): pass\nm = torch.nn.Linear(2, 2)",
                "import subprocess; subprocess.run(['true'])",
                "import os; dict(os.environ).get('HOME'); os.environ.copy()",
                "import os; [n for n in os.environ if n.startswith('A')]",
                "import os; {n: v for n, v in os.environ.items() if n.startswith('A')}",
        ))

    def run_subject(self, beginning="", end="", *options):
        self.write("s.json", SCENARIO)
        self.write("subject.py", SUBJECT.replace("BEGINNING", beginning).replace("END", end))
        code, output = self.run_it("run", "s.json", "--world-size", "2,3", "--full", "--python",
                                   sys.executable, "--subject", "python:subject.py", *options)
        imports = self.folder / "imports"
        return code, output, imports.read_text().split() if imports.exists() else []

    def test_once_for_all_teams_of_ranks(self):
        code, output, imports = self.run_subject()
        self.assertEqual(code, 1, output)  # identity-backward
        self.assertIn("identity-backward", output)
        self.assertEqual(len(imports), 1, imports)

    def test_each_rank_has_its_own_number_where_a_module_asks(self):
        code, output, imports = self.run_subject("RANK = int(os.environ['RANK'])",
                                                 "assert dist.get_rank() == RANK")
        self.assertEqual(code, 1, output)
        self.assertIn("identity-backward", output)
        self.assertEqual(len(set(imports)), 1 + 2 + 3)

    def test_what_a_module_says_is_said_by_each_rank(self):
        code, output, imports = self.run_subject(
            "import warnings\nwarnings.warn('mind the gap')\nprint('said at import')",
            "raise ValueError('so')")
        self.assertEqual(len(imports), 1, output)
        self.assertIn("said at import", output)
        code, output, imports = self.run_subject("import warnings\nwarnings.warn('mind the gap')",
                                                 "", "--json", "-")
        self.assertIn("mind the gap", output)

    def test_a_module_has_the_last_word_about_torch(self):
        code, output, imports = self.run_subject(
            "torch.utils.deterministic.fill_uninitialized_memory = False",
            "assert not torch.utils.deterministic.fill_uninitialized_memory")
        self.assertIn("identity-backward", output)
        self.assertEqual(len(imports), 1, output)

    def test_a_python_with_another_torch_is_refused(self):
        """Whether it is named or the first on PATH; it could not load the ranks' library."""
        self.write("s.json", SCENARIO)
        self.write("python3", "#!/bin/sh\necho 1.2.3+cpu\n")
        other = os.path.join(self.folder, "python3")
        os.chmod(other, 0o755)
        path = os.path.dirname(other) + os.pathsep + os.environ["PATH"]
        for command in (["run", "s.json", "--subject", "python:reference"],
                        ["audit", "python:reference"]):
            for more, environment in ((["--python", other], {}), ([], {"PATH": path})):
                with self.subTest(command, more=more):
                    done = subprocess.run([DISTGRAD, *command, *more], cwd=self.folder, text=True,
                                          capture_output=True, env={**os.environ, **environment},
                                          timeout=100)
                    self.assertEqual(done.returncode, 2, done.stdout)
                    self.assertRegex(
                        done.stderr,
                        f"^distgrad: {other} has torch 1.2.3\\+cpu, and distgrad was built with"
                        r" torch \S+: build it with that Python, or name one with torch \S+ with"
                        r" --python PATH\n$")

    def test_nothing_is_left_of_a_run_whose_zygote_is_killed(self):
        self.write("s.json", SCENARIO)
        self.write("subject.py",
                   SUBJECT.replace("BEGINNING", "").replace("END", "import time; time.sleep(60)"))
        run = subprocess.Popen([DISTGRAD, "run", "s.json", "--python", sys.executable, "--subject",
                                "python:subject.py", "--timeout", "90"], cwd=self.folder,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(run.kill)
        ranks = self._descendants(run.pid, "dg rank", at_least=2)
        zygotes = [pid for pid in self._descendants(run.pid, "dg ") if pid not in ranks]
        os.kill(run.pid, signal.SIGKILL)
        run.communicate(timeout=60)
        end = time.monotonic() + 30
        while any(os.path.exists(f"/proc/{pid}") for pid in ranks + zygotes):
            self.assertLess(time.monotonic(), end, "processes of a killed run are there after 30 s")
            time.sleep(0.05)

    def _descendants(self, of, name, at_least=0):
        end = time.monotonic() + 60
        while True:
            parents = {}
            for number in filter(str.isdigit, os.listdir("/proc")):
                try:
                    text = Path("/proc", number, "stat").read_text()
                except OSError:
                    continue
                comm, _, rest = text.partition("(")[2].rpartition(")")
                parents[int(number)] = int(rest.split()[1]), comm
            found = []
            for pid, (parent, comm) in parents.items():
                while parent not in (of, 0, 1) and parent in parents:
                    parent = parents[parent][0]
                if parent == of and comm.startswith(name):
                    found.append(pid)
            if len(found) >= at_least:
                return found
            self.assertLess(time.monotonic(), end, f"no {name!r} after 60 s")
            time.sleep(0.1)


if __name__ == "__main__":
    unittest.main()
