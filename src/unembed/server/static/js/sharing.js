/** Copy and export: the link, the Python call, the command, the data, the picture. */

import * as api from "./api.js";
import { asCommand, asPython, editCall } from "./code.js";
import { button, h, say } from "./dom.js";
import { activeEdits, link, state } from "./state.js";

/** Characters of an address beyond which a link names what the server keeps. */
const LONG = 2000;

const address = (page) => link({ model: state().model || page.mark() });

/** Copy the link of what is shown; a long one is kept by the server under a short name. */
export async function copyLink(page) {
  const whole = address(page);
  const long = whole.length > LONG;
  try {
    const short = long ? `#/${state().screen}?session=${(await api.send("/sessions", { address: whole })).id}` : whole;
    await navigator.clipboard.writeText(new URL(short, location.href).href);
    say(long ? "Link copied. It works while this server runs; download the session to keep it." : "Link copied");
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
            message: `${input.files[0].name} is no session`,
            fix: "Choose a file that Download session wrote",
          }),
        );
    },
  });
  input.click();
}

/** What was asked of which model, as a person cites it. */
export function cited(page) {
  const { prompt, position, layer } = state();
  const made = activeEdits().map((e) => editCall(e).replace("unembed.", ""));
  const at = [position !== "" && `position ${position}`, layer !== "" && `layer ${layer}`].filter(Boolean).join(", ");
  return `unembed ${page.version}: ${page.mark()} (${page.model.family}, ${page.model.dtype}, on ${page.model.device})${page.model.index ? `, index ${page.model.index}` : ""}; prompt ${JSON.stringify(prompt)}${at && `, ${at}`}; ${made.length ? `edits ${made.join(", ")}` : "no edits"}; readings through the model's own final norm.`;
}

/** Offer a file. */
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
      row.map((x) => (/[",\n\r]/.test(String(x)) ? `"${String(x).replaceAll('"', '""')}"` : String(x))).join(","),
    )
    .join("\n")}\n`;

export function shareMenu(anchor, page, shown) {
  document.querySelector(".menu")?.remove();
  const copy = (text, what) => async () => {
    await navigator.clipboard.writeText(text);
    say(`${what} copied`);
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
  if (out) {
    items.push([
      "Save data as JSON",
      () => save(`${out.name}.json`, JSON.stringify(out.json, null, 1), "application/json"),
    ]);
    if (out.rows) items.push(["Save data as CSV", () => save(`${out.name}.csv`, csv(out.rows), "text/csv")]);
    items.push(["Save as one HTML file", () => savePage(out.name, page)]);
    if (document.querySelector("#main svg:not(.icon)"))
      items.push(["Save chart as SVG", () => saveSvg(out.name)], ["Save chart as PNG", () => savePng(out.name)]);
  }
  const close = () => {
    menu.remove();
    removeEventListener("pointerdown", outside, true);
    anchor.focus();
  };
  const outside = (event) => !menu.contains(event.target) && close();
  const menu = h(
    "div",
    {
      class: "menu",
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
    items.map(([text, run]) => button(text, () => (close(), run()), { role: "menuitem" })),
  );
  const box = anchor.getBoundingClientRect();
  menu.style.top = `${box.bottom + scrollY + 6}px`;
  menu.style.right = `${Math.max(8, document.documentElement.clientWidth - box.right)}px`;
  document.body.append(menu);
  menu.firstChild.focus();
  addEventListener("pointerdown", outside, true);
}

async function styles() {
  const sheets = [...document.querySelectorAll("link[rel=stylesheet]")].map(async (link) =>
    (await fetch(link.getAttribute("href"))).text(),
  );
  return (await Promise.all(sheets)).join("\n");
}

/** What is on the screen as a page of its own: no script, no request. */
async function savePage(name, page) {
  const copy = /** @type {HTMLElement} */ (document.getElementById("main").cloneNode(true));
  for (const el of copy.querySelectorAll("button, input, textarea, select"))
    if (el.tagName === "TEXTAREA" || el.tagName === "INPUT")
      el.replaceWith(h("p", { class: "tok" }, /** @type {HTMLInputElement} */ (el).value || ""));
  const escaped = (text) => h("p", { text }).innerHTML;
  const head = `<meta charset="utf-8"><title>${escaped(name)} · unembed</title><style>${await styles()}\nbody { display: block; padding: 20px; }</style>`;
  save(
    `${name}.html`,
    `<!doctype html><html lang="en" class="unembed"><head>${head}</head><body>${copy.outerHTML}<p class="faint">${escaped(`${page.mark()} · ${asCommand(page)}`)}</p></body></html>`,
    "text/html",
  );
}

async function chart() {
  /** @type {SVGSVGElement} */
  const svg = document.querySelector("#main svg:not(.icon)");
  const copy = /** @type {SVGSVGElement} */ (svg.cloneNode(true));
  const of = svg.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((el, i) => {
    const look = getComputedStyle(of[i]);
    for (const p of ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity"])
      el.setAttribute(p, look.getPropertyValue(p));
    /** @type {SVGElement} */ (el).style.font = look.font;
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const box = svg.viewBox.baseVal;
  copy.setAttribute("width", String(box.width));
  copy.setAttribute("height", String(box.height));
  return { text: new XMLSerializer().serializeToString(copy), width: box.width, height: box.height };
}

const saveSvg = async (name) => save(`${name}.svg`, (await chart()).text, "image/svg+xml");

async function savePng(name) {
  const { text, width, height } = await chart();
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  await image.decode();
  const canvas = h("canvas", {});
  canvas.width = width * 2;
  canvas.height = height * 2;
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.documentElement).backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.scale(2, 2);
  context.drawImage(image, 0, 0);
  canvas.toBlob((blob) => save(`${name}.png`, blob, "image/png"));
}
