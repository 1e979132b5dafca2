// The way of values (read down) and cotangents (read up) through the program. The rail beside each
// is of the colour of error from where it parts from the truth on.

function wayCell(track, r) {
  const truth = Array.isArray(track.truth) ? track.truth[r] : track.truth;
  const observed = track.observed ? track.observed[r] : null;
  if (observed === null) return el("td", { class: "same", title: truth, text: truth });
  const far = track.furthest ? track.furthest[r] : "";
  return el("td", { class: "off", title: "ranks' " + observed + "; true " + truth + (far ? "; furthest apart: " + far : "") },
    el("b", { text: observed }), el("span", { class: "of-truth" }, el("i", { text: "true " }), truth),
    far ? el("span", { class: "of-truth", text: far }) : null);
}

function wayTrack(track, ranks, label) {
  const rail = (state) => el("td", { class: "rail " + state, "aria-hidden": "true" });
  if (!track) return [rail("none"), el("td", { class: "unknown", colspan: ranks, text: label })];
  if (!track.observed && !Array.isArray(track.truth))
    return [rail("right"), el("td", { class: "same all", colspan: ranks, title: track.truth, text: track.truth })];
  const cells = [];
  for (let r = 0; r < ranks; ++r) cells.push(wayCell(track, r));
  return [rail(track.observed ? "wrong" : "right"), ...cells];
}

function wayRow(row, ranks) {
  const parts = row.mark && /part here/.test(shared(row.mark));
  return el("tr", { class: row.kind + (parts ? " parts" : "") },
    el("th", { scope: "row" }, el("code", { text: row.title }),
      row.mark && !parts ? el("span", { class: "mark", text: shared(row.mark) }) : null),
    wayTrack(row.values, ranks, ""), wayTrack(row.cotangents, ranks, ""));
}

// The line across the table where the two part. Values go wrong below it, cotangents above it.
function wayMark(row, columns) {
  const mark = shared(row.mark);
  if (!/part here/.test(mark)) return null;
  const ownIsWrong = row.cotangents && row.cotangents.observed && !/forward/.test(mark);
  const arrow = /forward/.test(mark) ? "\u2193" : "\u2191";
  const line = el("tr", { class: "parting" }, el("td", { colspan: columns }, el("span", { text: arrow + " " + mark })));
  return { line, below: ownIsWrong };
}

function wayHead(way, ranks) {
  const names = () => way.ranks.map((r) => el("th", { scope: "col", text: "rank " + r }));
  return el("thead", null,
    el("tr", null, el("th", { rowspan: 2, scope: "col", class: "step", text: "inputs, steps, loss" }),
      el("th", { colspan: ranks + 1, scope: "colgroup", class: "forward", text: "values: forward, downwards \u2193" }),
      el("th", { colspan: ranks + 1, scope: "colgroup", class: "backward", text: "cotangents: backward, upwards \u2191" })),
    el("tr", null, el("td"), names(), el("td"), names()));
}

function wayOf(way) {
  const ranks = way.ranks.length, columns = 3 + 2 * ranks;
  const rows = [];
  for (const row of way.rows) {
    const mark = row.mark ? wayMark(row, columns) : null;
    if (mark && !mark.below) rows.push(mark.line);
    rows.push(wayRow(row, ranks));
    if (mark && mark.below) rows.push(mark.line);
  }
  const legend = "A cell in the colour of error has the ranks' value above the true one" +
    (way.replayed ? "; the ranks' cotangents are not measured, but worked out by a replay with the rule named here, which leads to the very gradients that the ranks hold." : ".");
  const cut = ranks < way.world_size ? ranks + " of " + way.world_size + " ranks are shown, those that differ first." : "";
  return el("section", { class: "way", "aria-label": "The way through the program" },
    el("h3", { text: "Where observed and true values part" }),
    el("p", { class: "verdict-text", text: shared(way.parting) }),
    way.rule ? el("p", null, el("b", { text: "The rule that explains it: " }), shared(way.rule)) : null,
    el("div", { class: "wide" }, el("table", { class: "way-table" }, wayHead(way, ranks), el("tbody", null, rows))),
    el("p", { class: "legend", text: legend }), cut ? el("p", { class: "legend", text: cut }) : null,
    way.remarks.map((remark) => el("p", { class: "legend", text: shared(remark) })));
}

