/** Copy or save what the page shows: as a link, a program, a command, data, or a picture. */

import * as api from "./api.js";
import { asCommand, asPython, editCall } from "./code.js";
import { announce, button, consume, h } from "./dom.js";
import { comparedPrompts, prompt } from "./parts.js";
import { asPage, asPng } from "./saving/files.js";
import { activeEdits, link, state } from "./state.js";

/** The server stores addresses longer than this, and the link is a short name for one. */
const LONG = 2000;

const address = (page) =>
  link({ model: state().model || page.mark(), index: state().index || page.model.index_mark || "" });

export async function copyLink(page) {
  const whole = address(page);
  const long = whole.length > LONG;
  try {
    const short = long ? `#/${state().screen}?session=${(await api.send("/sessions", { address: whole })).id}` : whole;
    await navigator.clipboard.writeText(new URL(short, location.href).href);
    announce(long ? "Link copied. It works while this server runs; download the session to keep it." : "Link copied");
  } catch (error) {
    api.fail(error);
  }
}

const SESSION = "unembed.session/1";

function saveSession(page) {
  const session = { schema: SESSION, model: page.mark(), address: address(page) };
  save("session.json", JSON.stringify(session, null, 1), JSON_TYPE);
}

function openSession() {
  const read = async () => {
    const [file] = input.files;
    const found = await file
      .text()
      .then(JSON.parse)
      .catch(() => ({}));
    const isSession = found.schema === SESSION && /^#\/[\x21-\x7e]*$/.test(found.address);
    const message = `${file.name} is not a session`;
    if (isSession) location.hash = found.address;
    else api.fail(new api.Problem({ code: "session", message, fix: "Choose a file that Download session wrote" }));
  };
  const input = h("input", { type: "file", accept: ".json,application/json", onchange: read });
  input.click();
}

/** Screens that depend on no prompt. */
const PROMPTLESS = ["search", "label", "atlas"];

/** The prompts that the screen shows: one, two, or none. */
function shownPrompts() {
  const { screen } = state();
  return screen === "compare" ? comparedPrompts().filter(Boolean) : PROMPTLESS.includes(screen) ? [] : [prompt()];
}

/** Describe what is shown in one line, for citing it: version, model, prompt and edits. */
function cited(page) {
  const { position, layer } = state();
  const { family, dtype, device, index } = page.model;
  const prompts = shownPrompts().map((text) => JSON.stringify(text));
  const made = activeEdits().map((e) => editCall(e).replace("unembed.", ""));
  const at = [position !== "" && `position ${position}`, layer !== "" && `layer ${layer}`].filter(Boolean);
  const asked = [`prompt${prompts.length > 1 ? "s" : ""} ${prompts.join(" and ")}`, ...at].join(", ");
  return [
    `unembed ${page.version}: ${page.mark()} (${family}, ${dtype}, on ${device})${index ? `, index ${index}` : ""}`,
    ...(prompts.length ? [asked] : []),
    made.length ? `edits ${made.join(", ")}` : "no edits",
    "readings through the model's own final norm.",
  ].join("; ");
}

/** Where the numbers of a saved file come from: model, prompts, edits, address. */
function origin(page) {
  const { family, dtype, device, index } = page.model;
  const model = { unembed: page.version, model: page.mark(), family, dtype, device, index };
  const view = { prompts: shownPrompts(), edits: activeEdits(), screen: state().screen, address: address(page) };
  return { ...model, ...view, citation: cited(page) };
}

const JSON_TYPE = "application/json";

/** Let the browser save a file. */
export function save(name, text, type) {
  const url = URL.createObjectURL(text instanceof Blob ? text : new Blob([text], { type }));
  const a = h("a", { href: url, download: name });
  document.body.append(a);
  a.click();
  a.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const csvCell = (x) => (/[",\n\r#]/.test(String(x)) ? `"${String(x).replaceAll('"', '""')}"` : String(x));
export const csv = (rows) => `${rows.map((row) => row.map(csvCell).join(",")).join("\n")}\n`;

/** Rows as CSV, below a comment that says where they come from. */
const tableFile = (page, rows) => `# ${cited(page).replace(/\s+/g, " ")}\n${csv(rows)}`;

/** A figure as the text of an SVG file. */
async function drawn(page, { title, el }) {
  const { drawing } = await import("./saving/drawing.js");
  while (el.querySelector(".waiting")) await new Promise((done) => setTimeout(done, 50)); // its old content is dimmed
  el.classList.add("whole"); // a card that scrolls is drawn with all its content
  try {
    const svg = drawing(el, { title, lines: [cited(page)] });
    const { width, height } = svg.viewBox.baseVal;
    return { text: new XMLSerializer().serializeToString(svg), width, height, title };
  } finally {
    el.classList.remove("whole");
  }
}

/** Every way to save what a screen shows, by name. */
const saving = {
  json: (page, out) =>
    save(`${out.name}.json`, JSON.stringify({ ...out.json, saved_from: origin(page) }, null, 1), JSON_TYPE),
  csv: (page, out) => save(`${out.name}.csv`, tableFile(page, out.rows), "text/csv"),
  svg: async (page, figure) => save(`${figure.name}.svg`, (await drawn(page, figure)).text, "image/svg+xml"),
  png: async (page, figure) => save(`${figure.name}.png`, await asPng(await drawn(page, figure)), "image/png"),
  html: async (page, figure, rows) =>
    save(`${figure.name}.html`, asPage(await drawn(page, figure), rows, origin(page)), "text/html"),
};

/** Open a menu for saving the figure of a card. */
export function figureMenu(anchor, page) {
  const el = anchor.closest(".card");
  const title = el.querySelector("h2").textContent;
  const words = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-");
  const figure = { name: words.replace(/^-|-$/g, "") || "figure", title: `${title} · ${document.title}`, el };
  openMenu(anchor, {
    "Save figure as PNG": () => saving.png(page, figure),
    "Save figure as SVG": () => saving.svg(page, figure),
  });
}

export function shareMenu(anchor, page, shown) {
  const copy = (text, what) => async () => {
    await navigator.clipboard.writeText(text);
    announce(`${what} copied`);
  };
  const code = shown()?.code?.();
  const out = shown()?.exported?.() || null;
  const figure = { name: out?.name || state().screen, title: document.title, el: document.getElementById("main") };
  openMenu(anchor, {
    "Copy link": () => copyLink(page),
    "Copy as Python": copy(asPython(page, code), "Python"),
    "Copy as a citation": copy(cited(page), "Citation"),
    "Copy as command": copy(asCommand(page, code), "Command"),
    "Download session": () => saveSession(page),
    "Open a session …": openSession,
    ...(out && { "Save data as JSON": () => saving.json(page, out) }),
    ...(out?.rows && { "Save data as CSV": () => saving.csv(page, out) }),
    "Save as one HTML file": () => saving.html(page, figure, out?.rows),
    "Save screen as SVG": () => saving.svg(page, figure),
    "Save screen as PNG": () => saving.png(page, figure),
  });
}

/** Open a menu under a button; `items`: what is done by the name of each item. */
function openMenu(anchor, items) {
  document.querySelector(".menu")?.remove();
  const close = () => {
    menu.remove();
    removeEventListener("pointerdown", outside, true);
    anchor.focus();
  };
  const outside = (event) => !menu.contains(event.target) && close();
  const onkeydown = (event) => {
    const all = [...menu.children];
    const by = { ArrowDown: 1, ArrowUp: all.length - 1 }[event.key];
    if (event.key === "Escape") close();
    else if (by) all[(all.indexOf(document.activeElement) + by) % all.length].focus();
    else return;
    consume(event);
  };
  const item = ([text, run]) =>
    button(text, async () => (close(), await Promise.resolve(run()).catch(api.fail)), "", { role: "menuitem" });
  const menu = h("div.menu", { role: "menu", onkeydown }, Object.entries(items).map(item));
  const box = anchor.getBoundingClientRect();
  menu.style.top = `${box.bottom + scrollY + 6}px`;
  menu.style.right = `${Math.max(8, document.documentElement.clientWidth - box.right)}px`;
  document.body.append(menu);
  menu.firstChild.focus();
  addEventListener("pointerdown", outside, true);
}
