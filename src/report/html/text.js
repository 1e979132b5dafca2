// The script of distgrad's HTML report, in parts that are put together when distgrad is built.
// Whatever a scenario or a rank says becomes a text node or an attribute, never markup.
"use strict";

// An element. Of the attributes `class`, `text` and handlers ("on...") are special; children are
// nodes, texts, or nothing (null, false, "").
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat())
    if (child !== null && child !== undefined && child !== false && child !== "") node.append(child);
  return node;
}

function byId(id) { return document.getElementById(id); }

// Prose as nodes: what stands between backticks is code.
function prose(text) {
  const parts = String(text || "").split("`");
  if (parts.length % 2 === 0) return [String(text)];
  return parts.map((part, i) => i % 2 ? el("code", { text: part }) : part);
}

// As a POSIX shell takes it.
function shellQuoted(word) { return "'" + word.replace(/'/g, "'\\''") + "'"; }

function counted(count, noun) { return count + " " + noun + (count === 1 ? "" : "s"); }

function seconds(s) { return s < 1 ? Number((1000 * s).toPrecision(2)) + " ms" : s.toFixed(1) + " s"; }

// Numbers that are none are words in the data.
function toNumber(v) { return v === "nan" ? NaN : v === "inf" ? Infinity : v === "-inf" ? -Infinity : v; }

// "[1, 3]" for the row-major element of a tensor; "" for a scalar's only one.
function indexText(shape, element) {
  const index = [];
  for (let d = shape.length - 1; d >= 0; --d) {
    index.unshift(element % shape[d]);
    element = Math.floor(element / shape[d]);
  }
  return index.length ? "[" + index.join(", ") + "]" : "";
}

const index = JSON.parse(byId("index").textContent);

// A case of the index as a record.
function caseOf(row, number) {
  const [file, place, status, verdict, finding, subject, headline, error, elapsed, piece, at] = row;
  const scenario = index.files[file];
  const id = (scenario.file || "") + place;
  return {
    number, id, file, place, status, verdict, finding, subject, error, elapsed, piece, at, scenario,
    headline: index.headlines[headline],
    status_word: index.statuses[status],
    sought: (id + " " + index.statuses[status] + " " + index.headlines[headline]).toLowerCase(),
  };
}
const cases = index.cases.map(caseOf);

// Details lie in pieces, each read when one of its cases is opened.
const pieces = new Map();
let sharedTexts = null;
function detailsOf(c) {
  if (c.piece < 0) return null;
  if (!pieces.has(c.piece)) {
    const script = byId("details-" + c.piece);
    if (!script) return null;
    pieces.set(c.piece, JSON.parse(script.textContent));
  }
  return pieces.get(c.piece)[c.at];
}

// A text, or the number of one that cases share.
function shared(text) {
  if (typeof text !== "number") return text;
  if (!sharedTexts) sharedTexts = JSON.parse(byId("texts").textContent);
  return sharedTexts[text];
}

