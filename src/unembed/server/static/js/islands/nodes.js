/** Elements of the page and of every drawing, built without HTML: text is always inserted as text. */

/**
 * An element. `selector`: its tag and classes, as in "p.faint"; `props`: `class`, `text`, `on<event>`, `style` (an
 * object), `data` (an object), properties and attributes; children are nodes, texts and arrays of them.
 * @param {string} selector @param {...any} rest the properties, if any, and the children
 * @returns {any}
 */
export const h = (selector, ...rest) => made((tag) => document.createElement(tag), selector, rest);

/** The same for SVG. @param {string} selector @param {...any} rest @returns {any} */
export const s = (selector, ...rest) =>
  made((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag), selector, rest);

function made(create, selector, rest) {
  const [tag, ...classes] = selector.split(".");
  const el = create(tag);
  if (classes.length) el.setAttribute("class", classes.join(" "));
  const props = rest[0]?.constructor === Object ? rest.shift() : {};
  for (const [name, value] of Object.entries(props)) set(el, name, value);
  return append(el, rest);
}

function set(el, name, value) {
  if ((value ?? false) === false) return;
  if (name === "text") el.textContent = value;
  else if (name === "style") for (const [k, v] of Object.entries(value)) el.style.setProperty(k, v);
  else if (name === "data") Object.assign(el.dataset, value);
  else if (name.startsWith("on")) el.addEventListener(name.slice(2), value);
  else if (name === "value" || name === "checked" || name === "disabled" || name === "selected") el[name] = value;
  else el.setAttribute(name, value === true ? "" : value);
}

export function append(el, children) {
  el.append(...children.flat(Infinity).filter((child) => (child ?? false) !== false));
  return el;
}

/** A button with a text or nodes in it. */
export const button = (content, onclick, cls = "", props = {}) =>
  h("button", { type: "button", class: cls, onclick, ...props }, content);

/** A text in a drawing. */
export const svgText = (x, y, content, anchor = "start", cls = "") =>
  s("text", { x, y, "text-anchor": anchor, class: cls }, content);

/** Replace the children of an element; the focus, if one of them has it, moves to what takes its place. */
export function fill(el, ...children) {
  const focused = document.activeElement;
  const had = focused !== el && el.contains(focused);
  el.replaceChildren();
  append(el, children);
  if (had && document.activeElement === document.body) refocus(el, focused);
  return el;
}

/** Focus the control that has the name of the old one, else the card or section around it: the page's body has no place. */
function refocus(el, old) {
  const name = (x) => x.getAttribute("aria-label") ?? x.textContent;
  const alike = [...el.querySelectorAll(old.tagName)].find((x) => name(x) === name(old) && !x.disabled);
  const place = el.contains(old) ? old : (alike ?? el.closest(".card, section, main"));
  if (place && !place.matches("a, button, input, select, textarea, summary, [tabindex]")) place.tabIndex = -1;
  place?.focus({ preventScroll: true });
}

/** Stop an event here: the browser does nothing, and no other element hears it. */
export function consume(event) {
  event.preventDefault();
  event.stopPropagation();
}

/** Whether two rectangles overlap. */
export const overlap = (a, b) => a.left < b.right && a.right > b.left && a.top < b.bottom && a.bottom > b.top;
