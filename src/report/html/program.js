// The program of a scenario, as the file has it: what is held, what is done, what is meant.

function programLine(name, text, how, extra) {
  return el("tr", { class: extra || "" },
    el("th", { scope: "row" }, name ? el("code", { text: name }) : ""),
    el("td", null, el("code", { text })),
    el("td", { class: "how", text: how || "" }));
}

function programPart(title, lines) {
  if (!lines.length) return [];
  const head = el("tr", { class: "part" }, el("th", { colspan: 3, scope: "colgroup", text: title }));
  return [head, ...lines];
}

function programOf(c, details) {
  const s = c.scenario;
  if (!s.loss) return null;  // saved gradients, and what another report says
  const asLine = ([name, text, how, isCollective]) => programLine(name, text, how, isCollective ? "collective" : "");
  const meant = details ? [programLine("objective", details.objective, "as declared")] : [];
  const single = s.single.map(([name, text]) => programLine(name || "loss", text, ""));
  const body = el("tbody", null,
    ...programPart("groups", s.groups.map(asLine)),
    ...programPart("inputs", s.inputs.map(asLine)),
    ...programPart("steps, on every rank", s.steps.map(asLine)),
    ...programPart("loss, of each rank", [programLine("l_r", s.loss, ""), ...meant]),
    ...programPart("the same on one device", single));
  return el("section", { class: "program", "aria-label": "The program" },
    el("h3", { text: "The program" }),
    el("div", { class: "wide" }, el("table", { class: "lines" }, body)));
}

