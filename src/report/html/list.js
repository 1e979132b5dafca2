// The list of cases, its filters and its order. Only the rows in sight exist.

const ROW = 48;  // pixels, as .row of the style has it
const FACETS = [
  { key: "status", title: "Status", of: (c) => c.status_word },
  { key: "finding", title: "Finding", of: (c) => c.finding < 0 ? null : index.findings[c.finding] },
  { key: "subject", title: "Subject", of: (c) => index.subjects[c.subject] },
  { key: "verdict", title: "Verdict", of: (c) => index.verdicts[c.verdict] },
  { key: "file", title: "File", of: (c) => c.scenario.file },
];
const SHOWN_CHIPS = 8;

const state = {
  chosen: Object.fromEntries(FACETS.map((f) => [f.key, new Set()])),
  query: "", sort: "worst",
  shown: [],      // numbers of cases, in order
  selected: -1,   // place in shown
  open: -1,       // number of the case that is shown, or -1: the summary
  unfolded: new Set(),
};

function orderOf(sort) {
  if (sort === "run") return cases.map((c) => c.number);
  if (sort === "slow") return cases.map((c) => c.number).sort((a, b) => cases[b].elapsed - cases[a].elapsed || a - b);
  return index.order;
}

function passes(c, terms, except) {
  for (const facet of FACETS) {
    const chosen = state.chosen[facet.key];
    if (facet.key !== except && chosen.size && !chosen.has(facet.of(c))) return false;
  }
  return terms.every((term) => c.sought.includes(term));
}

function terms() { return state.query.toLowerCase().split(/\s+/).filter(Boolean); }

function isFiltered() { return state.query.trim() !== "" || FACETS.some((f) => state.chosen[f.key].size); }

// How many cases each value of a facet would leave, the other filters being as they are.
function countsOf(facet, wanted) {
  const counts = new Map();
  for (const c of cases) {
    const value = facet.of(c);
    if (value !== null && !counts.has(value)) counts.set(value, 0);
    if (value !== null && passes(c, wanted, facet.key)) counts.set(value, counts.get(value) + 1);
  }
  const order = facet.key === "status" ? index.statuses : null;
  return [...counts].sort((a, b) => order ? order.indexOf(a[0]) - order.indexOf(b[0]) : b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
}

function chip(facet, value, count) {
  const pressed = state.chosen[facet.key].has(value);
  return el("button", { type: "button", class: "chip" + (facet.key === "status" ? " " + value : ""), "aria-pressed": String(pressed), title: value,
    onclick: () => { toggle(facet.key, value); } }, el("span", { text: value || "(none)" }), el("small", { text: count }));
}

function toggle(key, value) {
  const chosen = state.chosen[key];
  if (chosen.has(value)) chosen.delete(value); else chosen.add(value);
  applyFilters();
}

function facetPart(facet, wanted) {
  const counts = countsOf(facet, wanted);
  if (counts.length < 2 && !state.chosen[facet.key].size) return null;
  const all = state.unfolded.has(facet.key);
  const shown = counts.filter(([value, count], i) => all || i < SHOWN_CHIPS || state.chosen[facet.key].has(value));
  const chips = shown.map(([value, count]) => chip(facet, value, count));
  if (counts.length > SHOWN_CHIPS)
    chips.push(el("button", { type: "button", class: "more", text: all ? "fewer" : "+ " + (counts.length - shown.length) + " more",
      onclick: () => { if (all) state.unfolded.delete(facet.key); else state.unfolded.add(facet.key); drawFilters(); } }));
  const isMinor = facet.key === "file" || facet.key === "verdict";
  if (!isMinor) return el("div", { class: "facet", role: "group", "aria-label": facet.title }, el("span", { class: "facet-title", text: facet.title }), el("div", { class: "chips" }, chips));
  const open = state.chosen[facet.key].size > 0 || state.unfolded.has(facet.key) || state.unfolded.has(facet.key + "/open");
  const box = el("details", { class: "facet minor", open },
    el("summary", null, el("span", { class: "facet-title", text: facet.title }), el("small", { text: counted(counts.length, facet.key === "file" ? "file" : "verdict") })), el("div", { class: "chips" }, chips));
  box.addEventListener("toggle", () => { state.unfolded[box.open ? "add" : "delete"](facet.key + "/open"); });
  return box;
}

function drawFilters() {
  const wanted = terms();
  byId("filters").replaceChildren(...FACETS.map((facet) => facetPart(facet, wanted)).filter(Boolean));
}

function rowOf(place) {
  const c = cases[state.shown[place]];
  const file = c.scenario.file || "";
  const [folder, name] = file.split("/").slice(-2).length === 2 ? file.split("/").slice(-2) : ["", file];
  return el("div", { class: "row" + (place === state.selected ? " selected" : "") + (c.number === state.open ? " open" : ""),
    id: "row-" + place, role: "option", "aria-selected": String(place === state.selected), "aria-setsize": state.shown.length,
    "aria-posinset": place + 1, style: "top:" + place * ROW + "px", title: c.id + "\n" + c.headline },
    el("span", { class: "pill " + c.status_word, text: c.status_word }),
    el("span", { class: "names" }, el("span", { class: "name" }, el("i", { text: folder ? folder + "/" : "" }), el("b", { text: name.replace(/\.json$/, "") }), c.place.replace(/^:/, " \u00b7 ").replace("subject=", "").replace(/,/g, ", ")),
      el("span", { class: "what", text: c.headline })));
}

// `style` attributes are set by the script alone: nothing of a scenario goes into them.
function drawRows() {
  const list = byId("list"), rows = byId("rows");
  rows.style.height = state.shown.length * ROW + "px";
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 6);
  const last = Math.min(state.shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 6);
  const drawn = [];
  for (let place = first; place < last; ++place) drawn.push(rowOf(place));
  rows.replaceChildren(...drawn);
  if (state.selected >= first && state.selected < last) list.setAttribute("aria-activedescendant", "row-" + state.selected);
  else list.removeAttribute("aria-activedescendant");
}

function bringIntoSight(place) {
  const list = byId("list"), top = place * ROW;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
}

function select(place, opens) {
  if (!state.shown.length) return;
  state.selected = Math.min(Math.max(place, 0), state.shown.length - 1);
  bringIntoSight(state.selected);
  if (opens) openCase(state.shown[state.selected]);
  drawRows();
}

function applyFilters() {
  const wanted = terms();
  state.shown = orderOf(state.sort).filter((number) => passes(cases[number], wanted, null));
  state.selected = state.shown.indexOf(state.open);
  byId("shown").textContent = state.shown.length === cases.length ? counted(cases.length, "case")
    : state.shown.length + " of " + counted(cases.length, "case");
  byId("clear").hidden = !isFiltered();
  drawFilters();
  byId("list").scrollTop = 0;
  if (state.selected >= 0) bringIntoSight(state.selected);
  drawRows();
}

function clearFilters() {
  for (const facet of FACETS) state.chosen[facet.key].clear();
  state.query = "";
  byId("search").value = "";
  applyFilters();
}

