#!/usr/bin/env python3
"""Looks at HTML reports as files and, where there is a Chromium, as pages.

    check_html.py files DISTGRAD WRITER    the file: complete, well-formed, whole or not there
    check_html.py pages DISTGRAD WRITER    in Chromium; exit code 77 where none is found
    check_html.py time FILE [COUNT]        seconds until the page can be used, COUNT times
    check_html.py picture FILE HASH PNG WIDTH HEIGHT light|dark

WRITER is tests/html/write_report.cpp. DISTGRAD_CHROMIUM names the browser.
"""
import html.parser
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import browser

DEBATE = """{
  "note": "%s",
  "world_size": 2,
  "inputs": { "x": 1.0 },
  "steps": [ { "xx": "(rank + 2) * x" }, { "y": { "all_reduce": "xx", "op": "sum" } } ],
  "loss": "y * y",
  "objective": "sum",
  "subjects": { "reference": "match", "in_place": "match" }
}
"""
EVIL = ("</script><script>document.title = 'taken'</script><img src=x"
        " onerror=document.title='taken'>")


class Nesting(html.parser.HTMLParser):
    """Checks that elements are nested, and keeps the texts of data scripts."""
    VOID = {"meta", "link", "input", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.data, self.current, self.text = [], {}, None, []

    def handle_starttag(self, tag, attributes):
        assert tag not in ("img", "iframe", "object"), tag
        for name, value in attributes:
            assert not name.startswith("on") and name != "src", (tag, name)
            assert name != "href" or value.startswith(("#", "data:,")), value
        if tag not in self.VOID:
            self.open.append(tag)
        self.current = dict(attributes).get("id") if tag == "script" else None

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, (tag, self.getpos())
        self.current = None

    def handle_data(self, data):
        if self.current:
            self.data[self.current] = json.loads(data)
        elif "script" not in self.open and "style" not in self.open:
            self.text.append(data)


def parsed(path):
    parser = Nesting()
    parser.feed(pathlib.Path(path).read_text(encoding="utf-8"))
    parser.close()
    assert not parser.open, parser.open
    return parser.data, " ".join(" ".join(parser.text).split())


def environment():
    return {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "CI_"))}


def run(distgrad, *arguments):
    done = subprocess.run([distgrad, "run", *arguments], env=environment(), capture_output=True,
                          text=True, timeout=120)
    assert done.returncode in (0, 1), done
    return done


def check_a_run(distgrad):
    pathlib.Path("<b>.json").write_text(DEBATE % EVIL, encoding="utf-8")
    run(distgrad, "<b>.json", "--html", "r.html", "--json", "r.json", "--junit", "r.xml",
        "--markdown", "r.md", "--sarif", "r.sarif")
    data, text = parsed("r.html")
    index = data["index"]
    assert "1 not as expected, of 2 cases" in text, text
    assert "FAIL <b>.json:subject=in_place : mismatch: identity-backward" in text, text
    assert index["files"][0]["note"] == EVIL
    assert [step[1] for step in index["files"][0]["steps"]] == ["(rank + 2) * x",
                                                                "all_reduce(xx, op=sum)"]
    failing = data["details-0"][0]
    table = failing["inputs"][0]["table"]
    assert table["rows"][0][:2] == ["observed", ["20", "30"]], table
    assert failing["inputs"][0]["map"]["rows"][1]["error"] == [30], failing["inputs"]
    steps = {row["title"].split()[0]: row for row in failing["trace"]["rows"]}
    assert steps["xx"]["cotangents"]["observed"] == ["10", "10"], steps
    assert "observed" not in steps["y"]["cotangents"] and "part here" in data["texts"][steps["y"]
                                                                                       ["mark"]]
    assert "trace" not in data["details-0"][1], "a match has none"
    for name in ("r.json", "r.xml", "r.md", "r.sarif"):
        assert pathlib.Path(name).stat().st_size > 0, name


def check_killed(writer):
    """Killed at any moment: the old file, or the new one, and whole."""
    old = "the old one"
    seen = set()
    for _ in range(8):
        pathlib.Path("k.html").write_text(old)
        process = subprocess.Popen([writer, "300", "k.html"], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"writing\n"
        time.sleep(random.uniform(0, 0.004))
        process.send_signal(signal.SIGKILL)
        process.wait()
        text = pathlib.Path("k.html").read_text(encoding="utf-8")
        assert text == old or text.endswith("</html>\n"), text[-100:]
        seen.add(text == old)
    print("  killed before and after:", len(seen) == 2)


def check_files(distgrad, writer):
    check_a_run(distgrad)
    check_killed(writer)


# --- In a browser ---

def check_case(page, folder):
    case = "<b>.json:subject=in_place"
    page.open(f"file://{folder}/r.html#case={case}")
    assert page.evaluate("document.title") == "FAIL " + case
    text = page.evaluate("document.getElementById('case').innerText")
    for words in ("identity-backward", "all_reduce(xx, op=sum)", "the cotangents part here",
                  "observed 30, true 60, difference 30", "distgrad run '<b>.json:subject=in_place'",
                  EVIL):
        assert words in text, (words, text)
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    # The cotangents of x and xx are off, that of y and the loss is not.
    assert page.evaluate("[...document.querySelectorAll('.trace-table tbody tr:not(.parting)')]"
                         ".map(r => r.querySelectorAll('td.rail.wrong').length)") == [1, 1, 0, 0]
    # The line lies between xx and y.
    rows = page.evaluate(
        "[...document.querySelectorAll('.trace-table tbody tr')].map(r => r.className)")
    assert rows == ["input", "step", "parting", "step parts", "loss"], rows
    for table, reading, at_first, after in ((".trace-table", ".trace .reading",
                                             "xx, cotangent, rank 0: ranks' 10, true 20",
                                             "xx, cotangent, rank 1: ranks' 10, true 20"),
                                            (".heat", ".map .reading",
                                             "rank 1: observed 30, true 60, difference 30",
                                             "rank 0: observed 20, true 40, difference 20")):
        read = lambda: page.evaluate(f"document.querySelector('{reading}').textContent")
        page.evaluate(f"document.querySelector('{table}').focus()")
        assert read().startswith(at_first), read()
        page.key("ArrowRight" if table == ".trace-table" else "ArrowUp")
        assert read().startswith(after), read()


def check_filters_and_keys(page, folder):
    page.open(f"file://{folder}/many.html")
    assert page.evaluate("document.getElementById('shown').textContent") == "2000 cases"
    assert page.evaluate(
        "document.querySelectorAll('.row').length") < 60, "only rows in sight exist"
    page.key("/")
    page.type("block_3 own-slice")
    shown = page.evaluate("document.getElementById('shown').textContent")
    assert shown.endswith("of 2000 cases"), shown
    rows = page.evaluate("[...document.querySelectorAll('.row')].map(r => r.title)")
    assert rows and all("block_3" in r and "own-slice" in r for r in rows), rows
    page.key("Enter")
    first = page.evaluate("document.title")
    page.key("j")
    second = page.evaluate("document.title")
    assert first != second and "subject=simclr" in second, (first, second)
    page.key("k")
    assert page.evaluate("document.title") == first
    page.key("Escape")
    assert page.evaluate("document.getElementById('shown').textContent") == "2000 cases"
    page.evaluate("document.querySelector('.chip[title=horovod]').click()")
    assert page.evaluate("document.getElementById('shown').textContent").startswith("400 of")
    assert page.evaluate(
        "document.querySelector('.chip[title=horovod]').getAttribute('aria-pressed')") == "true"
    page.evaluate("document.getElementById('list').scrollTop = 200 * 48")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("document.getElementById('row-205') !== null")


# WCAG 2.2, 1.4.3: of the texts that are shown, against the nearest background.
CONTRAST = """(() => {
  const rgb = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const f = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
  };
  const below = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const has_text = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  const bad = new Set();
  for (const e of document.querySelectorAll('body *')) {
    if (!e.getClientRects().length || !has_text(e)) continue;
    const a = light(rgb(getComputedStyle(e).color)), b = light(below(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.add(ratio.toFixed(2) + ' ' + e.tagName + '.' + e.className);
  }
  return [...bad];
})()"""


def check_contrast(page, folder):
    for theme in ("light", "dark"):
        page.theme(theme)
        for address in ("r.html", "many.html#case=" + page.many_case,
                        "r.html#case=<b>.json:subject=in_place"):
            page.open(f"file://{folder}/{address}")
            bad = page.evaluate(CONTRAST)
            assert not bad, (theme, address, bad)


def check_phone(page, folder):
    page.size(390, 800)
    for address in ("r.html", "r.html#case=<b>.json:subject=in_place", "many.html"):
        page.open(f"file://{folder}/{address}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, address
    # The list is below the summary: what filters it brings it into view, and so does the way back.
    shown = "document.getElementById('shown').getBoundingClientRect().top"
    for clicked in (".tile.FAIL a", "#rows [role=option]", ".back"):
        page.evaluate(f"document.querySelector('{clicked}').click()")
        page.evaluate("new Promise((done) => setTimeout(done, 50))")
    assert 0 < page.evaluate(shown) < 800, page.evaluate(shown)


def check_pages(distgrad, writer):
    executable = browser.find_chromium()
    if not executable:
        print("no Chromium here: not checked")
        sys.exit(77)
    check_a_run(distgrad)
    subprocess.run([writer, "2000", "many.html"], check=True, stdout=subprocess.DEVNULL)
    folder = os.getcwd()
    with browser.Browser(executable) as page:
        page.many_case = (parsed("many.html")[0]["index"]["files"][0]["file"]
                          + ":subject=in_place,world_size=1")
        for check in (check_case, check_filters_and_keys, check_contrast, check_phone):
            check(page, folder)
            assert not page.complaints(), page.complaints()
            print("  ok", check.__name__, flush=True)


READY = """new Promise(done => requestAnimationFrame(() => setTimeout(() => done({
  "painted": performance.getEntriesByName("first-contentful-paint")[0].startTime / 1000,
  "listed": Number(document.documentElement.dataset.listed) / 1000,
  "all read": Number(document.documentElement.dataset.ready) / 1000,
  "rows": document.querySelectorAll(".row").length }))))"""


def measure(path, count="5"):
    with browser.Browser(browser.find_chromium()) as page:
        for _ in range(int(count)):
            loaded = page.open(pathlib.Path(path).absolute().as_uri())
            times = page.evaluate(READY)
            print(f"loaded {loaded:.2f} s;",
                  ", ".join(f"{name} {value:.2f}" for name, value in times.items()))


def picture(path, place, png, width, height, theme):
    with browser.Browser(browser.find_chromium(), int(width), int(height)) as page:
        page.theme(theme)
        page.open(pathlib.Path(path).absolute().as_uri() + place)
        page.evaluate("new Promise(done => setTimeout(done, 200))")
        page.screenshot(png)


def main():
    what, *arguments = sys.argv[1:]
    if what in ("time", "picture"):
        return {"time": measure, "picture": picture}[what](*arguments)
    check = {"files": check_files, "pages": check_pages}[what]
    paths = [os.path.abspath(a) for a in arguments]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        check(*paths)
        os.chdir("/")


if __name__ == "__main__":
    main()
