/** What screens are made of: elements, numbers as people read them, icons, buttons. */
import { append, fill, h, s } from "./islands/nodes.js";

export { append, fill, h, s };

/** A probability as people read it. */
export function percent(p) {
  if (p >= 0.9995) return "100 %";
  if (p >= 0.1) return `${Math.round(p * 100)} %`;
  if (p >= 0.001) return `${(p * 100).toFixed(1)} %`;
  return p > 0 ? "<0.1 %" : "0 %";
}

/** A number with its sign, three significant digits. */
export function signed(x) {
  const text = num(Math.abs(x));
  return x < 0 ? `−${text}` : `+${text}`;
}

/** A number, three significant digits. */
export function num(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  const a = Math.abs(x);
  if (a === 0) return "0";
  const text = a >= 1000 ? Math.round(a).toLocaleString("en") : a >= 100 ? a.toFixed(0) : a >= 10 ? a.toFixed(1) : a >= 0.01 ? a.toFixed(a >= 1 ? 2 : 3) : a.toExponential(1);
  return x < 0 ? `−${text}` : text;
}

/** A rank from 0 as a place from 1. */
export const place = (rank) => (rank + 1).toLocaleString("en");

/** One icon of the small set, drawn. */
export function icon(name) {
  const paths = {
    trace: "M4 19h4v-4H4zM10 19h4v-4h-4zM16 19h4v-4h-4zM4 12h4V8H4zM10 12h4V8h-4zM16 12h4V8h-4zM16 5h4V3h-4z",
    layer: "M12 3 3 8l9 5 9-5zM3 12l9 5 9-5M3 16l9 5 9-5",
    memory: "M5 6h14v12H5zM5 12h14M9 6v12",
    intervene: "M5 4v9M5 17v3M12 4v3M12 11v9M19 4v11M19 19v1M3 15h4M10 9h4M17 17h4",
    heads: "M4 18C4 8 20 8 20 18M4 18C4 13 12 13 12 18M4 19h.01M12 19h.01M20 19h.01",
    search: "M10.500 4a6.500 6.500 0 1 0 0 13 6.500 6.500 0 0 0 0-13zM15.500 15.500 21 21",
    label: "M4 4h8l8 8-8 8-8-8zM8 8h.01",
    labs: "M9 3h6M10 3v6L5 19a1 1 0 0 0 1 2h12a1 1 0 0 0 1-2l-5-10V3M7.500 15h9",
    theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
    help: "M9 9a3 3 0 1 1 4 3c-.7.3-1 .9-1 2M12 18h.01M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
    share: "M9 12h9M14 7l5 5-5 5M5 5v14",
    close: "M6 6l12 12M18 6 6 18",
  };
  return s("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, s("path", { d: paths[name] || "" }));
}

/** A button with a text. */
export function button(text, onclick, props = {}) {
  return h("button", { type: "button", onclick, ...props }, text);
}

/** One choice among few, as a row of radio-like buttons. */
export function segmented(label, options, chosen, onchoose) {
  const group = h("div", { class: "segmented", role: "radiogroup", "aria-label": label });
  const draw = (value) => {
    for (const el of group.children) {
      const on = el.dataset.value === value;
      el.setAttribute("aria-checked", String(on));
      el.tabIndex = on ? 0 : -1;
    }
  };
  for (const [value, text, title] of options) {
    group.append(h("button", { type: "button", role: "radio", data: { value }, title, onclick: () => choose(value) }, text));
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
    const at = options.findIndex(([value]) => group.querySelector(`[data-value="${value}"]`).getAttribute("aria-checked") === "true");
    const next = options[(at + step + options.length) % options.length][0];
    choose(next);
    group.querySelector(`[data-value="${next}"]`).focus();
  });
  draw(chosen);
  return group;
}

/** A dialog over the page, open until it is closed. */
export function modal(props, ...body) {
  const dialog = h("dialog", { ...props, onclose: () => dialog.remove() }, h("div", { class: "stack" }, body));
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Say something in passing, to eyes and to a screen reader. */
export function say(text) {
  const live = document.getElementById("live");
  live.textContent = text;
  clearTimeout(saying);
  saying = setTimeout(() => (live.textContent = ""), 6000);
}
let saying = 0;
