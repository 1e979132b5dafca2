"""The atlas as pages, in docs/atlas: tables.md, comparisons.md, atlas.json and atlas.html."""

import html
import json
import re
from pathlib import Path

import comparisons

_ROOT = Path(__file__).resolve().parents[2]

_INTRO = """# The tables of the atlas

Audits with {torch}, on CPU over Gloo. [../atlas.md](../atlas.md) says how to read them.
`tools/atlas` writes this page.

{figures}
"""


def entry_of(package, row, result, torch):
    return _without_places(_entry_of(package, row, result, torch))


def _without_places(value):
    """Where the environments and the checkout lie is this machine's own business."""
    if isinstance(value, str):
        value = re.sub(r"[^\s\"'(]*/site-packages/", "", value.replace(str(_ROOT) + "/", ""))
        value = re.sub(r"[^\s\"'(`]+/bin/distgrad\b", "distgrad", value)
        value = re.sub(r"[^\s\"'(]*/envs/[\w.-]+/", "", value)
        return re.sub(r"[\"'(]*/[\w./-]*$", "", value)  # one that was cut short
    if isinstance(value, dict):
        return {key: _without_places(v) for key, v in value.items()}
    return [_without_places(v) for v in value] if isinstance(value, list) else value


def _entry_of(package, row, result, torch):
    entry = {"package": package.project, "version": package.version or torch.rpartition("-")[2],
             "collective": row.kind, "function": row.function, "options": list(row.options),
             "adapter": row.place.rpartition(":")[2] if row.adapter_lines else "",
             "adapter_lines": row.adapter_lines, "call": row.call,
             "seconds": result.get("seconds"), "command": result.get("command", "")}
    found = result.get("audit")
    if not found or not found["offered"]:
        told = (result.get("why")
                or "; ".join((found.get("errors") or []) + (found.get("refused") or []))
                or found.get("refusal", ""))
        return {**entry, "ran": False, "why": told or "not offered"}
    if _is_no_verdict(found):
        return {**entry, "ran": False, "why": "; ".join(found["errors"])}
    measured = found.get("measured") or {}
    states = {name: aspect["state"] for name, aspect in found["aspects"].items()}
    return {**entry, "ran": True, "right_for": found["right_for"], "wrong": found["wrong"],
            "rule": found["rule"], "signature": found["signature"],
            "formula": measured.get("formula", ""), "right_formula": measured.get("right", ""),
            "fails_in": [n for n, s in states.items() if s == "WRONG"],
            "not_taken": [n for n, s in states.items()
                          if s in ("refused", "raises", "breaks", "err", "die")],
            "partly_taken": [n for n, s in states.items() if s == "partly refused"],
            "explanation": found["explanation"], "errors": found["errors"],
            "refused": found["refused"]}


def _is_no_verdict(found):
    """What this machine could not do says nothing of the function: it has no GPU, and is slow where
    many share it."""
    return found["wrong"] and (found["rule"] == "its ranks die or hang"
                               or any("NVIDIA driver" in e for e in found["errors"]))


# What the audit was told -> what it comes from.
_REASONS = (
    (r"No module named 'fairseq2n'", "its import needs fairseq2n, which refuses any other torch"
     " than 2.9.1"),
    (r"No module named '([\w.]+)'", "its import needs {0}, which its environment here lacks"),
    (r"ProcessGroupGloo::alltoall: invalid", "needs NCCL: Gloo's all_to_all takes no list of pieces"
     " of different sizes"),
    (r"ProcessGroupGloo::\w+: invalid tensor size", "needs NCCL: Gloo wants buffers of the"
     " operand's shape"),
    (r"NVIDIA driver", "needs a GPU"),
    (r"not done in \d+ s|does not answer|have not begun|cannot run bin/python",
     "was not through in time on the machine that wrote this page"),
)


def _reason(why):
    for pattern, reason in _REASONS:
        found = re.search(pattern, why)
        if found:
            return reason.format(*found.groups())
    return why


def _script_of(entry):
    """A script in docs/findings that shows what is red in this row, without distgrad, or ""."""
    for line in (_ROOT / "docs" / "atlas" / "repros.txt").read_text().splitlines():
        project, function, script = line.split("#")[0].split() or ("", "", "")
        if (project in (entry["package"], f"{entry['package']}=={entry['version']}")
                and function in ("*", entry["function"])):
            return script
    return ""


def _is_red(entry):
    return (not _has_no_gradient(entry) and not _raises(entry) and not _purpose_of(entry)
            and bool(not entry["right_for"] or entry["fails_in"]))


def _raises(entry):
    """It has no wrong gradient: where it does not have the right one, its backward raises. That
    stops the other ranks, too, of which some end otherwise."""
    raises_twice = any("in backward (double-backward" in e for e in entry["errors"])
    return (", but it raises in " in entry["rule"]
            or (entry["fails_in"] == ["double-backward"] and raises_twice))


def _purpose_of(entry):
    """What a package means by a gradient that is right for no objective by itself, or ""."""
    for line in (_ROOT / "docs" / "atlas" / "on_purpose.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        project, function, formula, purpose = (part.strip() for part in line.split("|"))
        if (not entry["right_for"] and project == entry["package"]
                and formula == entry["formula"] and function in ("*", entry["function"])):
            return purpose
    return ""


def _has_no_gradient(entry):
    """It is no differentiable function, and says so by what it returns."""
    return entry["rule"] == "no-gradient" and entry["formula"] == "x̄_r = 0"


def _repro(entry):
    if not _is_red(entry):
        return ""
    script = _script_of(entry)
    return f"[{script}](../findings/{script})" if script else "none"


def figures_of(entries):
    ran = [e for e in entries if e["ran"]]
    adapted = sum(e["adapter_lines"] > 0 for e in ran)
    written = sum(bool(e["call"]) for e in ran)
    packages = sorted({e["package"] for e in entries})
    empty = [p for p in packages if not any(e["ran"] for e in entries if e["package"] == p)]
    seconds = sum(e["seconds"] or 0 for e in entries)
    text = (f"{len(entries)} functions of {len(packages)} packages: {len(ran)} ran,"
            f" {len(ran) - written - adapted} of them as they are, {written} as a call written out"
            f" in the row, {adapted} with an adapter of at most five lines;"
            f" {len(entries) - len(ran)} did not run. The audits took {seconds / 60:.0f} min.")
    return text + (f" Nothing ran of {', '.join(empty)}." if empty else "")


def _verdict(entry):
    if _has_no_gradient(entry):
        return "not differentiable"
    if _purpose_of(entry):
        return f"no objective by itself: {_purpose_of(entry)}"
    if _raises(entry):
        return "its backward raises (see *fails in*)"
    if not entry["right_for"]:
        return "no objective" if entry["wrong"] else "disputed"
    return ", ".join(entry["right_for"]) + (" (but see *fails in*)" if entry["fails_in"] else "")


def _cells(entry):
    name = comparisons.named(entry)
    name += f" {' '.join(entry['options'])}" if entry["options"] else ""
    return [name, _verdict(entry), formula_of(entry), entry["rule"],
            entry["signature"].replace("->", "→"), ", ".join(entry["fails_in"]),
            ", ".join(entry["not_taken"]), str(entry["adapter_lines"] or ""), _repro(entry)]


def formula_of(entry):
    """As a cell; one that tells element by element is in the JSON."""
    text = _escaped(entry["formula"])
    return f"`{text if len(text) < 160 else text[:160].rpartition(';')[0] + '; …'}`" if text else ""


def _escaped(text):
    return " ".join(text.split()).replace("|", "\\|")


_HEADINGS = ["function", "right for", "measured", "rule", "type", "fails in",
             "not taken", "adapter", "repro"]


def _table(entries):
    lines = ["| " + " | ".join(_HEADINGS) + " |", "|" + " --- |" * len(_HEADINGS)]
    return "\n".join(lines + ["| " + " | ".join(_cells(e)) + " |" for e in entries])


def text_of(entries):
    """The tables by collective, and what did not run."""
    parts = []
    for kind in dict.fromkeys(e["collective"] for e in entries):
        of_kind = [e for e in entries if e["collective"] == kind and e["ran"]]
        if of_kind:
            tables = []
            for release in dict.fromkeys(_release(e) for e in of_kind):
                of_release = [e for e in of_kind if _release(e) == release]
                tables.append(f"**{release}**\n\n" + _table(of_release))
            parts.append(f"## {kind}\n\n" + "\n\n".join(tables))
    failed = [e for e in entries if not e["ran"]]
    if failed:
        parts.append("## What did not run\n\n| package | function | why |\n| --- | --- | --- |\n"
                     + "\n".join(f"| {_release(e)} | `{e['function']}` as"
                                 f" {e['collective']} | {_escaped(_reason(e['why']))[:240]} |"
                                 for e in failed))
    return "\n\n".join(parts)


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>The atlas of distributed gradients</title>
<style>body{{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:100em;padding:0 1em}}
table{{border-collapse:collapse;width:100%}}
td,th{{border:1px solid #ccc;padding:.3em .5em;text-align:left;vertical-align:top}}
code{{font-size:90%}}
.wrong{{background:#fde4e1}}.part{{background:#fff6d6}}.right{{background:#e6f4e6}}
@media(prefers-color-scheme:dark){{body{{background:#161616;color:#ddd}}
.wrong{{background:#532}}.part{{background:#443c14}}.right{{background:#1d3a1d}}}}
</style><h1>The atlas of distributed gradients</h1><p>{figures}</p>
<p>A measurement of released code on CPU over Gloo. A red cell says for which case the gradient is
not the derivative of the forward, not that a package is wrong for what it is used for.</p>
<table><thead><tr><th>package</th><th>collective</th>{headings}</tr></thead><tbody>
{rows}
</tbody></table></html>
"""


def _html_row(entry):
    if not entry["ran"]:
        cells = [f"<code>{html.escape(entry['function'])}</code>",
                 f"<td colspan=8>not run: {html.escape(_reason(entry['why'])[:240])}"]
        return f"{_html_begin(entry, '')}<td>{cells[0]}{cells[1]}"
    is_partly = entry["not_taken"] or entry["fails_in"] or not entry["right_for"]
    look = "wrong" if _is_red(entry) else "part" if is_partly else "right"
    cells = "".join(f"<td>{html.escape(cell.replace('`', ''))}" for cell in _cells(entry))
    return _html_begin(entry, f" class={look}") + cells


def _html_begin(entry, look):
    return f"<tr{look}><td>{html.escape(_release(entry))}<td>{entry['collective']}"


def _release(entry):
    return f"{entry['package']} {entry['version']}"


class Written:
    """The rows that are written already: those of packages that were not asked for stay."""

    _TELLING = ("package", "version", "collective", "function", "options", "adapter", "call")

    def __init__(self, file):
        told = json.loads(file.read_text()) if file.exists() else {"torch": "", "rows": []}
        self.torch, self._rows = told["torch"], told["rows"]

    def of(self, entry):
        """The row of this function, or the entry itself where there is none."""
        return next((row for row in self._rows
                     if all(row[name] == entry[name] for name in self._TELLING)), entry)


def write(docs, entries, torch):
    figures = figures_of(entries)
    (docs / "atlas" / "atlas.json").write_text(
        json.dumps({"torch": torch, "rows": entries}, indent=1, ensure_ascii=False) + "\n")
    (docs / "atlas" / "tables.md").write_text(_INTRO.format(torch=torch, figures=figures) + "\n"
                                   + text_of(entries) + "\n")
    (docs / "atlas" / "comparisons.md").write_text(comparisons.text_of(entries, formula_of))
    headings = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
    rows = "\n".join(_html_row(e) for e in entries)
    (docs / "atlas" / "atlas.html").write_text(
        _PAGE.format(figures=html.escape(figures), headings=headings, rows=rows))
