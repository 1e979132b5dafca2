// What a wrong backward was measured to do: its formula beside the right one, and both as matrices, a
// row for each element of the operands and a column for each element of the cotangents, in blocks by rank.

const MATRIX_TEXT_COLUMNS = 12;  // of more the cells have a colour alone

function starts(sizes) {
  const all = new Set();
  let at = 0;
  for (const size of sizes) {
    all.add(at);
    at += size;
  }
  return all;
}

function matrixTable(title, matrices, which, largest) {
  const columns = matrices.columns.reduce((a, b) => a + b, 0);
  const rowSeams = starts(matrices.rows), columnSeams = starts(matrices.columns);
  const showsText = columns <= MATRIX_TEXT_COLUMNS;
  const cell = (i, j) => {
    const value = toNumber(matrices[which][i * columns + j]);
    const right = toNumber(matrices.right[i * columns + j]);
    const scale = largest || 1;
    const isOff = which === "measured" && !(Math.abs(value - right) <= 1e-6 * scale);
    const td = el("td", { class: (isOff ? "off" : value ? "there" : "none") +
      (columnSeams.has(j) && j ? " seam" : "") + (rowSeams.has(i) && i ? " row-seam" : ""),
      title: short(value) + (isOff ? ", right is " + short(right) : "") });
    td.style.setProperty("--strength", String(Math.min(1, 0.25 + 0.75 * Math.abs(value) / scale)));
    if (showsText && value !== 0) td.textContent = short(value);
    return td;
  };
  const head = el("tr", null, el("th"), matrices.columns.map((size, k) =>
    size ? el("th", { scope: "colgroup", colspan: size, text: "ȳ" + matrices.ranks[k] }) : null));
  const body = [];
  let i = 0;
  matrices.rows.forEach((size, r) => {
    for (let e = 0; e < size; ++e, ++i) {
      const cells = [];
      for (let j = 0; j < columns; ++j) cells.push(cell(i, j));
      body.push(el("tr", null, e === 0 ? el("th", { scope: "rowgroup", rowspan: size, text: "x̄" + matrices.ranks[r] }) : null, cells));
    }
  });
  return el("figure", { class: "matrix" }, el("figcaption", { text: title }),
    el("div", { class: "scroll" }, el("table", { class: showsText ? "large" : "" }, el("thead", null, head), el("tbody", null, body))));
}

function measuredPart(measured) {
  if (!measured) return null;
  const line = (word, text) => el("tr", null, el("th", { scope: "row", text: word }), el("td", { text: shared(text) }));
  const parts = [el("table", { class: "formulas" }, el("tbody", null, line("measured", measured.formula), line("right", measured.right)))];
  const m = measured.matrices;
  if (m) {
    const sizes = m.measured.concat(m.right).map(toNumber).filter(Number.isFinite).map(Math.abs);
    const largest = sizes.reduce((a, b) => Math.max(a, b), 0);
    parts.push(el("div", { class: "matrices" }, matrixTable("measured", m, "measured", largest), matrixTable("right", m, "right", largest)));
  }
  parts.push(el("p", { class: "legend", text: "Shown by " + measured.shown_by + "." + (m ? " What is not as it should be is marked." : "") }));
  return el("div", { class: "measured" }, parts);
}
