#!/usr/bin/env python3
"""Installs a build and uses it from where it was moved to.

    check_installation.py CMAKE BUILD_FOLDER FOLDER_OF_TORCH

Run by a python that has torch.
"""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CMAKE, BUILD, TORCH = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
CODE = """
import distgrad
from distgrad import driver
print(driver.executable())
import subject
distgrad.check(subject.gather, "all_gather", world_size=2, filter="2-ranks")
print("right")
"""
GATHER = """
import torch
import torch.distributed.nn

def gather(x):
    return torch.stack(torch.distributed.nn.all_gather(x))
"""


def environment(**more):
    kept = {name: value for name, value in os.environ.items()
            if name not in ("DISTGRAD", "PYTHONPATH")}
    return {**kept, **more}


def run(*command, **variables):
    done = subprocess.run(list(map(str, command)), env=environment(**variables),
                          capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def check_driver(program, folder):
    """A first scenario, without any Python to be found."""
    alone = {"PATH": str(folder / "nothing")}
    assert run(program, "version", **alone).startswith("distgrad ")
    run(program, "init", folder / "mine", **alone)
    printed = run(program, "run", folder / "mine", **alone)
    assert "3 as expected" in printed, printed


def check_module(python, packages, program, folder):
    Path(folder, "subject.py").write_text(GATHER)
    path = os.pathsep.join([*([str(packages)] if packages else []), str(folder)])
    printed = run(python, "-c", CODE, PYTHONPATH=path).split("\n")
    assert os.path.samefile(printed[0], program), (printed, program)
    assert "right" in printed, printed


def cmake_installation(folder):
    run(CMAKE, "--install", BUILD, "--prefix", folder / "first")
    shutil.move(folder / "first", folder / "moved")
    program = folder / "moved/bin/distgrad"
    check_driver(program, folder)
    check_module(sys.executable, folder / "moved/share/distgrad/python", program, folder)
    for file in ("bash-completion/completions/distgrad",
                 "distgrad/scenarios/debate/all_reduce_sum.json"):
        assert folder.joinpath("moved/share", file).is_file(), file
    left = [str(p) for p in folder.rglob("*") if p.suffix == ".pyc" and "python/tests" in str(p)]
    assert not left, left


def wheel_installation(folder):
    """An environment in which bin/distgrad is the launcher, and the package has the rest."""
    site = (folder / "env/lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
            / "site-packages")
    shutil.copytree(BUILD / "share/distgrad/python/distgrad", site / "distgrad",
                    ignore=shutil.ignore_patterns("__pycache__"))
    (site / "distgrad/bin").mkdir()
    for name in ("distgrad", "distgrad-rank", "libdistgrad_rank.so", "gloo-traits.json"):
        shutil.copy2(BUILD / "bin" / name, site / "distgrad/bin")
    (folder / "env/bin").mkdir()
    program = shutil.copy2(BUILD / "launcher/distgrad", folder / "env/bin")
    check_driver(program, folder)
    # An environment of its own, whose site-packages has what this python's has.
    python = folder / "env/bin/python3"
    python.symlink_to(os.path.realpath(sys.executable))
    home = os.path.dirname(os.path.realpath(sys.executable))
    folder.joinpath("env/pyvenv.cfg").write_text(
        f"home = {home}\ninclude-system-site-packages = false\n")
    site.joinpath("all.pth").write_text(f"{TORCH.parent}\n")
    check_module(python, None, site / "distgrad/bin/distgrad", folder)
    printed = run(program, "doctor", PATH=str(folder / "nothing"))
    assert str(site / "distgrad/bin/distgrad-rank") in printed and str(python) in printed, printed
    shutil.rmtree(site / "distgrad")
    done = subprocess.run([program, "version"], capture_output=True, text=True)
    assert done.returncode == 3 and "install it again" in done.stderr, done


def main():
    for check in (cmake_installation, wheel_installation):
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder).resolve())
        print(f"ok {check.__name__}", flush=True)


if __name__ == "__main__":
    main()
