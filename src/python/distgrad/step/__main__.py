"""Runs `python -m distgrad.step JSON`, which `distgrad step` calls (src/cli/step_command.cpp)."""

import sys

from .command import main

sys.exit(main(sys.argv[1]))
