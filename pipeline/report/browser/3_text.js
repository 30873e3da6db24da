/* Text that a model wrote, made inert: it reaches the document through textContent alone. */

const PREVIEW_CHARACTERS = 400;
const PREVIEW_LINES = 12;
const MAX_MARKS = 200;
const SIGNS = new RegExp(data.signs, "gu");

/** An element; strings among `children` become text, and null is left out. */
function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** `text` with control, invisible and direction-turning characters shown by their numbers. */
function inert(text) {
  const pieces = document.createDocumentFragment();
  let start = 0;
  for (const match of text.matchAll(SIGNS)) {
    const sign = [...match[0]][0];
    const times = match[0].length / sign.length;
    const number = sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    const label = `U+${number}${times > 1 ? ` ×${times}` : ""}`;
    pieces.append(text.slice(start, match.index));
    pieces.append(element("span", { className: "sign", title: data.sign_names[sign] ?? "", textContent: label }));
    start = match.index + match[0].length;
  }
  pieces.append(text.slice(start));
  return pieces;
}

/** `text` made inert, with what the search finds marked. */
function marked(text) {
  if (state.pattern === null) return inert(text);
  const pieces = document.createDocumentFragment();
  const everywhere = new RegExp(state.pattern.source, `${state.pattern.flags}g`);
  let [start, nMarks] = [0, 0];
  for (const match of text.matchAll(everywhere)) {
    if (match[0] === "") continue;
    if (++nMarks > MAX_MARKS) break;
    pieces.append(inert(text.slice(start, match.index)), element("mark", {}, inert(match[0])));
    start = match.index + match[0].length;
  }
  pieces.append(inert(text.slice(start)));
  return pieces;
}

/** Whether the search finds something in `text`, and nothing of it in its `beginning`. */
function isFoundBeyond(beginning, text) {
  return state.pattern !== null && !state.pattern.test(beginning) && state.pattern.test(text);
}

function preformatted(content, suffix = null) {
  return element("pre", { dir: "auto" }, content, suffix);
}

/** A text that `show` makes inert, folded up where it is long; what the page doesn't hold of it is counted. */
function passage(text, nCharacters, command, show = inert) {
  if (text === "") return element("p", { className: "soft" }, "the text is empty");
  const missing = nCharacters - [...text].length;
  const said = ` ${count(missing)} of ${count(nCharacters)} characters are not on this page: ${command}`;
  const cut = missing > 0 ? note(said) : null;
  const lines = text.split("\n");
  if (text.length <= PREVIEW_CHARACTERS && lines.length <= PREVIEW_LINES) return preformatted(show(text), cut);
  const beginning = lines.slice(0, PREVIEW_LINES).join("\n").slice(0, PREVIEW_CHARACTERS).toWellFormed();
  const summary = element("summary", {}, preformatted(show(beginning), note(` … ${count(nCharacters)} characters`)));
  const details = element("details", { className: "long" }, summary);
  details.addEventListener("toggle", () => details.append(preformatted(show(text), cut)), { once: true });
  details.open = show === marked && isFoundBeyond(beginning, text);
  return details;
}

function note(text) {
  return element("span", { className: "cut", textContent: text });
}

function heading(messages) {
  const line = (messages.at(-1)?.text ?? "").split(/\s+/).join(" ").trim();
  return inert(line.length <= 160 ? line : `${line.slice(0, 80).toWellFormed()} … ${line.slice(-80).toWellFormed()}`);
}

const count = (value) => value.toLocaleString("en-US");

function decimal(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return count(value);
  return Number(value.toPrecision(4)).toLocaleString("en-US", { maximumFractionDigits: 12 });
}

function signed(value) {
  if (value === null || value === undefined) return "–";
  const rounded = value.toFixed(3);
  return Number(rounded) === 0 ? "0" : value > 0 ? `+${rounded}` : rounded;
}

