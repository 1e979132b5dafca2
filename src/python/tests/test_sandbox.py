"""What code under test can see and do in --sandbox: little; and what runs there as it does outside:
all that is honest."""

import json
import os
import platform
import socket
import subprocess
import unittest
from pathlib import Path

from in_a_folder import DISTGRAD, SUM, InAFolder

DEBATE = Path(__file__).parents[3] / "scenarios" / "debate"

# To be called as FUNCTION(x). Of an attack it says the errno, None where it is none.
CURIOUS = """
import ctypes, errno, fcntl, os, resource, signal, socket, subprocess, sys, tempfile, termios
import threading
import torch

libc = ctypes.CDLL(None, use_errno=True)
HERE, PARENT = os.path.dirname(os.path.abspath(__file__)), os.getppid()
NEW_USER, READ_ONLY, REMOUNT, BIND, RECURSIVE, ATTACH = 0x10000000, 1, 32, 4096, 16384, 16

def called(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")

def write(path):
    with open(path, "a"):
        pass

def connect():
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(HERE + "/listening")

def by_another():
    code = f"open({HERE + '/by_another'!r}, 'w')"
    if subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode:
        raise OSError(errno.EROFS, "")

ATTACKS = {
    "write": lambda: write(HERE + "/left"),
    "write code": lambda: write(__file__),
    "write beside code": lambda: write(os.path.join(HERE, "..", "left-" + os.path.basename(HERE))),
    "write by another": by_another,
    "connect": connect,
    "remove": lambda: os.unlink(HERE + "/kept"),
    "type": lambda: fcntl.ioctl(1, termios.TIOCSTI, b"x"),
}
# To be tried in the sandbox alone.
FROM_INSIDE = {
    "write torch": lambda: write(torch.__file__),
    "write beside torch": lambda: write(os.path.join(os.path.dirname(torch.__file__), "left.py")),
    "write /dev": lambda: write("/dev/left"),
    "device": lambda: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY),
    "ptrace": lambda: called(libc.ptrace(ATTACH, PARENT, None, None)),
    "memory": lambda: os.open(f"/proc/{PARENT}/mem", os.O_RDWR),
    "root of the driver": lambda: write("/proc/1/root" + HERE + "/left"),
    "descriptors of the driver": lambda: os.readlink("/proc/1/fd/0"),
    "mount": lambda: called(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None)),
    "remount": lambda: called(libc.mount(None, b"/", None, REMOUNT | BIND, None)),
    "mount_setattr": lambda: called(libc.syscall(442, -100, b"/", RECURSIVE, bytes(32), 32)),
    "unmount": lambda: called(libc.umount2(b"/dev/shm", 2)),
    "unshare": lambda: called(libc.unshare(NEW_USER)),
    "clone": lambda: called(libc.syscall(SYS_CLONE, NEW_USER | 17, None, None, None, None)),
    "io_uring": lambda: called(libc.syscall(425, 1, bytes(120))),
    "setns": lambda: called(libc.setns(0, 0)),
    "end the driver": lambda: os.kill(1, signal.SIGTERM),
    "end the driver by its time": lambda: called(libc.syscall(SYS_TGKILL, 1, 1, signal.SIGALRM)),
    "end all": lambda: os.kill(-1, 0),
    "limit the driver": lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)),
    "sysctl": lambda: write("/proc/sys/kernel/hostname"),
}

def tried(attacks):
    outcomes = {}
    for name, attack in attacks.items():
        try:
            attack()
            outcomes[name] = None
        except OSError as error:
            outcomes[name] = errno.errorcode[error.errno]
    return outcomes

def status(pid, what):
    with open(f"/proc/{pid}/status") as file:
        return next(line.split()[1] for line in file if line.startswith(what + ":"))

def of_processes(of):
    found = []  # but of those that end meanwhile
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.append(of(pid))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found

def attack(x):
    raise ValueError("<" + repr(tried(ATTACKS)) + ">")

def attack_from_inside(x):
    try:
        os.kill(1, 9)
    except OSError:
        pass
    seen = of_processes(lambda p: (p, status(p, "Name"), status(p, "Seccomp"),
                                   int(status(p, "CapEff"), 16)))
    free = [name for p, name, *confined in seen if p != "1" and confined != ["2", 0]]
    raise ValueError("<" + repr({**tried(ATTACKS), **tried(FROM_INSIDE), "free": free}) + ">")

def look(x):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)",
                      os.environ.get("MARK", "")], start_new_session=True)
    devices = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
    others = sum("unittest" in words
                 for words in of_processes(lambda p: open(f"/proc/{p}/cmdline").read()))
    found = {"devices": devices, "others": others,
             "secret": os.environ.get("SECRET") or os.environ.get("DISTGRAD_SECRET"),
             "privileges": status("self", "NoNewPrivs")}
    raise ValueError("<" + repr(found) + ">")

def honest(x):
    with tempfile.TemporaryDirectory() as folder, open(folder + "/a", "w+") as file:
        subprocess.run([sys.executable, "-c", "print(7)"], stdout=file, check=True)
        file.seek(0)
        seven = int(file.read())
    thread = threading.Thread(target=lambda: torch.save(x, os.devnull))
    thread.start()
    thread.join()
    return x * seven

def every_rank(xs):
    return [x * 7 for x in xs]
"""
SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
SYS_TGKILL = {"x86_64": 234, "aarch64": 131}.get(platform.machine())


def dict_in(output):
    text = " ".join(output.split())
    return eval(text[text.rindex("<{") + 1:text.rindex("}>") + 1])


class Sandbox(InAFolder):
    @classmethod
    def setUpClass(cls):
        done = subprocess.run([DISTGRAD, "run", "--sandbox", "--simulate", DEBATE / "product.json"],
                              capture_output=True, text=True)
        if done.returncode == 2 and "this system does not let distgrad" in done.stderr:
            raise unittest.SkipTest(done.stderr)

    def setUp(self):
        super().setUp()
        self.write("curious.py", f"SYS_CLONE, SYS_TGKILL = {SYS_CLONE, SYS_TGKILL}\n{CURIOUS}")

    def reported_by(self, function, *options, **more):
        self.write_call("a.json", "curious.py", function)
        code, output = self.run_code(*options, "a.json", **more)
        self.assertEqual(code, 3, output)
        return dict_in(output)

    def test_there_is_nothing_to_see(self):
        mark = f"distgrad-left-behind-{os.getpid()}"
        environment = {**os.environ, "SECRET": "token", "DISTGRAD_SECRET": "ours",
                       "MARK": mark}
        for options in ([], ["--sandbox"]):
            reported = self.reported_by("look", *options, env=environment)
            if options:
                self.assertEqual(reported, {"devices": ["lo"], "others": 0, "secret": None,
                                            "privileges": "1"})
            else:
                self.assertEqual((reported["secret"], reported["privileges"]), ("token", "0"))
            running = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True,
                                     text=True).stdout
            self.assertNotIn(mark, running, "a daemon is left behind")

    def test_nothing_can_be_written_or_reached(self):
        self.write("kept", "")
        before = sorted(self.folder.iterdir())
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(self.folder / "listening"))
            listening.listen()
            reported = self.reported_by("attack_from_inside", "--sandbox")
            self.assertEqual(reported.pop("free"), [], "processes that are not confined")
            written = {name for name in reported if name.startswith("write")} | {"remove", "sysctl"}
            closed = {"root of the driver", "descriptors of the driver", "device"}
            self.assertEqual({name: reported.pop(name) for name in written},
                             dict.fromkeys(written, "EROFS"))
            self.assertEqual({name: reported.pop(name) for name in closed},
                             dict.fromkeys(closed, "EACCES"))
            self.assertIn(reported.pop("memory"), ("EROFS", "EACCES"))
            self.assertEqual(reported, dict.fromkeys(reported, "EPERM"))
            self.assertEqual(sorted(self.folder.iterdir()),
                             sorted([*before, self.folder / "a.json", self.folder / "listening"]))
            # The same outside: there they are attacks. Two ranks do them, of which one is reported.
            reported = self.reported_by("attack")
            self.assertEqual({name for name in reported if reported[name] is None} - {"remove"},
                             {"write", "write code", "write beside code", "write by another",
                              "connect"})
            (self.folder.parent / f"left-{self.folder.name}").unlink()

    def test_honest_code_runs_as_it_does_outside(self):
        self.write_call("a.json", "curious.py", "honest")
        in_cpp = [DEBATE / f"{name}.json" for name in ("product", "gather_multiply", "total")]
        reported = []
        for options in ([], ["--sandbox"]):
            code, output = self.run_code(*options, "--json", "-", "a.json", *in_cpp, both=False)
            self.assertEqual(code, 0, output)
            cases = json.loads(output)["cases"]
            reported.append([{**case, "elapsed_s": 0} for case in cases])
        self.assertGreater(len(reported[0]), 5)
        self.assertEqual(*reported)

    def test_reports_and_golden_files_are_written(self):
        self.write_call("a.json", "curious.py", "honest")
        code, output = self.run_code("--sandbox", "--junit", "r.xml", "--html", "r.html", "a.json")
        self.assertEqual(code, 0, output)
        self.assertTrue((self.folder / "r.xml").exists() and (self.folder / "r.html").exists())
        self.write("b.json", SUM)
        code, output = self.run_it("golden", "update", "--sandbox", "b.json")
        self.assertIn("1 new", output)


if __name__ == "__main__":
    unittest.main()
