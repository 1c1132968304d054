/**
 * Token text made visible, by the same rules as `unembed.results.token_text`: spaces and everything invisible are
 * marked, and different texts never look the same.
 */
import { button, fill, h } from "./nodes.js";

const NAMED = { " ": "·", "\n": "↵", "\t": "⇥", "\x7f": "␡" };
const CONTROLS = Array.from({ length: 32 }, (_, i) => String.fromCharCode(0x2400 + i));
const MARKS = new Set([..."·↵⇥␡⟨⟩◌", ...CONTROLS]);
const HIDDEN = new RegExp(
  String.raw`[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{Zs}\u034F\u115F\u1160\u17B4\u17B5\u180B\u180C\u180D` +
    String.raw`\u180F\u2800\u3164\uFFA0\uFE00-\uFE0F\u{E0100}-\u{E01EF}]`,
  "u",
);
const COMBINING = /[\p{Mn}\p{Me}]/u;

/**
 * The parts of a text: [what to show, whether it is a mark and not the text's own].
 * @param {string} text
 * @returns {[string, boolean][]}
 */
export function pieces(text) {
  const found = [];
  let previous = "";
  for (const char of text) {
    const code = Number(char.codePointAt(0));
    if (NAMED[char]) found.push([NAMED[char], true]);
    else if (code < 32) found.push([CONTROLS[code], true]);
    else if (code >= 0xdc80 && code <= 0xdcff) found.push([`⟨0x${hex(code - 0xdc00, 2)}⟩`, true]);
    else if (MARKS.has(char) || HIDDEN.test(char)) found.push([`⟨U+${hex(code, 4)}⟩`, true]);
    else if (COMBINING.test(char) && (!previous || MARKS.has(previous) || HIDDEN.test(previous)))
      found.push(["◌", true], [char, false]);
    else found.push([char, false]);
    previous = char;
  }
  return found;
}

const hex = (n, width) => n.toString(16).toUpperCase().padStart(width, "0");

/** The text as one string. @param {string} text */
export function visible(text) {
  const shown = pieces(text).map(([piece]) => piece);
  return shown.join("");
}

/** Elements to clone: a grid repeats the same few tokens in hundreds of cells. */
const made = new Map();

/** The text as an element; marks next to letters are dimmed. @param {string} text @param {string} [cls] */
export function token(text, cls = "") {
  const key = `${cls}\n${text}`;
  if (!made.has(key)) {
    if (made.size > 4000) made.clear();
    made.set(key, first(text, cls));
  }
  return made.get(key).cloneNode(true);
}

function first(text, cls) {
  const el = document.createElement("bdi");
  el.className = cls ? `tok ${cls}` : "tok";
  const parts = pieces(text);
  const letters = parts.some(([, mark]) => !mark);
  let run;
  let dim;
  for (const [piece, mark] of parts) {
    const faint = mark && letters;
    if (faint !== dim) {
      el.append((run = faint ? document.createElement("span") : new Text()));
      run.className = "mark"; // a text node has no such property
      dim = faint;
    }
    run.textContent += piece;
  }
  if (!parts.length) el.textContent = "∅";
  el.title = `${JSON.stringify(text)} · bytes ${[...new TextEncoder().encode(text)].map((b) => hex(b, 2)).join(" ")}`;
  el.dataset.raw = text;
  return el;
}

/**
 * A row of tokens to click. `mount(el, {tokens, selected, classes, titles}, {onpick(i), onhover(i or nothing)}) ->
 * {shade(classes)}`
 */
export function mount(el, /** @type {any} */ { tokens, selected, classes, titles }, options = {}) {
  const chips = tokens.map((text, i) => {
    const title = titles?.[i];
    return options.onpick
      ? button(token(text), () => options.onpick(i), "", { title })
      : h("span", { title }, token(text));
  });
  const shade = (shades) =>
    chips.forEach((chip, i) => {
      chip.className = `chip-token${i === selected ? " on" : ""} ${shades?.[i] || ""}`;
    });
  if (options.onhover) {
    const at = (event) => chips.findIndex((chip) => chip.contains(event.target));
    el.onpointerover = (event) => event.target !== el && options.onhover(at(event));
    el.onpointerleave = () => options.onhover();
  }
  shade(classes);
  fill(el, [chips.map((chip, i) => (tokens[i].includes("\n") ? [chip, h("br")] : chip))]);
  return { shade };
}
