#!/usr/bin/env python3
"""Validates this repository's files, and reports of real runs, against the schemas that distgrad prints.

    check_schemas.py DISTGRAD [--run]

In the repository's root, by a python that has jsonschema. --run: there is a distgrad-rank, so that scenarios can be run.
"""
import copy
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    from jsonschema.validators import validator_for
except ImportError:
    sys.exit(f"{sys.executable} has no jsonschema: install python3-jsonschema (or pip install jsonschema)")

DISTGRAD, RUNS = sys.argv[1], "--run" in sys.argv
TESTDATA = Path("src/scenario/testdata")

# What a schema cannot say of a scenario: it neither counts ranks, nor reads expressions, nor compares keys with other keys.
# Every invalid file whose name begins so is none of the schema's business; every other one must be refused by it.
BEYOND = """

""".split()

# Scenarios that come out in every way; with a tensor that is summarised.
RUN = ["scenarios/debate/all_reduce_sum.json", "scenarios/collectives/all_reduce_max_near_tie.json", "scenarios/torch"]
LARGE = {"world_size": 2, "inputs": {"x": {"random": {"shape": [1001]}}}, "steps": [{"y": {"all_reduce": "x"}}],
         "loss": "y.sum()", "objective": "sum", "subjects": {"in_place": "match", "reference": "match"}}


def output(*arguments, codes=(0,)):
    done = subprocess.run([DISTGRAD, *map(str, arguments)], capture_output=True, text=True, timeout=150)
    assert done.returncode in codes, (arguments, done.returncode, done.stderr)
    return done.stdout


def validator(schema):
    kind = validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


def load(file):
    # As distgrad: the last of two equal keys would win in Python, and what is no JSON is nobody's scenario.
    try:
        return json.loads(Path(file).read_bytes().decode("utf-8"))
    except ValueError:
        return None


def accepts(check, value):
    try:
        return check.is_valid(value)
    except RecursionError:  # lists in lists in lists: too deep for distgrad, too, which says so
        return True


def subschemas(schema):
    if isinstance(schema, dict):
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from subschemas(part)


def closed(schema):
    """The schema with every key that it does not name forbidden: what is written must be in it."""
    schema = copy.deepcopy(schema)
    for part in subschemas(schema):
        if isinstance(part.get("properties"), dict) and part.get("type") == "object":
            part.setdefault("additionalProperties", False)
    return schema


def check_that_every_key_is_described(schemas):
    for name, schema in schemas.items():
        keys = [(key, value) for part in subschemas(schema) if part.get("type") == "object"
                for key, value in part.get("properties", {}).items()]
        assert len(keys) > 15, name
        without = [key for key, value in keys if not value.get("description")]
        assert not without, f"{name}: no description of {without}"


def check_scenarios(schema):
    check = validator(schema)
    good = [*TESTDATA.glob("good/*.json"), *Path("scenarios").rglob("*.json")]
    assert len(good) > 100
    for file in good:
        errors = list(check.iter_errors(load(file)))
        assert not errors, f"{file}: {errors[0].message}"
    accepted = {f.stem for f in TESTDATA.glob("invalid/*.json") if (v := load(f)) is not None and accepts(check, v)}
    beyond = {name for name in accepted if any(re.fullmatch(pattern, name) for pattern in BEYOND)}
    assert accepted == beyond, f"the schema accepts {sorted(accepted - beyond)}"
    unused = [p for p in BEYOND if not any(re.fullmatch(p, name) for name in accepted)]
    assert not unused, f"no longer accepted: {unused}"


def check_golden_files(schema):
    check = validator(schema)
    files = list(Path("golden").rglob("*.json"))
    assert len(files) > 100
    for file in files:
        errors = list(check.iter_errors(load(file)))
        assert not errors, f"{file}: {errors[0].message}"
    good = load("golden/scenarios/debate/all_reduce_sum.json")
    for spoil in (lambda g: g.update(host="x"), lambda g: g.pop("scenario_sha256"), lambda g: g["cases"][0].pop("losses"),
                  lambda g: g["cases"][0]["gradients"]["x"].pop("bound"), lambda g: g["cases"][0].update(dtype="float8")):
        bad = copy.deepcopy(good)
        spoil(bad)
        assert not check.is_valid(bad), bad


def check_reports(schema):
    check = validator(closed(schema))
    with tempfile.TemporaryDirectory() as folder:
        large, broken = Path(folder, "large.json"), Path(folder, "broken.json")
        large.write_text(json.dumps(LARGE))
        broken.write_text('{ "world_size": 0 }')
        runs = [["run", *RUN, large, broken], ["run", "--full", large], ["run", "--simulate", large], ["run", "--strict", *RUN[:2]]]
        reports = [json.loads(output(*run, "--json", "-", codes=(0, 1, 2, 3))) for run in runs]
    for report in reports:
        errors = list(check.iter_errors(report))
        assert not errors, f"{report['command']}: {errors[0].json_path}: {errors[0].message}"
    cases = [case for report in reports for case in report["cases"]]
    verdicts = {case["verdict"] for case in cases}
    assert verdicts == {"match", "mismatch", "error", "skipped", "disputed"}, verdicts
    assert any(case["gradients"] and "worst" in json.dumps(case["gradients"]) for case in cases)
    assert any(report["invalid"] for report in reports)
    bad = copy.deepcopy(reports[0])
    bad["cases"][0]["verdict"] = "matched"
    assert not check.is_valid(bad)


def main():
    schemas = {name: json.loads(output("schema", name)) for name in ("scenario", "report", "golden")}
    check_that_every_key_is_described(schemas)
    check_scenarios(schemas["scenario"])
    check_golden_files(schemas["golden"])
    if RUNS:
        check_reports(schemas["report"])
    print("ok")


if __name__ == "__main__":
    main()
