// One case in full.

function copyButton(text) {
  const button = el("button", { type: "button", class: "copy", text: "Copy" });
  const done = (ok) => {
    button.textContent = ok ? "Copied" : "Select and copy";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  button.addEventListener("click", () => copyText(text).then(() => done(true), () => done(false)));
  return button;
}

// The clipboard, or the way that old browsers and plain files need.
function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
  const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done ? Promise.resolve() : Promise.reject(new Error("no clipboard"));
}

function commandOf(c) { return index.again_names_case ? index.again + " " + shellQuoted(c.id) : index.again; }

function commandLine(label, command) {
  return el("div", { class: "command" }, el("span", { text: label }), el("code", { text: command }), copyButton(command));
}

function placeOf(finding) {
  return (finding.step ? " in step " + finding.step : "") +
    (finding.collective ? (finding.step ? " (" + finding.collective + ")" : " in " + finding.collective) : "");
}

function findingPart(finding, isFirst) {
  const help = index.helps[finding.rule];
  const facts = [finding.ranks ? finding.ranks : "", finding.factor !== null ? "observed is " + finding.factor + " \u00d7 the truth" : ""];
  return el("div", { class: isFirst ? "finding first" : "finding" },
    el("h4", null, el("a", { href: "#finding=" + encodeURIComponent(finding.rule), text: finding.rule }), placeOf(finding),
      el("small", { text: facts.filter(Boolean).join("; ") })),
    el("p", null, prose(shared(finding.text))), measuredPart(finding.measured),
    isFirst && help ? el("details", null, el("summary", { text: "What usually causes it, and what to change" }), el("p", null, prose(help[1]))) : null);
}

// The first, and what else explains the data or goes with it.
function findingsOf(details) {
  const [first, ...others] = details.findings || [];
  if (!first) return [null, null];
  const also = others.length ? el("section", { class: "findings", "aria-label": "Further findings" }, el("details", null,
    el("summary", null, el("b", { text: "Also: " }), others.map((f) => f.rule + placeOf(f)).join("; ")), others.map((f) => findingPart(f, false)))) : null;
  return [el("section", { class: "findings", "aria-label": "Finding" }, findingPart(first, true)), also];
}

function errorOf(details) {
  const e = details.error;
  if (!e) return null;
  const where = (e.rank >= 0 ? " on rank " + e.rank : "") + (e.step ? " in step " + e.step : "");
  return el("section", { class: "error", "aria-label": "The error" }, el("h3", { text: e.kind + where }),
    e.cut ? el("p", { class: "legend", text: "The last part of it:" }) : null, el("pre", { text: shared(e.message) }));
}

function debateTable(table) {
  const isNarrow = table.columns.length <= 4;
  const rows = table.rows.map(([label, cells, note]) => {
    const words = shared(note);
    const kind = label === "observed" ? "observed" : /= observed/.test(words) ? "equal" : "";
    const row = el("tr", { class: kind + (/^declared/.test(words) ? " declared" : "") },
      el("th", { scope: "row", text: label }), cells.map((cell) => el("td", { text: cell })), isNarrow ? el("td", { class: "prose", text: words }) : null);
    // Else it would stand where nobody looks.
    return isNarrow || !words ? [row] : [row, el("tr", { class: "below " + kind }, el("td"), el("td", { class: "prose", colspan: cells.length, text: words }))];
  }).flat();
  return [el("div", { class: "wide" }, el("table", { class: "debate" },
    el("thead", null, el("tr", null, el("th", { scope: "col", text: table.title }), table.columns.map((name) => el("th", { scope: "col", text: name })), isNarrow ? el("td") : null)),
    el("tbody", null, rows))), table.remark ? el("p", { class: "legend", text: shared(table.remark) }) : null];
}

function errorWords(input) {
  const bound = toNumber(input.bound) === 0 ? "exact: compared bit by bit" : "bound there " + input.bound;
  return "largest error " + input.max_abs_error + " (relative " + input.max_rel_error + "), " + bound;
}

function inputsOf(details) {
  const inputs = details.inputs || [];
  if (!inputs.length) return null;
  return el("section", { class: "gradients", "aria-label": "Gradients" },
    el("h3", { text: index.simulated ? "The gradients" : "Observed beside the truth of every objective" }),
    inputs.map((input) => el("div", { class: input.equal ? "input equal" : "input" }, debateTable(input.table),
      index.simulated ? null : el("p", { class: "legend", text: errorWords(input) }), input.map ? heatMap(input.map, input.name) : null,
      !input.equal && !input.map ? el("p", { class: "legend", text: "No heat map: with all of them the file would be too large." }) : null)));
}

function lossesOf(details) {
  if (!details.simulated) return null;
  const line = (name, values) => el("tr", null, el("th", { scope: "row", text: name }), el("td", { text: values.join(", ") }));
  return el("table", { class: "facts" }, el("tbody", null, line("losses by rank", details.simulated),
    details.distributed ? line("in the distributed run", details.distributed) : null));
}

function listOf(title, lines) {
  return lines && lines.length ? el("div", null, el("h4", { text: title }), el("ul", null, lines.map((line) => el("li", null, prose(shared(line)))))) : null;
}

function restOf(c, details) {
  const warnings = (details.warnings || []).map(([ranks, text]) => el("li", null, el("b", { text: ranks + ": " }), shared(text)));
  const output = (details.output || []).map((o) => el("div", null,
    el("h4", { text: "Output of rank " + o.rank + (o.cut ? ", the end of it" : "") }), el("pre", { text: shared(o.text) })));
  const rest = el("section", { class: "rest", "aria-label": "More about it" }, el("h3", { text: "More about it" }), lossesOf(details),
    warnings.length ? el("div", null, el("h4", { text: "Warnings" }), el("ul", null, warnings)) : null, output,
    listOf("Not checked", details.notes), listOf("Composed, as the backend lacks them", details.composed),
    listOf("Bounds", details.bounds), listOf("Left out here", details.left_out));
  return rest.children.length > 1 ? rest : null;
}

function factsOf(c, details) {
  const fact = (name, value) => value ? el("div", null, el("dt", { text: name }), el("dd", { text: value })) : null;
  const expectedWord = details ? shared(details.expected) : "";
  return el("dl", { class: "facts" }, fact("expected", expectedWord), fact("seen", c.headline.replace(/^(\w+), as expected/, "$1")),
    fact("subject", index.subjects[c.subject]), details && fact("ranks", details.world_size), details && fact("dtype", details.dtype),
    details && c.scenario.loss && fact("objective", details.objective), details && fact("over", details.backend), fact("took", seconds(c.elapsed)));
}

function isWrong(c) { return c.status < 2; }

// Why no trace is drawn.
function noTrace(c, details) {
  if (!details || details.trace || index.simulated || !index.again_names_case || !(isWrong(c) || c.verdict === 1)) return null;
  return el("section", { class: "trace" }, el("h3", { text: "Where observed and true values part" }),
    el("p", { text: "It was not worked out for this case. This shows it:" }), commandLine("", index.explain + " " + shellQuoted(c.id)));
}

function caseParts(c) {
  const details = detailsOf(c);
  const back = el("button", { type: "button", class: "back", text: "\u2190 Cases", onclick: () => { showSummary(); bringListIntoView(); } });
  const head = el("header", null, back,
    el("p", { class: "file", text: c.scenario.file || "" }),
    el("h2", null, el("span", { class: "pill " + c.status_word, text: c.status_word }), " ", c.scenario.name || c.id,
      el("span", { class: "place", text: c.place })),
    c.scenario.note ? el("p", { class: "note", text: c.scenario.note }) : null, factsOf(c, details), commandLine("Again:", commandOf(c)));
  if (!details)
    return [head, programOf(c, null), el("p", { class: "legend", text: "There was no room for the details of this case in the file: the command above shows them." })].filter(Boolean);
  const [finding, also] = findingsOf(details);
  const tellsWhy = details.why && (c.verdict >= 3 || (isWrong(c) && shared(details.expected) !== "match"));
  return [head, tellsWhy ? el("p", { class: "why" }, prose(shared(details.why))) : null, errorOf(details), finding,
    details.trace ? traceOf(details.trace) : noTrace(c, details), also, inputsOf(details), programOf(c, details), restOf(c, details)].filter(Boolean);
}

