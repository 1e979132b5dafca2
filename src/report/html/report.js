// The page: what is shown, the address, the keys, the theme.

function show(view) {
  document.body.dataset.view = view;
  byId("summary").hidden = view !== "summary";
  byId("case").hidden = view !== "case";
}

function showSummary() {
  state.open = -1;
  show("summary");
  document.title = startTitle;
  if (location.hash.startsWith("#case=")) setAddress("#summary");
  drawRows();
}

function openCase(number) {
  if (state.open === number) return;
  const c = cases[number];
  state.open = number;
  const article = byId("case");
  article.replaceChildren(...caseParts(c));
  article.setAttribute("aria-label", c.id);
  show("case");
  document.title = c.status_word + " " + c.id;
  setAddress("#case=" + encodeURIComponent(c.id));
  window.scrollTo(0, 0);
}

// Replaced and not pushed: a walk through the list is no history.
function setAddress(hash) {
  try { history.replaceState(null, "", hash); } catch (error) { /* some browsers refuse for plain files */ }
}

// #case=ID opens a case; #status=FAIL&finding=tie&q=text filters.
function followAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1).replace(/\+/g, "%2B"));
  const id = parameters.get("case");
  if (id !== null) {
    const found = cases.find((c) => c.id === id);
    if (found) {
      if (!state.shown.includes(found.number)) clearFilters();
      select(state.shown.indexOf(found.number), true);
      return;
    }
  }
  const filters = FACETS.filter((f) => parameters.has(f.key));
  if (!filters.length && !parameters.has("q")) { showSummary(); return; }
  for (const facet of FACETS) state.chosen[facet.key] = new Set(parameters.getAll(facet.key));
  state.query = parameters.get("q") || "";
  byId("search").value = state.query;
  applyFilters();
  bringListIntoView();
}

// On a phone the list is below the summary, where nobody would see that it changed.
function bringListIntoView() {
  if (matchMedia("(max-width: 800px)").matches) document.querySelector(".browse").scrollIntoView();
}

function enterCase() {
  if (state.selected < 0) select(0, true);
  else select(state.selected, true);
  byId("case").focus({ preventScroll: true });
}

const KEYS = {
  "/": () => { byId("search").focus(); byId("search").select(); },
  j: () => select(state.selected + 1, true),
  k: () => select(state.selected < 0 ? 0 : state.selected - 1, true),
  s: () => { showSummary(); window.scrollTo(0, 0); },
  c: () => { if (state.open >= 0) byId("case").querySelector(".copy").click(); },
  "?": () => toggleKeys(),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.target, typing = target.matches("input, select, textarea");
  if (event.key === "Escape") {
    if (target === byId("search") || target === byId("list")) { if (isFiltered()) clearFilters(); target.blur(); }
    else byId("list").focus();
    return;
  }
  if (typing && event.key === "Enter" && target === byId("search")) { select(0, true); byId("list").focus(); return; }
  if (typing) return;
  if (target === byId("list") && onListKey(event)) return;
  if (event.key === "Enter" && target === document.body) { enterCase(); return; }
  if (KEYS[event.key]) { event.preventDefault(); KEYS[event.key](); }
}

function onListKey(event) {
  const page = Math.max(1, Math.floor(byId("list").clientHeight / ROW) - 1);
  const to = { ArrowDown: state.selected + 1, ArrowUp: Math.max(0, state.selected - 1), PageDown: state.selected + page,
    PageUp: Math.max(0, state.selected - page), Home: 0, End: state.shown.length - 1 }[event.key];
  if (to === undefined && event.key !== "Enter") return false;
  event.preventDefault();
  if (event.key === "Enter") enterCase(); else select(to, true);
  return true;
}

function toggleKeys() {
  const keys = byId("keys");
  keys.hidden = !keys.hidden;
  byId("keys-button").setAttribute("aria-expanded", String(!keys.hidden));
}

// Storage may be refused where the page is a plain file.
function stored(value) {
  try {
    if (value !== undefined) localStorage.setItem("distgrad-theme", value);
    return localStorage.getItem("distgrad-theme");
  } catch (error) { return null; }
}

function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setTheme(theme) {
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  byId("theme-button").textContent = isDark() ? "Light" : "Dark";
}

// Paper has the whole list, as long as somebody may read it.
function listForPaper() {
  const most = 2000, old = byId("paper");
  if (old) old.remove();
  const lines = state.shown.slice(0, most).map((n) => el("li", null, el("b", { text: cases[n].status_word + " " }), el("code", { text: cases[n].id }), ": " + cases[n].headline));
  if (state.shown.length > most) lines.push(el("li", { text: "... and " + (state.shown.length - most) + " more" }));
  byId("summary").append(el("section", { id: "paper" }, el("h3", { text: "Cases" }), el("ul", null, lines)));
}

function chooseRow(event) {
  const row = event.target.closest(".row");
  if (row) select(Number(row.id.slice("row-".length)), true);
}

const startTitle = document.title;

function start() {
  document.querySelector(".browse").hidden = cases.length === 0;
  document.querySelector(".tools").hidden = false;
  setTheme(stored());
  byId("theme-button").addEventListener("click", () => { setTheme(isDark() ? "light" : "dark"); stored(document.documentElement.dataset.theme); });
  byId("keys-button").addEventListener("click", toggleKeys);
  byId("search").addEventListener("input", (event) => { state.query = event.target.value; applyFilters(); });
  byId("sort").addEventListener("change", (event) => { state.sort = event.target.value; applyFilters(); });
  byId("clear").addEventListener("click", clearFilters);
  byId("list").addEventListener("scroll", drawRows, { passive: true });
  byId("list").addEventListener("click", chooseRow);
  window.addEventListener("resize", drawRows);
  window.addEventListener("hashchange", followAddress);
  window.addEventListener("beforeprint", listForPaper);
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');  // the same address again is no hashchange
    if (link && link.getAttribute("href") === location.hash) followAddress();
  });
  applyFilters();
  show("summary");
  document.documentElement.dataset.listed = String(Math.round(performance.now()));
}

start();
// A case that the address names lies in a piece further down.
document.addEventListener("DOMContentLoaded", () => {
  if (location.hash) followAddress();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
});
