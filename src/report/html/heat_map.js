// The error of a gradient, rank by element. The pointer, or the arrow keys, choose the cell that the
// line below tells of.

const HEAT_STEPS = 6;

// From an error to a step of the colour scale: 0 is within the bound, 1 to 6 above it, 7 no number.
// Steps are equal parts of the range, or of its logarithm where it spans more than 100.
function heatScale(map) {
  let least = Infinity, largest = 0;
  for (const row of map.rows)
    (row.error || []).forEach((v, i) => {
      const e = toNumber(v);
      if (!row.off[i] || !Number.isFinite(e)) return;
      least = Math.min(least, e);
      largest = Math.max(largest, e);
    });
  const logarithmic = largest > 100 * least;
  const step = (error, off) => {
    if (!off) return 0;
    if (!Number.isFinite(error)) return HEAT_STEPS + 1;
    const part = largest === 0 ? 1
      : logarithmic ? Math.log(error / least) / Math.log(largest / least) : error / largest;
    return Math.min(HEAT_STEPS, 1 + Math.floor(part * HEAT_STEPS));
  };
  const from = (i) => logarithmic ? least * Math.pow(largest / least, i / HEAT_STEPS) : largest * i / HEAT_STEPS;
  return { step, from, largest, logarithmic };
}

function short(v) {
  const n = toNumber(v);
  if (typeof n !== "number" || !Number.isFinite(n)) return String(v);
  return String(Number(n.toPrecision(n === 0 || Math.abs(n) >= 0.001 ? 3 : 2)));
}

function heatLegend(map, scale) {
  const swatch = (step, text) => el("span", { class: "swatch" }, el("i", { class: "h" + step }), text);
  const parts = [swatch(0, "equal, or within its bound")];
  if (scale.largest > 0)
    for (let i = 0; i < HEAT_STEPS; ++i) {
      const to = short(scale.from(i + 1));
      parts.push(swatch(i + 1, i === 0 && !scale.logarithmic ? "to " + to : i === HEAT_STEPS - 1 ? "to " + to : ""));
    }
  const strange = map.rows.some((row) => (row.error || []).some((v, i) => row.off[i] && !Number.isFinite(toNumber(v))));
  if (strange) parts.push(swatch(HEAT_STEPS + 1, "not a number on one side"));
  const unit = scale.largest > 0 && scale.logarithmic ? ", in logarithmic steps from " + short(scale.from(0)) : "";
  return el("p", { class: "legend" }, el("span", { text: "|observed \u2212 true|" + unit }), parts);
}

// What a cell is, in words.
function heatWords(map, r, i) {
  const row = map.rows[r];
  if (row.lacking) return row.label + ": " + row.lacking;
  const element = row.element ? row.element[i] : i;
  let where = row.label + " " + indexText(row.shape, element);
  if (row.block > 1) where += " (the worst of " + row.block + ")";
  const bound = row.bound ? row.bound[i] : 0;
  const within = bound === null ? "within its bound" : bound === 0 ? "must be equal, bit by bit" : "bound " + bound;
  return where.trim() + ": observed " + row.observed[i] + ", true " + row.truth[i] + ", difference " + row.error[i] + "; " + within;
}

// A line of the picture: a rank's elements `from` to `from` + `count`. A tensor of several dimensions keeps its shape, a line for each
// of its rows, unless it is too large, or cut to blocks.
function heatLines(map) {
  const MOST_LINES = 256, MOST_COLUMNS = 64;
  const inShape = (row) => row.error && row.error.length > 0 && row.shape.length > 1 && !row.block && !row.element;
  const last = (row) => row.shape[row.shape.length - 1];
  const shaped = map.rows.filter(inShape);
  const keeps = shaped.length > 0 && shaped.every((row) => last(row) <= MOST_COLUMNS) &&
    shaped.reduce((sum, row) => sum + row.error.length / last(row), 0) <= MOST_LINES;
  return map.rows.flatMap((row, r) => {
    if (!keeps || !inShape(row)) return [{ r, from: 0, count: row.error ? row.error.length : 0, label: row.label, place: "" }];
    const width = last(row);
    return Array.from({ length: row.error.length / width }, (_, k) => ({
      r, from: k * width, count: width, label: k === 0 ? row.label : "", place: indexText(row.shape.slice(0, -1), k).replace(/\]$/, ", :]"), begins: k === 0 && r > 0,
    }));
  });
}

function worstHeatCell(map) {
  let worst = [0, 0], largest = -1;
  map.rows.forEach((row, r) => (row.error || []).forEach((v, i) => {
    const e = toNumber(v);
    const size = !row.off[i] ? -0.5 : Number.isNaN(e) ? Infinity : e;
    if (size > largest) [worst, largest] = [[r, i], size];
  }));
  return worst;
}

// Column headings, where each has room for one.
function heatHeads(map, lines, columns) {
  const line = lines.find((l) => l.count === columns);
  if (columns > 16 || !line || columns === 0) return null;
  const row = map.rows[line.r];
  const name = (i) => line.place ? "[\u2026, " + i + "]" : indexText(row.shape, row.element ? row.element[i] : i) || "value";
  const heads = Array.from({ length: columns }, (_, i) => el("th", { scope: "col", text: name(i) }));
  return el("thead", null, el("tr", null, el("td"), heads));
}

function heatLine(map, line, scale, columns) {
  const row = map.rows[line.r];
  const label = el("th", { scope: "row" }, line.label, line.place ? el("span", { class: "place", text: " " + line.place }) : null);
  if (row.lacking)
    return el("tr", null, label,
      el("td", { class: "h" + (HEAT_STEPS + 1) + " lacking", colspan: columns }, el("span", { text: row.lacking })));
  const last = row.shape.length > 1 && !line.place ? row.shape[row.shape.length - 1] : 0;
  const tells = columns <= 8;
  const cells = row.error.slice(line.from, line.from + line.count).map((error, k) => {
    const i = line.from + k, step = scale.step(toNumber(error), row.off[i]);
    const seam = last > 0 && !row.block && i > 0 && i % last === 0;
    return el("td", { class: "h" + step + (seam ? " seam" : ""), text: tells ? (step === 0 ? "\u00b7" : short(error)) : null });
  });
  return el("tr", line.begins ? { class: "begins" } : null, label, cells);
}

function heatMap(map, name) {
  if (!map.rows.length) return null;
  const scale = heatScale(map), lines = heatLines(map);
  const columns = Math.max(1, ...lines.map((line) => line.count));
  const words = el("p", { class: "reading", role: "status" });
  const table = el("table", { class: "heat " + (columns <= 8 ? "large" : columns <= 64 ? "middle" : "small"), role: "img", tabindex: 0,
    "aria-label": "Error of " + name + " by rank and element; the arrow keys go through it" },
    heatHeads(map, lines, columns), el("tbody", null, lines.map((line) => heatLine(map, line, scale, columns))));
  const [r, i] = worstHeatCell(map);
  let l = Math.max(0, lines.findIndex((line) => line.r === r && i >= line.from && i < line.from + line.count));
  let c = Math.max(0, i - lines[l].from);
  const cellAt = (line, column) => table.tBodies[0].rows[line].cells[1 + column];
  const choose = (line, column) => {
    const old = cellAt(l, c);
    if (old) old.classList.remove("chosen");
    l = Math.min(Math.max(line, 0), lines.length - 1);
    c = Math.min(Math.max(column, 0), Math.max(lines[l].count - 1, 0));
    if (cellAt(l, c)) cellAt(l, c).classList.add("chosen");
    const row = map.rows[lines[l].r];
    words.textContent = row.error && !row.error.length ? row.label + ": no elements" : heatWords(map, lines[l].r, lines[l].from + c);
  };
  table.addEventListener("pointerover", (event) => {
    const cell = event.target.closest("tbody td");
    if (cell) choose(cell.parentNode.rowIndex - (table.tHead ? 1 : 0), cell.cellIndex - 1);
  });
  table.addEventListener("keydown", (event) => {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    choose(l + by[0], c + by[1]);
  });
  choose(l, c);
  const cut = map.all_rows > map.rows.length ? " " + map.rows.length + " of " + map.all_rows + " ranks, those furthest off." : "";
  const block = map.rows.some((row) => row.block) ? " A cell stands for several elements and has the worst." : "";
  const differing = map.differing ? " The part of " + map.differing + " differs." : "";
  return el("figure", { class: "map" },
    el("figcaption", { text: "Error of " + name + ", rank \u00d7 element." + block + cut + differing }),
    el("div", { class: "wide" }, table), words, heatLegend(map, scale));
}
