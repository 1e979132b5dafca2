"""docs/atlas/comparisons.md: rows of the atlas side by side."""

import re

_INTRO = """# One operation, several shipped rules

`tools/atlas` writes this page from the rows of [the tables](tables.md): each line is measured, on
three ranks.
"""

_GATHERS = """## Gathers of a sequence, or of embeddings

`x̄_r = Σ_k ȳ_k[r]` is right for losses of the ranks' own: what one rank's piece does to the other
ranks' losses counts. `x̄_r = ȳ_r[r]` is right for one loss that all ranks compute from the whole.
verl's `gather` is the default of `gather_outputs_and_unpad`, N times that: for one loss whose
gradients FSDP averages over these ranks afterwards. torchrec's divides the sum by N, for
the mean of the ranks' losses that nobody averages afterwards; `set_gradient_division(False)` ends
that. The signatures do not differ: who replaces one by another gets another gradient, and no
error."""

_CUTS = """## Cuts of a sequence

The cut's operand is on all ranks. `x̄_r[a] = ȳ_a` gathers the gradient of one loss; zeros outside
the own piece are right for losses of the ranks' own; veomni's `cut` divides by the ranks, for a sum
over them that comes later."""

_SPMD = """## spmd_types: declared and measured

Declared is what the call says (`src`, `dst`; S is V). Where nothing is measured, some case is not
right under any objective, and the last column says what that is."""

_VERSIONS = """## What changed between two releases

Of {both} functions that were measured in two releases of their package{packages}, these are not
the same in both:"""


def text_of(entries, shown):
    """`shown(entry)`: its formula as a cell."""
    ran = [e for e in entries if e["ran"]]
    parts = [_INTRO]
    gathers = (r"ulysses|sequence|lightly|open_clip|fvcore|sentence|axolotl|ring_attention"
               r"|nn\.functional|full_tensor|comm_ops|polar_region")
    cuts = r"ulysses|region|Region|redistribute|split"
    for head, kind, modules in ((_GATHERS, "all_gather", gathers), (_CUTS, "slice", cuts)):
        rows = [e for e in ran if e["collective"] == kind and re.search(modules, e["function"])]
        parts.append(head + "\n\n" + _table(
            ["function", "version", "measured", "right for"],
            sorted([named(e), f"{e['package']} {e['version']}", shown(e),
                    ", ".join(e["right_for"])] for e in rows)))
    parts.append(_SPMD + "\n\n" + _table(["call", "declared", "measured", "in agreement"],
                                         [_declared(e, shown) for e in ran
                                          if e["package"] == "spmd-types"]))
    pairs = _in_two_releases(ran)
    changed = [pair for pair in pairs if _says(pair[0]) != _says(pair[1])]
    if changed:
        packages = sorted({pair[0]["package"] for pair in pairs})
        parts.append(_VERSIONS.format(both=len(pairs), packages=f" ({', '.join(packages)})")
                     + "\n\n" + _table(["function", "version", "measured", "right for", "fails in"],
                                       [_released(e, shown) for pair in changed for e in pair]))
    return "\n\n".join(parts) + "\n"


def named(entry):
    """The function, and as what it was called."""
    how = entry["adapter"] or entry["call"]
    return f"`{entry['function']}`" + (f" as `{_one_line(how)}`" if how else "")


def _declared(entry, shown):
    source, target = re.search(r"src=(\w).*dst=(\w)", entry["call"]).groups()
    declared = f"{source}→{target}".replace("S", "V")
    measured = entry["signature"].replace("->", "→")
    told = "yes" if measured == declared else entry["explanation"] or "no"
    return [named(entry), declared, f"{shown(entry)} {measured}", _one_line(told)]


def _in_two_releases(ran):
    """[(older, newer)] of the functions of which two releases are here."""
    releases = {}
    for entry in ran:
        what = tuple(str(entry[name]) for name in
                     ("package", "function", "collective", "options", "adapter", "call"))
        releases.setdefault(what, []).append(entry)
    return [tuple(sorted(entries, key=_age)) for _, entries in sorted(releases.items())
            if len(entries) == 2]


def _age(entry):
    return [int(part) for part in re.findall(r"\d+", entry["version"])]


def _says(entry):
    return [entry[name] for name in ("right_for", "rule", "formula", "fails_in", "not_taken")]


def _released(entry, shown):
    return [named(entry), f"{entry['package']} {entry['version']}", shown(entry),
            ", ".join(entry["right_for"]) or "none: " + entry["rule"],
            ", ".join(entry["fails_in"])]


def _one_line(text):
    return " ".join(text.split()).replace("|", "\\|")


def _table(headings, rows):
    lines = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
