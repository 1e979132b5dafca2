"""Attacks through the executable: files that forge commands or never end, output that cannot be
written, code that wants out."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import unittest

from in_a_folder import DISTGRAD, SUM, InAFolder

# Where it is, and what this process listens at.
CONNECTED = """
import os
def look(x):
    files = [f"/proc/self/fd/{f}" for f in os.listdir("/proc/self/fd")]
    own = {os.readlink(f) for f in files if os.path.lexists(f)}
    listening = []
    for family in ("tcp", "tcp6"):
        for line in list(open(f"/proc/self/net/{family}"))[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                listening.append(words[1].rpartition(":")[0])
    network = os.readlink("/proc/self/ns/net")
    raise ValueError(f"{network} {sorted(set(listening))} files={sorted(own)}")
def every_rank(xs):
    return xs
"""
LOOPBACK = "0100007F"
# On two ranks: to be called as FUNCTION(x).
DESTRUCTIVE = """
import os, signal, time
def every_rank(xs):
    return xs
def as_it_is(x):
    return x * 1
def end_the_zygote(x):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)
def stop_the_parent(x):
    os.fork() or os.setsid() or time.sleep(1000)
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(1000)
def huge_text(x):
    raise ValueError("x" * 20_000_000)
def half_a_pair(x):
    raise ValueError("half: \\ud800, \\x1b[31m, ::error::x")
def commands(x):
    print("::error::printed\\n##[error]printed", flush=True)
    raise ValueError("\\u00a0::error::y\\n\\u3000::stop-commands::z\\n##[error]x")
def nap(x):
    time.sleep(0.2)
    return x * 1
"""


def processes_with(setting):
    """Of those that have it in their environment and run: their command lines."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                if setting.encode() in file.read().split(b"\0"):
                    with open(f"/proc/{process}/cmdline") as command:
                        found.append(command.read())
        except OSError:
            pass
    return [command for command in found if command]


class Hostile(InAFolder):
    def check_holds_no_command(self, output, is_data=False):
        for line in output.split("\n"):
            # What .NET trims, and what a shell's user sees as nothing
            self.assertFalse(line.strip().startswith(("::", "stop-commands")), line)
            for words in ("##[", "##vso[", *([] if is_data else ["\x1b", "\u202e"])):
                self.assertNotIn(words, line)

    def test_no_line_is_a_command_of_the_runner(self):
        for name in ("a.json", "b\n::error::forged.json", "\x1b[31m\u202e.json"):
            self.write(name, {**SUM, "steps": SUM["steps"] + [{"z": "::stop-commands::abcdef"}]})
        forged = "c\n::error::forged.json"
        self.write(forged, SUM)
        self.write("d ##[error]x.json", {**SUM, "note": "##vso[task.complete]"})
        for command in (["run", "."], ["run", "--simulate", "."], ["golden", "check", "."],
                        ["explain", "a.json"], ["explain", forged], ["repro", "a.json"],
                        ["repro", "d ##[error]x.json"], ["list", "scenarios", "."],
                        ["list", "cases", "."], ["list", "cases", "--json", "."],
                        ["list", "scenarios", "--json", "."], ["compare", "a.json", forged],
                        ["::error::x"]):
            with self.subTest(command):
                _, output = self.run_it(*command)
                self.assertTrue(output)
                self.check_holds_no_command(output, is_data="--json" in command)

    def test_no_line_of_a_report_that_is_printed_is_a_command(self):
        self.write("bad.py", DESTRUCTIVE)
        name = "##[error]x.json"
        self.write_call(name, "bad.py", "commands")
        for report in ("json", "junit", "markdown", "sarif", "html"):
            with self.subTest(report):
                code, output = self.run_code(f"--{report}", "-", name, both=False)
                self.assertEqual(code, 3, output)
                self.assertIn("stop-commands", output)
                self.check_holds_no_command(output)
                if report == "json":
                    case = json.loads(output)["cases"][0]
                    self.assertEqual(case["name"], "##[error]x")
                    self.assertIn("\u3000::stop-commands::z", case["error"]["message"])
                    # Not always rank 0's: it may not have begun when another has failed.
                    printed = case["output"][case["error"]["rank"]]
                    self.assertTrue(printed.startswith("::error::printed"), case["output"])

    def test_gradcheck_outlives_what_code_does_to_its_parent(self):
        self.write("bad.py", DESTRUCTIVE)
        ours = f"HOSTILE_TEST={self.folder}"
        environment = dict(os.environ, HOSTILE_TEST=str(self.folder), TMPDIR=str(self.folder))
        for function, how in (("end_the_zygote", "killed by SIGKILL (killed)"),
                              ("stop_the_parent", "stopped by SIGSTOP (stopped (signal))")):
            done = subprocess.run(
                [DISTGRAD, "gradcheck", f"bad.py:{function}", "--python", sys.executable,
                 "--ranks", "2", "--input", "ones(2)"],
                cwd=self.folder, capture_output=True, text=True, env=environment, timeout=300)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertEqual(done.stderr, "distgrad: the process that starts the ranks was "
                             f"{how}\n")
            self.assertEqual(processes_with(ours), [])
            self.assertEqual(list(self.folder.glob("distgrad-*")), [])

    def test_a_limit_of_the_shell_is_named(self):
        self.write("a.json", SUM)
        for limit, most, words in ((resource.RLIMIT_FSIZE, 1024, "(ulimit -f)"),
                                   (resource.RLIMIT_AS, 200 << 20, "(ulimit -v)")):
            code, output = self.run_it(
                "run", "a.json", preexec_fn=lambda: resource.setrlimit(limit, (most, most)))
            self.assertEqual(code, 3, output)
            self.assertIn(words, output)

    def test_of_what_gradcheck_s_ranks_print_the_end_is_reported(self):
        self.write("bad.py", DESTRUCTIVE)
        self.write("loud.py", "def loud(x):\n    print('x' * 300_000 + '\\udcff end', "
                   "flush=True)\n    return x * 1\n")
        for function, words in (("loud.py:loud", " end"), ("bad.py:huge_text", "ValueError")):
            code, output = self.run_it("gradcheck", function, "--python", sys.executable,
                                       "--ranks", "2", "--input", "ones(2)")
            self.assertEqual(code, 3 if "bad" in function else 0, output[-1000:])
            self.assertIn(words, output)
            self.assertLess(len(output), 400_000)

    def test_files_that_never_end_are_refused(self):
        os.mkfifo(self.folder / "pipe.json")
        for path in ("pipe.json", "/dev/zero", "/proc/self/status"):
            code, output = self.run_it("run", path, timeout=30)
            self.assertEqual(code, 2, output)
            self.assertIn("is no regular file", output)

    def test_output_that_cannot_be_written_is_no_success(self):
        self.write("a.json", SUM)
        for command in ("run a.json", "run --json - a.json", "run --simulate a.json",
                        "explain a.json", "repro a.json", "golden check a.json",
                        "fuzz --count 1", "list collectives", "list cases --json a.json",
                        "schema report", "completion bash", "version", "help", "run --help"):
            with open("/dev/full", "w") as full:
                code, output = self.run_it(*command.split(), stdout=full)
            self.assertEqual(code, 2, output)
            self.assertIn("cannot write standard output", output)

    def test_the_whole_may_have_a_time(self):
        self.write(
            "slow.json", {
                **SUM, "timeout_s": 604800,
                "steps": [{
                    "y": {
                        "call": "python:slow.py:sleep",
                        "args": ["x"],
                        "simulate": "python:slow.py:all"
                    }
                }]
            })
        self.write(
            "slow.py",
            "import time\ndef sleep(x):\n    time.sleep(1000)\n\ndef all(xs):\n    return xs\n")
        slow = ["run", "--allow-code", "--python", sys.executable, "--json", "r.json"]
        code, output = self.run_it(*slow, "--max-timeout", "0.2", "slow.json")
        self.assertEqual(code, 3, output)
        self.assertIn("not done after 0.2 s", output)
        code, output = self.run_it(*slow, "--total-timeout", "1", "slow.json")
        self.assertEqual(code, 142, output)
        self.assertIn("the time of --total-timeout is over; 0 of 1 cases were finished", output)

    def test_limits_are_checked(self):
        self.write("a.json", SUM)
        for option, value in (("--max-timeout", "0"), ("--total-timeout", "nan"),
                              ("--max-memory", "lots"), ("--max-memory", "5")):
            code, output = self.run_it("run", option, value, "a.json")
            self.assertEqual(code, 2, output)
            self.assertIn(option, output)

    def test_memory_beyond_the_limit_is_an_error_of_the_case(self):
        self.write("a.json", {
            **SUM, "steps": SUM["steps"] + [{
                "z": "torch.zeros(134217728).sum() * y"
            }],
            "loss": "z"
        })
        self.write("b.json", SUM)
        code, output = self.run_it("run", "--max-memory", "512M", "a.json", "b.json")
        self.assertEqual(code, 2, output)
        self.assertIn("can't allocate memory", output)
        self.assertIn("may have 512 MiB (--max-memory)", output)
        self.assertIn("1 as expected, 1 invalid file", output)

    def test_memory_is_counted_over_all_steps(self):
        # Of 128 MiB each, on two ranks
        steps = [{f"z{i}": f"torch.full((16777216,), {i}.0) * y"} for i in range(40)]
        self.write("a.json", {
            **SUM, "steps": SUM["steps"] + steps,
            "loss": " + ".join(f"z{i}.sum()" for i in range(40))
        })
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        code, output = self.run_it("run", "--max-memory", "600M", "a.json")
        self.assertEqual(code, 2, output)
        self.assertRegex(output, r"a\.json:\d+:\d+: /steps/3/z2: with z2 the values of all ranks")
        self.assertIn("take 768 MiB, and a simulator may have 600 MiB (--max-memory); the program "
                      "takes 10 GiB: 40 of 256 MiB each (z0 to z39)", output)
        # KiB: libtorch is some 500 MiB
        self.assertLess(
            resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, max(before, 1_600_000))

    def test_ranks_listen_on_loopback_alone_and_inherit_no_file(self):
        self.write("look.py", CONNECTED)
        self.write_call("look.json", "look.py", "look")
        here = os.readlink("/proc/self/ns/net")
        may_leave = subprocess.run(["unshare", "-n" if os.geteuid() == 0 else "-rn", "true"],
                                   capture_output=True).returncode == 0
        with open(self.folder / "inherited", "w") as inherited:
            os.set_inheritable(inherited.fileno(), True)
            for option in ([], ["--host-network"]):
                code, output = self.run_code(*option, "look.json", pass_fds=(inherited.fileno(),))
                self.assertEqual(code, 3, output)
                printed = " ".join(output.split())
                self.assertIn(f"['{LOOPBACK}'] files=", printed)
                self.assertNotIn("/inherited'", printed)
                network = re.search(r"net:\[\d+\]", printed)[0]
                (self.assertNotEqual if may_leave and not option else self.assertEqual)(network,
                                                                                        here)

    def test_the_remedy_is_named_where_the_machine_lacks_something(self):
        self.write("a.json", {**SUM, "world_size": 16, "inputs": {"x": {"expr": "rank + 1.0"}}})
        code, output = self.run_it(
            "run", "a.json", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE,
                                                                   (40, 40)))
        self.assertEqual(code, 3, output)
        self.assertIn(
            "Too many open files; raise the number of open files (ulimit -n), or use fewer ranks",
            output)
        gone = self.folder / "gone"
        gone.mkdir()
        done = subprocess.run(
            ["sh", "-c", f"cd {gone} && rmdir {gone} && {DISTGRAD} run ../a.json"],
            capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(
            done.stderr,
            "distgrad: the working folder is gone (No such file or directory); cd into one that "
            "is there\n"
        )
        alone = ["unshare", "-rn", DISTGRAD, "run", "--host-network", "a.json"]
        if subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0:
            done = subprocess.run(alone, cwd=self.folder, capture_output=True, text=True)
            self.assertEqual(done.returncode, 3)
            self.assertIn(
                "no interface has 127.0.0.1, over which the ranks talk; `ip link set lo up`",
                done.stderr)

    def test_who_ends_the_process_that_starts_ranks_is_named_and_the_others_run(self):
        self.write("bad.py", DESTRUCTIVE)
        self.write_call("a.json", "bad.py", "as_it_is")
        self.write_call("b.json", "bad.py", "end_the_zygote")
        self.write_call("c.json", "bad.py", "as_it_is")
        code, output = self.run_code("a.json", "b.json", "c.json")
        self.assertEqual(code, 3, output)
        self.assertIn(
            "twice, while this case ran, the process that starts the ranks ended: killed by "
            "SIGKILL",
            output)
        self.assertIn("2 as expected, 1 broken", output)

    def test_texts_of_exceptions(self):
        self.write("bad.py", DESTRUCTIVE)
        self.write_call("a.json", "bad.py", "huge_text")
        self.write_call("b.json", "bad.py", "half_a_pair")
        code, output = self.run_code("--json", "r.json", "a.json", "b.json")
        self.assertEqual(code, 3, output[:2000])
        self.assertLess(len(output), 100_000)
        self.assertLess((self.folder / "r.json").stat().st_size, 1_000_000)
        self.assertIn("half: \ufffd, \\x1b[31m, ::error::x", output)

    def test_ctrl_c_leaves_every_finished_case_in_every_report(self):
        self.write("bad.py", DESTRUCTIVE)
        for i in range(30):
            self.write_call(f"{i:02}.json", "bad.py", "nap")
        command = [
            DISTGRAD, "run", "--allow-code", "--python", sys.executable, "--json", "r.json",
            "--junit", "r.xml", "."
        ]
        run = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
        first = run.stdout.readline()
        run.send_signal(signal.SIGINT)
        out, err = run.communicate()
        self.assertEqual(run.returncode, 130, err)
        done = int(re.search(r"interrupted; (\d+) of 30 cases were finished", err)[1])
        self.assertEqual((first + out).count("ok    "), done)
        self.assertEqual(len(json.loads((self.folder / "r.json").read_text())["cases"]), done)
        self.assertEqual((self.folder / "r.xml").read_text().count('<testcase name="') - 1,
                         done)  # one says that it was interrupted


if __name__ == "__main__":
    unittest.main()
