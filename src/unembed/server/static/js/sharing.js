/** Copy and export: the link, the Python call, the command, the data, the picture. */

import * as api from "./api.js";
import { asCommand, asPython, editCall } from "./code.js";
import { announce, button, h } from "./dom.js";
import { comparedPrompts, prompt } from "./parts.js";
import { activeEdits, link, state } from "./state.js";

/** Longer addresses are stored by the server, and the link names them. */
const LONG = 2000;

const address = (page) =>
  link({ model: state().model || page.mark(), index: state().index || page.model.index_mark || "" });

/** Copy the link; a long address is stored by the server under a short name. */
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

function openSession() {
  const input = h("input", {
    type: "file",
    accept: ".json,application/json",
    onchange: async () => {
      const found = await input.files[0]
        .text()
        .then(JSON.parse)
        .catch(() => ({}));
      if (found.schema === SESSION && /^#\/[\x21-\x7e]*$/.test(found.address)) location.hash = found.address;
      else
        api.fail(
          new api.Problem({
            code: "session",
            message: `${input.files[0].name} is not a session`,
            fix: "Choose a file that Download session wrote",
          }),
        );
    },
  });
  input.click();
}

/** Screens that depend on no prompt. */
const PROMPTLESS = ["search", "label", "atlas"];

/** The prompts that the screen shows: one, two, or none. */
function shownPrompts() {
  const { screen } = state();
  return screen === "compare" ? comparedPrompts().filter(Boolean) : PROMPTLESS.includes(screen) ? [] : [prompt()];
}

/** The view as a citation: model, prompt, edits, versions. */
export function cited(page) {
  const { position, layer } = state();
  const prompts = shownPrompts();
  const made = activeEdits().map((e) => editCall(e).replace("unembed.", ""));
  const at = [position !== "" && `position ${position}`, layer !== "" && `layer ${layer}`].filter(Boolean).join(", ");
  return (
    `unembed ${page.version}: ${page.mark()} (${page.model.family}, ${page.model.dtype}, on ` +
    `${page.model.device})${page.model.index ? `, index ${page.model.index}` : ""}; ` +
    (prompts.length
      ? `prompt${prompts.length > 1 ? "s" : ""} ${prompts.map((text) => JSON.stringify(text)).join(" and ")}` +
        `${at && `, ${at}`}; `
      : "") +
    `${made.length ? `edits ${made.join(", ")}` : "no edits"}; ` +
    "readings through the model's own final norm."
  );
}

/** The provenance of a file, as data and as a line of text. */
const origin = (page) => ({
  unembed: page.version,
  model: page.mark(),
  family: page.model.family,
  dtype: page.model.dtype,
  device: page.model.device,
  index: page.model.index,
  prompts: shownPrompts(),
  edits: activeEdits(),
  screen: state().screen,
  address: address(page),
  citation: cited(page),
});

/** Save a file. */
export function save(name, text, type) {
  const url = URL.createObjectURL(text instanceof Blob ? text : new Blob([text], { type }));
  const a = h("a", { href: url, download: name });
  document.body.append(a);
  a.click();
  a.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export const csv = (rows) =>
  `${rows
    .map((row) =>
      row.map((x) => (/[",\n\r#]/.test(String(x)) ? `"${String(x).replaceAll('"', '""')}"` : String(x))).join(","),
    )
    .join("\n")}\n`;

/** Rows as CSV, below a line of provenance that begins with #. */
const tableFile = (page, rows) => `# ${cited(page).replace(/\s+/g, " ")}\n${csv(rows)}`;

/** Every way to save what a screen shows, by name. */
const saving = {
  json: (page, out) =>
    save(`${out.name}.json`, JSON.stringify({ ...out.json, saved_from: origin(page) }, null, 1), "application/json"),
  csv: (page, out) => save(`${out.name}.csv`, tableFile(page, out.rows), "text/csv"),
  svg: async (page, figure) => save(`${figure.name}.svg`, (await drawn(page, figure)).text, "image/svg+xml"),
  png: async (page, figure) => save(`${figure.name}.png`, await asPng(await drawn(page, figure)), "image/png"),
  html: savePage,
};

/** The whole screen as a figure. */
const screenFigure = (name) => ({
  name,
  title: document.title,
  el: document.getElementById("main"),
});

/** A menu of one card: its figure, as vectors or as pixels. */
export function figureMenu(anchor, page) {
  const el = anchor.closest(".card");
  const title = el.querySelector("h2").textContent;
  const name =
    title
      .toLowerCase()
      .replace(/[^\p{L}\p{N}]+/gu, "-")
      .replace(/^-|-$/g, "") || "figure";
  const figure = { name, title: `${title} · ${document.title}`, el };
  openMenu(anchor, [
    ["Save figure as PNG", () => saving.png(page, figure)],
    ["Save figure as SVG", () => saving.svg(page, figure)],
  ]);
}

export function shareMenu(anchor, page, shown) {
  const copy = (text, what) => async () => {
    await navigator.clipboard.writeText(text);
    announce(`${what} copied`);
  };
  const exported = () => shown()?.exported?.() || null;
  const code = shown()?.code?.();
  /** @type {[string, () => any][]} */
  const items = [
    ["Copy link", () => copyLink(page)],
    ["Copy as Python", copy(asPython(page, code), "Python")],
    ["Copy as a citation", copy(cited(page), "Citation")],
    ["Copy as command", copy(asCommand(page, code), "Command")],
  ];
  items.push(
    [
      "Download session",
      () =>
        save(
          "session.json",
          JSON.stringify({ schema: SESSION, model: page.mark(), address: address(page) }, null, 1),
          "application/json",
        ),
    ],
    ["Open a session …", openSession],
  );
  const out = exported();
  if (out) items.push(["Save data as JSON", () => saving.json(page, out)]);
  if (out?.rows) items.push(["Save data as CSV", () => saving.csv(page, out)]);
  const figure = screenFigure(out?.name || state().screen);
  items.push(
    ["Save as one HTML file", () => saving.html(page, figure, out?.rows)],
    ["Save screen as SVG", () => saving.svg(page, figure)],
    ["Save screen as PNG", () => saving.png(page, figure)],
  );
  openMenu(anchor, items);
}

/** A menu under a button: [text, what it does] each. */
function openMenu(anchor, items) {
  document.querySelector(".menu")?.remove();
  const close = () => {
    menu.remove();
    removeEventListener("pointerdown", outside, true);
    anchor.focus();
  };
  const outside = (event) => !menu.contains(event.target) && close();
  const menu = h(
    "div.menu",
    {
      role: "menu",
      onkeydown: (event) => {
        const all = [...menu.children];
        const at = all.indexOf(document.activeElement);
        if (event.key === "Escape") close();
        else if (event.key === "ArrowDown") all[(at + 1) % all.length].focus();
        else if (event.key === "ArrowUp") all[(at + all.length - 1) % all.length].focus();
        else return;
        event.preventDefault();
        event.stopPropagation();
      },
    },
    [
      items.map(([text, run]) =>
        button(text, async () => (close(), await Promise.resolve(run()).catch(api.fail)), { role: "menuitem" }),
      ),
    ],
  );
  const box = anchor.getBoundingClientRect();
  menu.style.top = `${box.bottom + scrollY + 6}px`;
  menu.style.right = `${Math.max(8, document.documentElement.clientWidth - box.right)}px`;
  document.body.append(menu);
  menu.firstChild.focus();
  addEventListener("pointerdown", outside, true);
}

/** A figure as the text of an SVG file. */
async function drawn(page, { title, el }) {
  const { drawing } = await import("./saving/drawing.js");
  const svg = drawing(el, { title, lines: [cited(page)] });
  const { width, height } = svg.viewBox.baseVal;
  return { text: new XMLSerializer().serializeToString(svg), width, height, description: cited(page), title };
}

const escaped = (text) => h("p", { text }).innerHTML;

/** The screen as an HTML page with the figure, its numbers and their provenance, without scripts or requests. */
async function savePage(page, figure, rows) {
  const { text } = await drawn(page, figure);
  const cells = (row, tag) => `<tr>${row.map((x) => `<${tag}>${escaped(String(x))}</${tag}>`).join("")}</tr>`;
  const data = rows
    ? `<details><summary>The numbers</summary><table><thead>${cells(rows[0], "th")}</thead><tbody>${rows
        .slice(1)
        .map((row) => cells(row, "td"))
        .join("")}</tbody></table></details>`
    : "";
  const style =
    "body{margin:20px auto;max-width:1600px;padding:0 20px;font:14px/1.5 system-ui,sans-serif;color:#1b1e24}" +
    "svg{max-width:100%;height:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}" +
    "th,td{text-align:left;padding:2px 12px 2px 0;border-bottom:1px solid #ddd;white-space:pre}";
  const origins = escaped(JSON.stringify(origin(page), null, 1));
  save(
    `${figure.name}.html`,
    `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>${escaped(figure.title)}</title>` +
      `<style>${style}</style></head><body>${text}${data}` +
      `<details><summary>Where it comes from</summary><pre>${origins}</pre></details></body></html>`,
    "text/html",
  );
}

/** A drawing in pixels, at twice the screen's resolution, with the provenance in the file. */
async function asPng({ text, width, height, description, title }) {
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  await image.decode();
  const scale = Math.min(2, 16_000 / Math.max(width, height), Math.sqrt(120e6 / (width * height)));
  const canvas = h("canvas");
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  const blob = await new Promise((done) => canvas.toBlob(done));
  return commented(new Uint8Array(await blob.arrayBuffer()), { Title: title, Description: description });
}

/** A PNG with texts in it, after its first chunk (PNG specification, 11.3.3.4: keyword, no compression, UTF-8). */
function commented(png, texts) {
  const chunks = Object.entries(texts).map(([keyword, description]) => {
    const body = new TextEncoder().encode(`iTXt${keyword}\0\0\0\0\0${description}`);
    const chunk = new Uint8Array(body.length + 8);
    const view = new DataView(chunk.buffer);
    view.setUint32(0, body.length - 4);
    chunk.set(body, 4);
    view.setUint32(body.length + 4, crc(body));
    return chunk;
  });
  const head = 8 + 25; // the signature and IHDR
  return new Blob([png.slice(0, head), ...chunks, png.slice(head)], { type: "image/png" });
}

function crc(bytes) {
  let sum = 0xffffffff;
  for (const byte of bytes) {
    sum ^= byte;
    for (let i = 0; i < 8; i++) sum = sum & 1 ? (sum >>> 1) ^ 0xedb88320 : sum >>> 1;
  }
  return (sum ^ 0xffffffff) >>> 0;
}
