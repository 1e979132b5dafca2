"""What pyproject.toml cannot say by itself: the wheel's version and what it needs.

distgrad-rank is bound to the torch that it is linked with, as C++ has no stable interface to it. So
the version names that torch (0.1.0+torch2.15.0), and the wheel asks for exactly it. Torch is looked
for in the interpreter that DISTGRAD_PYTHON names, else in the one that builds; it is not imported,
which would take seconds.
"""
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

CMAKE_LISTS = Path(__file__).resolve().parent.parent / "CMakeLists.txt"
QUESTION = "import importlib.metadata as m; print(m.version('torch'))"


def fail(why):
    # Without a traceback: pip shows this line alone.
    print(f"distgrad: {why}", file=sys.stderr)
    sys.exit(1)


def torch_version():
    python = os.environ.get("DISTGRAD_PYTHON")
    if python:
        done = subprocess.run([python, "-c", QUESTION], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()
        fail(f"DISTGRAD_PYTHON={python} has no torch")
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        fail("there is no torch to build against: pip install torch scikit-build-core, then pip"
             " install --no-build-isolation . (without that option pip builds apart from your"
             " environment)")


def dynamic_metadata(settings, project):
    version = re.search(r"project\(distgrad VERSION ([0-9.]+)", CMAKE_LISTS.read_text()).group(1)
    torch = torch_version().partition("+")[0]  # 2.15.0+cu130 and 2.15.0+cpu are one release
    return {"version": f"{version}+torch{torch}", "dependencies": [f"torch=={torch}"]}
