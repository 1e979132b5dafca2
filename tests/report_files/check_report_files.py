#!/usr/bin/env python3
"""Runs distgrad on scenarios that come out in every way and reads the report files as CI does.

    check_report_files.py DISTGRAD [SCHEMAS]

Standard library only. Where junitparser, lxml or jsonschema can be imported they read the files,
too; SCHEMAS is a folder with Jenkins' junit-10.xsd and sarif-schema-2.1.0.json, which lxml and
jsonschema then check against.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

DISTGRAD = os.path.abspath(sys.argv[1])
SCHEMAS = pathlib.Path(sys.argv[2]).absolute() if len(sys.argv) > 2 else None
FORMATS = {"--json": "r.json", "--junit": "r.xml", "--markdown": "r.md", "--sarif": "r.sarif",
           "--html": "r.html"}

DEBATE = """{
  "world_size": 2,
  "inputs": { "x": 1.0 },
  "steps": [
    { "xx": "(rank + 2) * x" },
    { "y": { "all_reduce": "xx", "op": "sum" } }
  ],
  "loss": "y * y",
  "objective": "sum",
  "subjects": %s
}
"""


def optional(name):
    try:
        return __import__(name)
    except ImportError:
        return None


def command(*arguments):
    return [DISTGRAD, "run", *arguments, *(word for pair in FORMATS.items() for word in pair)]


def environment(**more):
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "CI_"))}
    return plain | more


def run(*arguments, **variables):
    for name in FORMATS.values():
        pathlib.Path(name).unlink(missing_ok=True)
    return subprocess.run(command(*arguments), env=environment(**variables), capture_output=True,
                          text=True, timeout=120)


def text_of(report, start):
    """The case's line and the indented ones below it."""
    lines = report[report.index(start):].splitlines(keepends=True)
    below = next((i for i, line in enumerate(lines) if i > 0 and line[:2] != "  "), len(lines))
    return "".join(lines[:below])


def read_junit():
    root = ElementTree.parse("r.xml").getroot()
    suites = list(root)
    cases = [case for suite in suites for case in suite if case.tag == "testcase"]
    for group, members in [(root, cases), *((s, s.findall("testcase")) for s in suites)]:
        for attribute, tag in [("failures", "failure"), ("errors", "error")]:
            counted = sum(case.find(tag) is not None for case in members)
            assert int(group.get(attribute)) == counted, (group.attrib, counted)
        assert int(group.get("tests")) == len(members), group.attrib
    names = [(case.get("classname"), case.get("name")) for case in cases]
    assert len(set(names)) == len(names), "two test cases of one name are taken for one"
    if junitparser := optional("junitparser"):
        parsed = junitparser.JUnitXml.fromfile("r.xml")
        assert parsed.tests == len(cases) == sum(len(list(suite)) for suite in parsed)
    if SCHEMAS and optional("lxml"):
        from lxml import etree
        etree.XMLSchema(etree.parse(SCHEMAS / "junit-10.xsd")).assertValid(etree.parse("r.xml"))
    return {case.get("name"): case for case in cases}


def read_sarif():
    log = json.loads(pathlib.Path("r.sarif").read_text(encoding="utf-8"))
    driver = log["runs"][0]["tool"]["driver"]
    results = log["runs"][0]["results"]
    for result in results:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    prints = [result["partialFingerprints"]["distgradCase/v1"] for result in results]
    assert len(set(prints)) == len(prints)
    jsonschema = optional("jsonschema")
    if SCHEMAS and jsonschema:
        schema = json.loads((SCHEMAS / "sarif-schema-2.1.0.json").read_text())
        jsonschema.validate(log, schema, format_checker=jsonschema.FormatChecker())
    return log["runs"][0]


def check_all_formats_at_once():
    done = run("all")
    assert done.returncode == 2, done  # the invalid file; nothing is broken
    cases = read_junit()
    assert cases["known"].find("failure") is None
    failure = cases["wrong"].find("failure")
    assert failure.get("type") == "identity-backward", failure.attrib
    text = text_of(done.stdout, "FAIL  all/wrong.json")
    assert failure.text.startswith(text), (failure.text, text)
    assert cases["mended"].find("failure").get("message").startswith("match, though the file")
    assert cases["skipped"].find("skipped").get("message")
    results = {r["properties"]["case"] if "properties" in r else "bad": r
               for r in read_sarif()["results"]}
    assert set(results) == {"all/wrong.json", "all/mended.json", "bad"}, results.keys()
    place = results["all/wrong.json"]["locations"][0]["physicalLocation"]
    assert place["region"]["startLine"] == 6
    assert place["artifactLocation"]["uri"] == "all/wrong.json"
    summary = pathlib.Path("r.md").read_text(encoding="utf-8")
    assert summary.startswith(
        "## distgrad: 2 not as expected, 1 problem in files or subjects, of 4 cases")
    assert json.loads(pathlib.Path("r.json").read_text())["summary"]["not_as_expected"] == 2
    assert sorted(os.listdir()) == sorted(["all", *FORMATS.values()]), "something was left behind"


def check_annotations():
    done = run("all", GITHUB_ACTIONS="true", GITHUB_WORKSPACE=os.path.dirname(os.getcwd()))
    lines = [line for line in done.stdout.splitlines() if line.startswith("::error ")]
    below = os.path.basename(os.getcwd())
    assert len(lines) == 3, lines
    assert any(line.startswith(f"::error file={below}/all/wrong.json,line=6,") for line in lines)
    assert not any(line.startswith("::") for line in run("all").stdout.splitlines())


def check_what_cannot_be_written():
    done = subprocess.run([DISTGRAD, "run", "all/known.json", "--json", "no/r.json", "--junit",
                           "r.xml"], env=environment(), capture_output=True, text=True)
    assert done.returncode == 2 and "cannot write no/r.json" in done.stderr, done
    assert "known" in read_junit(), "the other report is written all the same"


def check_shards():
    def ids(*arguments):
        run("all/many.json", *arguments)
        return [case["id"] for case in json.loads(pathlib.Path("r.json").read_text())["cases"]]
    pathlib.Path("all/many.json").write_text(DEBATE.replace("2,", "[1, 2, 3, 4, 5],", 1) %
                                             '{ "reference": "match" }')
    parts = [ids("--shard", f"{i}/3") for i in (1, 2, 3)]
    assert sorted(map(len, parts)) == [1, 2, 2], parts
    assert sorted(sum(parts, [])) == sorted(ids()), parts
    assert parts[1] == ids("--shard", "2/3"), "the same part each time"


def check_fail_fast():
    pathlib.Path("all/many.json").write_text(DEBATE.replace("2,", "[2, 3, 4, 5],", 1) %
                                             '{ "in_place": "match" }')
    done = run("all/many.json", "--fail-fast")
    assert done.returncode == 1 and "1 of 4 cases were finished" in done.stderr, done
    assert len(read_junit()) == 1
    assert len(read_sarif()["results"]) == 1


def check_interrupted():
    """Ctrl-C: every file is there, whole, and not green."""
    worlds = ",".join(str(n) for n in range(1, 9))
    dtypes = "float64,float32,bfloat16,float16"
    process = subprocess.Popen(command("all/known.json", "--world-size", worlds, "--dtype", dtypes,
                                       "--subject", "reference,torch_nn,in_place", "--verbose"),
                               env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    assert process.stdout.readline(), "nothing was finished"
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130, (process.returncode, error)
    assert read_junit()["the whole run"].find("error").get("message").startswith("interrupted; ")
    assert read_sarif()["invocations"][0]["executionSuccessful"] is False
    assert "**Not complete**: interrupted" in pathlib.Path("r.md").read_text()
    json.loads(pathlib.Path("r.json").read_text())
    page = pathlib.Path("r.html").read_text(encoding="utf-8")
    assert "<b>Not complete</b>: interrupted; " in page and page.endswith("</html>\n"), page[-100:]


def write_scenarios():
    os.mkdir("all")
    subjects = {
        "wrong": '{ "in_place": "match" }',
        "known": '{ "in_place": { "verdict": "mismatch", "finding": "identity-backward" } }',
        "mended": '{ "torch_nn": { "verdict": "mismatch", "finding": "identity-backward" } }',
        "skipped": '{ "simclr": "match" }',
        "bad <&\x01\N{SNOWMAN}": '{ "in_plaec": "match" }',
    }
    for name, text in subjects.items():
        pathlib.Path("all", name + ".json").write_text(DEBATE % text)


def main():
    for check in (check_all_formats_at_once, check_annotations, check_what_cannot_be_written,
                  check_shards, check_fail_fast, check_interrupted):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            write_scenarios()
            started = time.monotonic()
            check()
            print(f"ok {check.__name__} {time.monotonic() - started:.1f} s", flush=True)
            os.chdir("/")


if __name__ == "__main__":
    main()
