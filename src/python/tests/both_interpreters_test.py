"""Every scenario on ranks in C++ and on ranks in Python: the two rank programs must give the same.

usage: both_interpreters_test.py --distgrad PATH --python PATH [--scenarios PATH ...]

They share no code: what one gets wrong alone shows here, whatever the truth is.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

COMPARED = ("verdict", "losses", "gradients", "warnings")


def cases(options, subject):
    """By their names without the subject: {"collectives/copy.json:world_size=2": case}."""
    command = [options.distgrad, "run", *options.scenarios, "--subject", subject]
    if subject.startswith("python:"):
        command += ["--python", options.python]
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        # Its exit status tells of expectations, which are not the question here.
        done = subprocess.run(command + ["--json", report], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        if not os.path.exists(report):
            sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}")
        with open(report) as file:
            text = file.read()
    return {_name(case, subject): case for case in json.loads(text)["cases"]}


def _name(case, subject):
    file, _, variant = case["id"].partition(":subject=" + subject)
    parts = [part for part in variant.split(",") if part and not part.startswith("python=")]
    return ":".join([file, ",".join(parts)])


def close(a, b):
    """Ranks may add in another order; the driver's bounds have judged that already."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    if type(a) in (int, float) and type(b) in (int, float):
        return a == b or abs(a - b) <= 1e-5 * max(1, abs(a), abs(b))
    return a == b


def differences(in_cpp, in_python):
    for key in COMPARED:
        if not close(in_cpp.get(key), in_python.get(key)):
            yield f"{key}: {in_cpp.get(key)} in C++, {in_python.get(key)} in Python"
    cpp, python = in_cpp.get("error"), in_python.get("error")
    if bool(cpp) != bool(python) or (cpp and any(cpp[k] != python[k] for k in ("kind", "step"))):
        yield f"error: {cpp} in C++, {python} in Python"
    # In Python with the exception's type
    elif cpp and cpp["message"].splitlines()[0] not in python["message"]:
        yield f"message: {cpp['message']} in C++, {python['message']} in Python"


# A rank whose operand wants no gradient where others' do is attached to the graph before it is
# known what the subject is, so that a plain call is warned of there as well.
KNOWN = {
    ("in_place", "scenarios/collectives/sync_where_one_part_has_no_gradient.json:"): "warnings",
}


def compare(options, subject):
    in_cpp, in_python = cases(options, subject), cases(options, "python:" + subject)
    wrong = [f"{name}: only in one of them" for name in in_cpp.keys() ^ in_python.keys()]
    for name in in_cpp.keys() & in_python.keys():
        for difference in differences(in_cpp[name], in_python[name]):
            known = KNOWN.get((subject, name))
            if not known or not difference.startswith(known):
                wrong.append(f"{name}: {difference}")
    print(f"{subject}: {len(in_cpp)} cases, {len(wrong)} differences")
    for line in sorted(wrong)[:20]:
        print("  " + line[:1000])
    return bool(wrong) or not in_cpp


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--distgrad", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--subjects", nargs="+", default=["reference", "in_place"])
    parser.add_argument("--scenarios", nargs="+", default=["scenarios"])
    options = parser.parse_args()
    failed = [subject for subject in options.subjects if compare(options, subject)]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
