import json
import subprocess

import pytest

LIST = ["distgrad", "list", "cases", "--json", "scenarios"]
CASES = json.loads(subprocess.run(LIST, capture_output=True, check=True, text=True).stdout)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case):
    command = ["distgrad", "run", "--allow-empty", case["id"]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
