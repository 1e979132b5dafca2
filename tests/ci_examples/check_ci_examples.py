#!/usr/bin/env python3
"""What docs/ci.md says happens, and its commands, in a repository of one scenario.

    check_ci_examples.py DISTGRAD CI_MD

Run by a python that has torch.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DISTGRAD, PAGE = os.path.abspath(sys.argv[1]), Path(sys.argv[2]).read_text(encoding="utf-8")
FIRST = Path("scenarios/first.json")
GATE = ["run", "--strict", "scenarios"]

# A layer in Python, as the good and the bad commits have it.
LAYER = """import torch
import torch.distributed as dist


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        pieces = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, x)
        return torch.stack(pieces)

    @staticmethod
    def backward(ctx, g):
        %s
        return g[dist.get_rank()]
"""
SUMS = "g = g.contiguous(); dist.all_reduce(g)"
OWN_SLICE = "pass  # faster"
CRASH = "import os; os._exit(1)"
GATHER = {"world_size": 2, "inputs": {"x": [1.0, 2.0]}, "steps": [{"y": {"all_gather": "x"}}],
          "loss": "(y * y).sum()", "objective": "sum"}


def environment():
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "CI_", "GIT_"))}
    for who in ("AUTHOR", "COMMITTER"):
        kept |= {f"GIT_{who}_NAME": "a", f"GIT_{who}_EMAIL": "a@example.com"}
    return {**kept, "PATH": os.getcwd() + "/bin:" + os.environ["PATH"]}


def run(*command):
    return subprocess.run(list(command), capture_output=True, text=True, env=environment(),
                          timeout=200)


def distgrad(*arguments):
    return run("distgrad", *arguments)


def expect(done, code, *texts):
    assert done.returncode == code and all(text in done.stdout + done.stderr
                                           for text in texts), (code, texts, done)


def edit(change, file=FIRST):
    scenario = json.loads(file.read_text())
    change(scenario)
    file.write_text(json.dumps(scenario))


def repository():
    """bin/distgrad, scenarios/first.json, and its golden file."""
    os.mkdir("bin")
    os.symlink(DISTGRAD, "bin/distgrad")
    expect(distgrad("init"), 0)
    expect(distgrad("golden", "update"), 0)


def check_good():
    expect(distgrad(*GATE), 0, "3 as expected")
    expect(distgrad("golden", "check"), 0, "1 up to date")


def check_new_mismatch():
    edit(lambda s: s["subjects"].update(in_place="match"))
    expect(distgrad(*GATE), 1, "FAIL  scenarios/first.json:subject=in_place",
           "mismatch: identity-backward in step y (all_reduce)")


def check_mended():
    edit(lambda s: s["subjects"].update(torch_nn={"verdict": "mismatch",
                                                  "finding": "identity-backward"}))
    expect(distgrad(*GATE), 1, "match, though the file expects mismatch: identity-backward",
           'has been mended, make the expectation "match"')


def check_wrong_in_another_way():
    edit(lambda s: s["subjects"]["in_place"].update(finding="own-slice"))
    expect(distgrad(*GATE), 1, "expected the finding own-slice, found identity-backward")


def check_changed_program():
    edit(lambda s: s.update(loss="3 * y * y", truth={}))
    expect(distgrad(*GATE), 0)
    expect(distgrad("golden", "check"), 1, "differs", "40", "120")


def check_deleted_and_new_scenario():
    FIRST.rename("scenarios/second.json")
    expect(distgrad("golden", "check"), 1, "orphan",
           "golden/scenarios/first.json   has no scenario", "missing", "second.json")


def check_skipped():
    edit(lambda s: s["subjects"].update(simclr="match"))
    expect(distgrad("run", "scenarios"), 0, "1 skipped")
    expect(distgrad(*GATE), 1, "simclr does not offer all_reduce")


def check_vacuous():
    edit(lambda s: s.update(loss="(y.detach() * x).sum()", truth={},
                            subjects={"in_place": "match"}))
    expect(distgrad("run", "scenarios"), 0, "(1 vacuous)")
    expect(distgrad(*GATE), 1, "FAIL", "match, but vacuous")


def check_audit():
    Path("layers.py").write_text(LAYER % OWN_SLICE)
    cheap = ["--without", "groups,shape,dtype,graph,operand,cotangent,dim", "--world-size", "2"]
    expect(distgrad("audit", *cheap, "--strict", "--python", sys.executable,
                    "all_gather=python:layers.py:Gather.apply"),
           1, "0 wrong, 1 wrong for DistributedDataParallel",
           "strict: all_gather not right for mean")


def check_vanished():
    if not shutil.which("jq"):
        return print("no jq: check_vanished is left out")
    script = next(block for block in blocks("sh") if "comm -23" in block)
    in_workflow = next(block for block in blocks("yaml") if "comm -23" in block)
    assert "".join(script.split()) in "".join(in_workflow.split())
    expect(distgrad("run", "--json", "last_good.json", "scenarios"), 0)
    expect(distgrad("run", "--json", "report.json", "scenarios"), 0)
    expect(run("bash", "-eo", "pipefail", "-c", script), 0)
    edit(lambda s: s["subjects"].pop("torch_nn"))
    expect(distgrad("run", "--json", "report.json", "scenarios"), 0)
    expect(run("bash", "-eo", "pipefail", "-c", script), 1, "subject=torch_nn")


def check_unreadable():
    edit(lambda s: s.update(obective="sum"))
    expect(distgrad(*GATE), 2, "scenarios/first.json:1:", 'did you mean "objective"')


def check_broken():
    Path("layers.py").write_text(LAYER % CRASH)
    FIRST.write_text(json.dumps(GATHER))
    expect(distgrad(*GATE, "--python", sys.executable, "--subject",
                    "all_gather=python:layers.py:Gather.apply"), 3, "ERR", "crash")


def check_nothing_ran():
    expect(distgrad(*GATE, "--filter", "no case is called so"), 4, "No case was run.")
    FIRST.unlink()
    expect(distgrad(*GATE), 4)


def check_lists_for_other_tools():
    """docs/command-line.md has these keys."""
    keys = {"scenarios": "file name note", "collectives": "kind options result",
            "subjects": "subject source rules", "backends": "backend what unavailable",
            "rules": "rule finding summary", "findings": "finding meaning",
            "cases": "id file name subject world_size dtype backend objective expected skipped"}
    edit(lambda s: s.update(backend=["gloo", "nccl"], world_size=[2, 3], truth={}))
    listed = {what: json.loads(distgrad("list", what, "--json").stdout) for what in keys}
    for what, rows in listed.items():
        assert rows and all(list(row) == keys[what].split() for row in rows), (what, rows[:1])
    cases = listed["cases"]
    assert len(cases) == 12 and {case["world_size"] for case in cases} == {2, 3}
    assert {case["backend"]: bool(case["skipped"]) for case in cases}["gloo"] is False
    expected = {case["expected"]["verdict"] for case in cases if case["subject"] == "in_place"}
    assert expected == {"mismatch"}
    for case in cases:
        assert json.loads(distgrad("list", "cases", "--json", case["id"]).stdout) == [case]
    FIRST.write_text("{}")
    expect(distgrad("list", "cases", "--json"), 2, "[]", "scenarios/first.json:1:")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def check_commands_of_the_pages():
    """Those of both YAML files, in their order: a good repository is green, and the reports are
    there."""
    commands = re.findall(r"^ *(?:- )?(?:run: )?(distgrad [a-z].*)$", "".join(blocks("yaml")),
                          re.MULTILINE)
    assert len(commands) == 4, commands
    for command in commands:
        expect(run("sh", "-c", command), 0)
    assert all(Path(name).stat().st_size for name in ("junit.xml", "report.json", "summary.md",
                                                      "distgrad.sarif"))


def check_plain_shell():
    script = blocks("sh")[0]
    assert script.startswith("#!/bin/sh")
    expect(run("sh", "-c", script), 0, "3 as expected", "1 up to date")
    edit(lambda s: s.update(loss="3 * y * y", truth={}))
    expect(run("sh", "-c", script), 1, "3 as expected", "differs")


def git(*arguments):
    done = run("git", *arguments)
    assert done.returncode == 0, done
    return done.stdout


def check_bisect():
    if not shutil.which("git"):
        return print("no git: check_bisect is left out")
    gather = Path("scenarios/gather.json")
    gather.write_text(json.dumps(GATHER))
    git("init", "-q")
    for name, backward in [("v1.0", SUMS), ("crashes", CRASH), ("mended", SUMS),
                           ("culprit", OWN_SLICE), ("later", OWN_SLICE)]:
        Path("layers.py").write_text(LAYER % backward + f"# {name}\n")
        git("add", "layers.py", "scenarios")
        git("commit", "-q", "-m", name)
        git("tag", name)
    script = next(block for block in blocks("sh") if "git bisect" in block)
    script = script.replace("/tmp/gather.json", os.path.abspath("gather.json"))
    # So that its python3 is one with torch
    os.environ["PATH"] = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]
    done = run("sh", "-ec", script)
    assert f"{git('rev-parse', 'culprit').strip()} is the first bad commit" in done.stdout, done


def main():
    checks = [check for name, check in globals().items() if name.startswith("check_")]
    for check in checks:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            repository()
            check()
            os.chdir("/")
        print(f"ok {check.__name__}", flush=True)


if __name__ == "__main__":
    main()
