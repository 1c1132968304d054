/** The commands of the page (such as help, or light and dark), and the palette that runs them. */
import * as api from "./api.js";
import { bareTable, button, fill, h, modal, tickBox } from "./dom.js";
import { mark, running } from "./frame.js";
import { table } from "./parts.js";
import { copyLink } from "./sharing.js";
import { go, openCard } from "./state.js";
import { panel } from "./timing.js";
import * as tour from "./tour.js";

/** Open the card of an id, or search for a text. */
export function jump(text) {
  if (!openCard(text)) go({ screen: "search", query: text });
}

export function setTheme(value) {
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
}

export function flip() {
  const root = document.documentElement;
  const byDefault = !root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches;
  const next = getComputedStyle(root).colorScheme === "dark" || byDefault ? "light" : "dark";
  localStorage.setItem("theme", next);
  setTheme(next);
}

export async function help(page) {
  const { help: paragraphs, keys } = await api.file("about");
  const lines = keys.map(([k, what]) => [h("th", { scope: "row" }, k), what]);
  const isOff = localStorage.getItem("keys") === "off";
  const dialog = modal({ "aria-labelledby": "help-title" }, [
    h("h1", { id: "help-title" }, "How to read this"),
    paragraphs.map((text) => h("p", text)),
    bareTable("table", null, lines, h("caption", "Keys")),
    page.model && h("p.faint", `${mark(page.model)} · ${running(page)}`),
    tickBox("Switch single-letter keys off", isOff, (on) => localStorage.setItem("keys", on ? "off" : "on")),
    h("div.row", [
      button("Close", () => dialog.close(), "btn main"),
      button("Take the six-step tour", () => (dialog.close(), tour.begin()), "btn"),
    ]),
  ]);
}

/** @returns {[string, () => any][]} each command's name, and what it does */
const commands = (page, screens) => [
  ...screens.map(([name, title]) => [`Open ${title}`, () => go({ screen: name })]),
  ["Light or dark", flip],
  ["Copy link", () => copyLink(page)],
  ["Take the tour", tour.begin],
  ["Clear all edits", () => go({ edits: "", disabled: "" })],
  ["Clear pins", () => go({ pins: "" })],
  ["Timings of this page", () => panel(table)],
  ["Help and keys", () => help(page)],
];

/** Open a box in which one chooses a command, names a card, or searches. */
export function palette(page, screens) {
  const all = commands(page, screens);
  const list = h("ul", { role: "listbox" });
  let matching = all;
  let at = 0;
  const line = ([title, run], i) =>
    h("li", [button(title, () => (dialog.close(), run()), i === at ? "on" : "", { tabindex: "-1" })]);
  const draw = () => fill(list, matching.map(line));
  const input = h("input", {
    type: "text",
    placeholder: "A command, or L4M17, or a word to search",
    "aria-label": "Command",
    oninput() {
      matching = all.filter(([title]) => title.toLowerCase().includes(input.value.toLowerCase()));
      at = 0;
      draw();
    },
    onkeydown(event) {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!by && event.key !== "Enter") return;
      event.preventDefault(); // or the dialog that opens next receives the key too
      if (by) {
        at = Math.max(0, Math.min(matching.length - 1, at + by));
        return draw();
      }
      dialog.close();
      if (matching[at]) matching[at][1]();
      else jump(input.value);
    },
  });
  draw();
  const dialog = modal({ class: "palette", "aria-label": "Commands" }, input, list);
}
