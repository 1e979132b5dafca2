// The way of values (read down) and cotangents (read up) through the program. The rail beside each
// is of the colour of error from where it parts from the truth on. The pointer, or the arrow keys,
// choose the cell that the line below tells of.

const CHARACTER = 7.6, TITLE_ROOM = 230;  // pixels, about

function trackText(track, r) {
  const truth = Array.isArray(track.truth) ? track.truth[r] : track.truth;
  const observed = track.observed ? track.observed[r] : null;
  return { truth, observed, furthest: observed !== null && track.furthest ? track.furthest[r] : "" };
}

function tracksOf(row) { return [row.values, row.cotangents]; }

// Whether the cells of all rows have room for what they hold; else they have signs alone.
function hasRoom(trace) {
  const ranks = trace.ranks.length, widest = [2, 2].map((least) => Array(ranks).fill(least + 4));
  for (const row of trace.rows)
    tracksOf(row).forEach((track, t) => {
      for (let r = 0; track && r < ranks; ++r) {
        const { truth, observed } = trackText(track, r);
        widest[t][r] = Math.max(widest[t][r], truth.length + (observed === null ? 1 : 6));
      }
    });
  return widest.flat().reduce((sum, width) => sum + width, 0) * CHARACTER + TITLE_ROOM <= byId("main").clientWidth;
}

function wayCell(track, r, roomy) {
  const { truth, observed } = trackText(track, r);
  if (observed === null) return el("td", { class: "same", text: roomy ? truth : "=" });
  if (!roomy) return el("td", { class: "off", text: "\u2260" });
  return el("td", { class: "off" }, el("b", { text: observed }), el("span", { class: "of-truth" }, el("i", { text: "true " }), truth));
}

function wayTrack(track, ranks, roomy) {
  const rail = (state) => el("td", { class: "rail " + state, "aria-hidden": "true" });
  if (!track) return [rail("none"), el("td", { class: "unknown", colspan: ranks })];
  if (roomy && !track.observed && !Array.isArray(track.truth))
    return [rail("right"), el("td", { class: "same all", colspan: ranks, text: track.truth })];
  const cells = [];
  for (let r = 0; r < ranks; ++r) cells.push(wayCell(track, r, roomy));
  return [rail(track.observed ? "wrong" : "right"), ...cells];
}

function partsHere(row) { return Boolean(row.mark) && /part here/.test(shared(row.mark)); }

function traceRow(row, ranks, roomy) {
  const parts = partsHere(row);
  return el("tr", { class: row.kind + (parts ? " parts" : "") },
    el("th", { scope: "row" }, el("code", { text: row.title }), row.mark && !parts ? el("span", { class: "mark", text: shared(row.mark) }) : null),
    wayTrack(row.values, ranks, roomy), wayTrack(row.cotangents, ranks, roomy));
}

// The line across the table where the two part. Values go wrong below it, cotangents above it.
function wayMark(row, columns) {
  const mark = shared(row.mark), isForward = /forward/.test(mark);
  const line = el("tr", { class: "parting" },
    el("td", { colspan: columns }, el("span", { text: (isForward ? "\u2193 " : "\u2191 ") + mark })));
  return { line, below: !isForward && row.cotangents && Boolean(row.cotangents.observed) };
}

function traceHead(trace, roomy) {
  const ranks = trace.ranks.length;
  const names = () => trace.ranks.map((r) => el("th", { scope: "col", text: (roomy ? "rank " : "") + r }));
  const title = (words, arrow) => el("th", { colspan: ranks + 1, scope: "colgroup", class: "track" }, words, el("span", { text: arrow }));
  return el("thead", null,
    el("tr", null, el("th", { rowspan: 2, scope: "col", class: "step", text: roomy ? "" : "by rank" }),
      title("values ", "forward \u2193"), title("cotangents ", "backward \u2191")),
    el("tr", null, el("td"), names(), el("td"), names()));
}

// What a cell is, in words.
function traceWords(trace, row, t, r) {
  const track = tracksOf(row)[t], rank = "rank " + trace.ranks[r];
  const what = t === 0 ? "value" : row.kind === "input" ? "gradient" : "cotangent";
  const head = row.title.split(/ [= ]|:/)[0] + ", " + what + ", " + rank + ": ";
  if (!track) return head + "not known";
  const { truth, observed, furthest } = trackText(track, r);
  if (observed === null) return head + truth;
  return head + "ranks' " + observed + ", true " + truth + (furthest ? "; furthest apart: " + furthest : "");
}

// The first that is off beside the place where they part, else the first that is off.
function firstToRead(trace) {
  const marked = trace.rows.findIndex(partsHere);
  const order = trace.rows.map((_, i) => i).sort((a, b) => Math.abs(a - marked) - Math.abs(b - marked));
  for (const i of order)
    for (const t of [0, 1]) {
      const track = tracksOf(trace.rows[i])[t];
      const r = track && track.observed ? track.observed.findIndex((o) => o !== null) : -1;
      if (r >= 0) return [i, t, r];
    }
  return [0, 0, 0];
}

// Lets the pointer and the keys choose a cell, and tells of it in `words`.
function readTrace(trace, table, rows, words) {
  const ranks = trace.ranks.length;
  let at = firstToRead(trace);
  const cellOf = ([i, t, r]) => {
    const cells = [...rows[i].querySelectorAll("td")], rails = cells.map((cell, n) => cell.classList.contains("rail") ? n : -1).filter((n) => n >= 0);
    return cells[Math.min(rails[t] + 1 + r, (t === 0 ? rails[1] : cells.length) - 1)];
  };
  const choose = (place) => {
    cellOf(at).classList.remove("chosen");
    at = place;
    cellOf(at).classList.add("chosen");
    words.textContent = traceWords(trace, trace.rows[at[0]], at[1], at[2]);
  };
  table.addEventListener("pointerover", (event) => {
    const cell = event.target.closest("tbody td");
    const i = cell ? rows.indexOf(cell.parentNode) : -1;
    if (i < 0 || cell.classList.contains("rail")) return;
    const rails = [...cell.parentNode.querySelectorAll("td.rail")];
    const t = cell.cellIndex > rails[1].cellIndex ? 1 : 0;
    choose([i, t, cell.cellIndex - rails[t].cellIndex - 1]);
  });
  table.addEventListener("keydown", (event) => {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    const i = Math.min(Math.max(at[0] + by[0], 0), trace.rows.length - 1);
    const column = Math.min(Math.max(at[1] * ranks + at[2] + by[1], 0), 2 * ranks - 1);
    choose([i, column < ranks ? 0 : 1, column % ranks]);
  });
  choose(at);
}

function traceTable(trace) {
  const ranks = trace.ranks.length, roomy = hasRoom(trace);
  const rows = trace.rows.map((row) => traceRow(row, ranks, roomy)), lines = [];
  trace.rows.forEach((row, i) => {
    const mark = partsHere(row) ? wayMark(row, 3 + 2 * ranks) : null;
    if (mark && !mark.below) lines.push(mark.line);
    lines.push(rows[i]);
    if (mark && mark.below) lines.push(mark.line);
  });
  const words = el("p", { class: "reading", role: "status" });
  const table = el("table", { class: "trace-table" + (roomy ? "" : " signs"), tabindex: 0,
    "aria-label": "Values and cotangents by step and rank; the arrow keys go through them" }, traceHead(trace, roomy), el("tbody", null, lines));
  readTrace(trace, table, rows, words);
  return [el("div", { class: "wide" }, table), words];
}

function traceOf(trace) {
  const ranks = trace.ranks.length;
  const legend = "Values are read from the top down, cotangents from the bottom up. Coloured: what the ranks have is not the truth" +
    (trace.how_known ? ". The ranks' cotangents: " + trace.how_known + "." : ".");
  const cut = ranks < trace.world_size ? ranks + " of " + trace.world_size + " ranks are shown, those that differ first." : "";
  return el("section", { class: "trace", "aria-label": "The way through the program" },
    el("h3", { text: "Where observed and true values part" }),
    el("p", { class: "verdict-text", text: shared(trace.parting) }),
    trace.measured ? el("p", { class: "verdict-text" }, el("b", { text: "Measured: " }), shared(trace.measured)) : null,
    trace.rows.length ? traceTable(trace) : null,
    el("p", { class: "legend", text: legend }), cut ? el("p", { class: "legend", text: cut }) : null,
    trace.remarks.map((remark) => el("p", { class: "legend", text: shared(remark) })));
}

