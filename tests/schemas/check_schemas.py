#!/usr/bin/env python3
"""Validates this repository's files, and reports of real runs, against the schemas that distgrad
prints.

    check_schemas.py DISTGRAD [--run]

In the repository's root, by a python that has jsonschema. --run: there is a distgrad-rank, so that
scenarios can be run.
"""
import copy
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    from jsonschema.validators import validator_for
except ImportError:
    sys.exit(f"{sys.executable} has no jsonschema: install python3-jsonschema (or pip install"
             " jsonschema)")

DISTGRAD, RUNS = sys.argv[1], "--run" in sys.argv
TESTDATA = Path("src/scenario/testdata")

# What a schema cannot say of a scenario: it neither counts ranks, nor reads expressions, nor
# compares keys with other keys. These invalid files are none of its business; it must refuse every
# other one.
BEYOND = """
collective_group_misspelt collective_group_without_groups collective_pairs_beyond
collective_pairs_twice collective_root_beyond collective_root_beyond_group
collective_root_beyond_smallest collective_root_float collective_root_for_two_worlds
collective_splits_empty collective_splits_length collective_splits_row_length collective_splits_rows
collective_splits_uneven_groups group_for_two_worlds group_missing_rank group_out_of_range
group_overlap group_size_does_not_divide input_by_rank_ragged input_by_rank_replicate
input_by_rank_too_few input_by_rank_two_worlds input_expr_empty input_nothing_to_compare
input_ragged input_ragged_depth input_ragged_number input_too_many_dimensions json_duplicate_input
json_duplicate_key json_too_deep layout_axis_missing layout_axis_shard_beyond layout_axis_unknown
layout_axis_without_mesh layout_shard_beyond layout_shard_of_a_number mesh_and_world_size
mesh_and_world_sizes mesh_too_large name_group_and_input name_group_world name_of_axis_size
name_of_groups_rank name_twice name_twice_in_steps objective_axis_missing objective_axis_unknown
objective_axis_without_mesh objective_rank_beyond random_huge random_huge_product
random_low_above_default random_low_above_high random_low_float random_normal_low random_range
random_seed_float random_seed_huge single_device_name_of_input single_device_name_twice
step_line_break subject_finding_of_match subject_gradients_of_error subject_gradients_too_many
subject_gradients_two_worlds subject_gradients_unknown_input subject_gradients_when
subject_kind_rest_unknown subject_library_without_op subject_message_of_match
subject_when_torch_range sync_along_shard sync_axis_without_mesh sync_local sync_misspelt_input
sync_unknown_axis sync_unknown_input sync_without_gradient too_many_cases truth_full_shape
truth_number_for_local truth_ragged truth_shape truth_too_few truth_two_worlds truth_unknown_input
truth_without_gradient world_size_float
""".split()

# Scenarios that come out in every way; with a tensor that is summarised.
RUN = ["scenarios/debate/all_reduce_sum.json", "scenarios/collectives/all_reduce_max_near_tie.json",
       "scenarios/torch"]
LARGE = {"world_size": 2, "inputs": {"x": {"random": {"shape": [1001]}}},
         "steps": [{"y": {"all_reduce": "x"}}], "loss": "y.sum()", "objective": "sum",
         "subjects": {"in_place": "match", "reference": "match"}}


def output(*arguments, codes=(0,)):
    done = subprocess.run([DISTGRAD, *map(str, arguments)], capture_output=True, text=True,
                          timeout=150)
    assert done.returncode in codes, (arguments, done.returncode, done.stderr)
    return done.stdout


def validator(schema):
    kind = validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


def load(file):
    # As distgrad: the last of two equal keys would win in Python, and what is no JSON is nobody's
    # scenario.
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
    parts = schema.values() if isinstance(schema, dict) else schema
    for part in parts if isinstance(schema, (dict, list)) else ():
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
    accepted = {f.stem for f in TESTDATA.glob("invalid/*.json")
                if (v := load(f)) is not None and accepts(check, v)}
    more, fewer = sorted(accepted - set(BEYOND)), sorted(set(BEYOND) - accepted)
    assert not more and not fewer, f"accepted, too: {more}; no longer: {fewer}"


def check_golden_files(schema):
    check = validator(schema)
    files = list(Path("golden").rglob("*.json"))
    assert len(files) > 100
    for file in files:
        errors = list(check.iter_errors(load(file)))
        assert not errors, f"{file}: {errors[0].message}"
    good = load("golden/scenarios/debate/all_reduce_sum.json")
    for spoil in (lambda g: g.update(host="x"), lambda g: g.pop("scenario_sha256"),
                  lambda g: g["cases"][0].pop("losses"),
                  lambda g: g["cases"][0]["gradients"]["x"].pop("bound"),
                  lambda g: g["cases"][0].update(dtype="float8")):
        bad = copy.deepcopy(good)
        spoil(bad)
        assert not check.is_valid(bad), bad


def check_reports(schema):
    check = validator(closed(schema))
    with tempfile.TemporaryDirectory() as folder:
        large, broken = Path(folder, "large.json"), Path(folder, "broken.json")
        large.write_text(json.dumps(LARGE))
        broken.write_text('{ "world_size": 0 }')
        runs = [["run", *RUN, large, broken], ["run", "--full", large],
                ["run", "--simulate", large], ["run", "--strict", *RUN[:2]]]
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
    schemas = {name: json.loads(output("schema", name))
               for name in ("scenario", "report", "golden")}
    check_that_every_key_is_described(schemas)
    check_scenarios(schemas["scenario"])
    check_golden_files(schemas["golden"])
    if RUNS:
        check_reports(schemas["report"])
    print("ok")


if __name__ == "__main__":
    main()
