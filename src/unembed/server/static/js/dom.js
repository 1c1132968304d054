/** Building blocks of screens: boxes, controls, dialogs; and what the drawings in `islands` use too. */
import { consume, h, s } from "./islands/nodes.js";
import { within } from "./islands/numbers.js";

export * from "./islands/nodes.js";
export * from "./islands/numbers.js";
export * from "./islands/table.js";

/** The last words of a text, about n characters at most. */
export const ending = (text, n) => (text.length > n ? `… ${text.slice(2 - n).replace(/^\S*\s(?=\S)/, "")}` : text);

/** Make an empty element for each selector. */
export const boxes = (...selectors) => selectors.map((one) => h(one));

/** Make an empty element for each name. @param {Record<string, string>} selectors @returns {Record<string, any>} */
export const namedBoxes = (selectors) =>
  Object.fromEntries(Object.entries(selectors).map(([name, one]) => [name, h(one)]));

/** An empty line whose later texts a screen reader reads aloud. */
export const statusLine = (selector) => h(selector, { role: "status" });

/** A titled part of a card. */
export const part = (title, ...body) => h("div", h("h3", title), body);

/** A folded part of a card; `draw(body)` fills it when it is first opened. */
export function folded(summary, draw) {
  const body = h("div");
  const ontoggle = () => !body.firstChild && draw(body);
  return h("details", { ontoggle }, summary.tagName ? summary : h("summary", summary), body);
}

/** Draw an island in an element of its own. */
export function drawn(mount, data, options) {
  const el = h("div");
  mount(el, data, options);
  return el;
}

/** An icon of the file icons.svg. */
export const icon = (name) =>
  s("svg.icon", { "aria-hidden": "true" }, s("use", { href: new URL(`../icons.svg#${name}`, import.meta.url) }));

export const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** Make a function that calls `run` once it has not been called for so many milliseconds. */
export function debounced(run, pause) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(run, pause, ...args);
  };
}

export const afterPaint = (work) => requestAnimationFrame(() => setTimeout(work));

/** A box for a text; `onenter()` is called when Enter is pressed in it. */
export const textBox = (label, /** @type {any} */ { onenter, ...props } = {}) =>
  h("input", { type: "text", "aria-label": label, onkeydown: onenter && entering(onenter), ...props });
export const entering = (run) => (e) => e.key === "Enter" && run();

/** A box for a prompt: Enter calls `onenter`, Shift and Enter begin a new line. */
export const promptBox = (label, onenter, props = {}) =>
  h("textarea", {
    rows: 1,
    "aria-label": label,
    spellcheck: "false",
    onkeydown: (e) => e.key === "Enter" && !e.shiftKey && (e.preventDefault(), onenter()),
    ...props,
  });

/** A box for a number, a slider, a box to tick with its text. */
export const numberBox = (label, value, props = {}) =>
  h("input", { type: "number", min: 0, value: String(value), "aria-label": label, ...props });
export const rangeBox = (label, props) => h("input", { type: "range", "aria-label": label, ...props });
export const tick = (label, checked, ontick, props = {}) =>
  h("input", { type: "checkbox", checked, "aria-label": label, onchange: (e) => ontick(e.target.checked), ...props });
export const tickBox = (text, checked, ontick) => h("label.check", tick(null, checked, ontick), text);

/** Options as [value, text] each; they may be given as an object. */
const pairs = (options) => (Array.isArray(options) ? options : Object.entries(options));

/** A list to choose from. */
export const selectBox = (label, options, chosen, onchoose, props = {}) =>
  h("select", { "aria-label": label, onchange: (e) => onchoose?.(e.target.value), ...props }, [
    pairs(options).map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
  ]);

/** A control with a label before it. */
export const worded = (text, ...control) => h("label.row.faint", text, control);

/** A row of buttons of which one is chosen; options as in `selectBox`, with titles; its method `show` marks a choice. */
export function segmented(label, options, chosen, onchoose) {
  const choose = (value) => (draw(value), onchoose(value));
  const group = h("div.segmented", { role: "radiogroup", "aria-label": label, onkeydown: move }, [
    pairs(options).map(([value, text, title]) =>
      h("button", { type: "button", role: "radio", data: { value }, title, onclick: () => choose(value) }, text),
    ),
  ]);
  const all = /** @type {HTMLElement[]} */ ([...group.children]);
  function draw(value) {
    for (const el of all) {
      const on = el.dataset.value === value;
      el.setAttribute("aria-checked", String(on));
      el.tabIndex = on ? 0 : -1;
    }
  }
  function move(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    consume(event);
    const next = all[(all.findIndex((el) => el.tabIndex === 0) + step + all.length) % all.length];
    choose(next.dataset.value);
    next.focus();
  }
  draw(chosen);
  return Object.assign(group, { show: draw });
}

/** Let the controls of a group share one Tab stop: arrow keys move between them, the horizontal ones by `step` controls. */
export function roving(group, step = () => 1) {
  const all = () => /** @type {HTMLElement[]} */ ([...group.querySelectorAll("button, a")]);
  const stop = (on) => {
    for (const one of all()) one.tabIndex = one === on ? 0 : -1;
  };
  if (all().length) stop(group.querySelector("[aria-current], [aria-pressed=true]") ?? all()[0]);
  group.onkeydown = (event) => {
    const list = all();
    const at = list.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const by = { ArrowRight: step(), ArrowLeft: -step(), ArrowDown: 1, ArrowUp: -1 }[event.key];
    const to = { Home: 0, End: list.length - 1 }[event.key] ?? (by && at + by);
    if (at < 0 || to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    consume(event);
    const next = list[within(to, list.length)];
    stop(next);
    next.focus();
  };
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
  const live = byId("live");
  live.textContent = text;
  clearTimeout(saying);
  saying = setTimeout(() => (live.textContent = ""), 6000);
}
let saying = 0;
