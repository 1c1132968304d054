/** Building blocks of screens: elements, formatted numbers, icons, buttons. */
import { append, fill, h, s } from "./islands/nodes.js";

export { append, fill, h, s };

/** A probability in percent, with one decimal, so that the numbers of a column align. */
export const percent = (p) => (p > 0 && p < 0.001 ? "<0.1 %" : `${(100 * p).toFixed(1)} %`);

/** A number with its sign, three significant digits. */
export function signed(x) {
  const text = num(Math.abs(x));
  return x < 0 ? `−${text}` : `+${text}`;
}

/** A number, three significant digits. */
export function num(x) {
  if (Number.isNaN(x ?? NaN)) return "–";
  const a = Math.abs(x);
  if (a === 0) return "0";
  const text =
    a >= 1000
      ? Math.round(a).toLocaleString("en")
      : a >= 100
        ? a.toFixed(0)
        : a >= 10
          ? a.toFixed(1)
          : a >= 0.01
            ? a.toFixed(a >= 1 ? 2 : 3)
            : a.toExponential(1);
  return x < 0 ? `−${text}` : text;
}

/** Decimals that give the largest of some numbers three significant digits: the same for a whole column. */
export function places(values) {
  const most = Math.max(...values.map(Math.abs).filter(Number.isFinite), 0);
  return most ? Math.max(0, Math.min(6, 2 - Math.floor(Math.log10(most)))) : 2;
}

/** A number with so many decimals; `plus`: with its sign, also where it is positive. */
export function fixed(x, digits, plus = false) {
  if (Number.isNaN(x ?? NaN)) return "–";
  const text = Math.abs(x).toFixed(digits);
  return x < 0 && Number(text) ? `−${text}` : plus && Number(text) ? `+${text}` : text;
}

/** So many of something: "1 memory", "1,024 memories". */
export const many = (n, one, more = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : more}`;

/** The last words of a text, at most about so many characters of them. */
export const ending = (text, n) => (text.length > n ? `… ${text.slice(2 - n).replace(/^\S*\s(?=\S)/, "")}` : text);

/** A rank with its thousands separated. */
export const shownRank = (rank) => grouped.format(rank);
const grouped = new Intl.NumberFormat("en"); // toLocaleString looks up the language in every call: 25 µs

/** An index clamped to 0 … n - 1. */
export const within = (i, n) => Math.max(0, Math.min(n - 1, i || 0));

/** One icon of the small set, which is a file of its own. */
export const icon = (name) =>
  s("svg.icon", { "aria-hidden": "true" }, s("use", { href: new URL(`../icons.svg#${name}`, import.meta.url) }));

/** A button with a text. */
export function button(text, onclick, props = {}) {
  return h("button", { type: "button", onclick, ...props }, text);
}

/** Run something after the next frame. */
export const afterPaint = (work) => requestAnimationFrame(() => setTimeout(work));

/** A box for a text, a box for a number, a box to tick with its text. */
export const textBox = (label, props = {}) => h("input", { type: "text", "aria-label": label, ...props });
export const numberBox = (label, value, props = {}) =>
  h("input", { type: "number", min: 0, value: String(value), "aria-label": label, ...props });
export const tickBox = (text, checked, ontick) =>
  h("label.check", h("input", { type: "checkbox", checked, onchange: (e) => ontick(e.target.checked) }), text);

/** A list to choose from: [value, text] each. */
export const selectBox = (label, options, chosen, props = {}) =>
  h("select", { "aria-label": label, ...props }, [
    options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
  ]);

/** A control with its label. */
export const worded = (text, ...control) => h("label.row.faint", text, control);

/** One choice among few, as a row of radio-like buttons. */
export function segmented(label, options, chosen, onchoose) {
  const group = h("div.segmented", { role: "radiogroup", "aria-label": label });
  const draw = (value) => {
    for (const el of group.children) {
      const on = el.dataset.value === value;
      el.setAttribute("aria-checked", String(on));
      el.tabIndex = on ? 0 : -1;
    }
  };
  for (const [value, text, title] of options) {
    group.append(
      h("button", { type: "button", role: "radio", data: { value }, title, onclick: () => choose(value) }, text),
    );
  }
  const choose = (value) => {
    draw(value);
    onchoose(value);
  };
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const at = options.findIndex(
      ([value]) => group.querySelector(`[data-value="${value}"]`).getAttribute("aria-checked") === "true",
    );
    const next = options[(at + step + options.length) % options.length][0];
    choose(next);
    group.querySelector(`[data-value="${next}"]`).focus();
  });
  draw(chosen);
  return group;
}

/** A dialog over the page, open until it is closed. */
export function modal(props, ...body) {
  const dialog = h("dialog", { ...props, onclose: () => dialog.remove() }, h("div.stack", body));
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Show a short message, which a screen reader reads aloud. */
export function announce(text) {
  const live = document.getElementById("live");
  live.textContent = text;
  clearTimeout(saying);
  saying = setTimeout(() => (live.textContent = ""), 6000);
}
let saying = 0;
