/** The frame of the page: header, navigation, status line, keys. Each screen is a module, loaded on first use. */

import * as api from "./api.js";
import { announce, button, ending, fill, h, icon, many, modal, tickBox } from "./dom.js";
import { token } from "./islands/tokens.js";
import * as names from "./names.js";
import { failure, table } from "./parts.js";
import { presets } from "./presets.js";
import { copyLink, figureMenu, shareMenu } from "./sharing.js";
import { differ, go, goTo, isReturning, link, openCard, readWith, setExperts, state, turn, watch } from "./state.js";
import { changed, panel } from "./timing.js";
import * as tour from "./tour.js";
import * as tray from "./tray.js";
import { readable } from "./unread.js";

/** @type {[string, string, () => Promise<any>][]} */
const SCREENS = [
  ["trace", "Trace", () => import("./screens/trace.js")],
  ["layer", "Layer", () => import("./screens/layer.js")],
  ["memory", "Memory", () => import("./screens/memory.js")],
  ["intervene", "Intervene", () => import("./screens/intervene.js")],
  ["compare", "Compare", () => import("./screens/compare.js")],
  ["heads", "Heads", () => import("./screens/heads.js")],
  ["atlas", "Atlas", () => import("./screens/atlas.js")],
  ["search", "Search", () => import("./screens/search.js")],
  ["label", "Label", () => import("./screens/label.js")],
  ["labs", "Labs", () => import("./screens/labs.js")],
];
const main = document.getElementById("main");
let shown = null;

/** Passed to every screen. `isShipped`: the model is the one of the bundled example. */
const page = {
  model: null,
  isShipped: false,
  api,
  announce,
  version: new URL(import.meta.url).pathname.split("/").at(-3),
};

async function start() {
  theme(localStorage.getItem("theme"));
  draw();
  try {
    page.model = (await api.get("/models")).models[0];
    setExperts(page.model.experts);
    const screens = SCREENS.map(([name]) => name);
    readWith((found, unknown) => readable(found, unknown, page.model, screens));
    page.isShipped = page.model.name === "wren";
  } catch (error) {
    fill(main, h("div.empty", h("h1", error.message), h("p", error.fix || error.why || "")));
    return;
  }
  page.ready();
  document.querySelector(".model-chip").replaceChildren(h("b", page.model.name), ` ${sizes(page.model)}`);
  await Promise.all([
    page.model.can.index && names.load().catch(api.fail),
    page.model.can.memories && names.loadDescriptions().catch(api.fail),
  ]);
  if (state().session) await recall();
  const linked = state().model;
  const { index } = state();
  if (linked && linked !== mark(page.model)) warnOther(linked);
  else if (index && index !== page.model.index_mark)
    warnOther(`index ${index}`, page.model.index ? `index ${page.model.index_mark}` : "no index");
  page.presets = presets(page);
  tray.mount(document.getElementById("tray"), state(), compare, page.presets);
  watch((now, before) => {
    if (now.session) return recall();
    if (now.screen !== before.screen) left.set(link(before), scrollY);
    const done = changed(now, before);
    const updated = now.screen === before.screen ? shown?.update(now, before) : open();
    Promise.resolve(updated)
      .catch(failed)
      .then(() => (crumbs(), done())); // in the same frame as the response
  });
  tour.mount();
  await open();
}

/** Show an unexpected failure above the screen, with a button to try again. */
function failed(error) {
  const box = h("div", { role: "alert" });
  main.prepend(box);
  failure(box, error, open);
}

/** Run the comparison; from another screen, open its screen first, which runs it. */
const compare = () => (state().screen === "intervene" ? shown?.compare() : go({ screen: "intervene" }));

/** Open the address that the server stores under the name in a short link. */
async function recall() {
  try {
    goTo((await api.get(`/sessions/${encodeURIComponent(state().session)}`)).address);
  } catch (error) {
    turn({ session: "" });
    api.fail(error);
  }
}

/** Breadcrumbs: prompt, position, layer, memory; each is a link to its screen. */
function crumbs() {
  const { screen, prompt, position, layer, layers, memory, head } = state();
  const list = [];
  if (prompt)
    list.push([
      `“${ending(prompt, 30)}”`,
      { screen: "trace", position: "", layer: "", token: "", layers: "", only: "" },
    ]);
  if (prompt && position !== "")
    list.push([
      h("span", `position ${position} `, page.tokens?.[position] !== undefined && token(page.tokens[position])),
      { screen: "trace", layer: "", layers: "", only: "" },
    ]);
  if (layer !== "") list.push([layers ? `L${layers.replace("-", " to ")}` : `L${layer}`, { screen: "layer" }]);
  if (screen === "memory" && memory) list.push([[`${memory} `, names.at(memory)], { screen }]);
  if (screen === "heads" && head) list.push([[`${head} `, names.at(head)], { screen }]);
  fill(document.getElementById("crumbs"), [
    h("ol", [list.map(([text, change]) => h("li", [button(text, () => go(change), { class: "quiet" })]))]),
  ]);
}
page.crumbs = crumbs;

const mark = (m) => m.name + (m.revision ? `@${m.revision.slice(0, 8)}` : "");
page.mark = () => mark(page.model);

/** The status line's text: dtype and device of the model, the index, the version. */
const running = ({ dtype, device, index }) =>
  [`${dtype} on ${device}`, index ? `index ${index}` : "no index", `unembed ${page.version}`].join(" · ");

function sizes(m) {
  const parts = [
    many(m.n_layers, "layer"),
    m.heads_a_layer === `${m.n_heads} heads` ? many(m.n_heads, "head") : m.heads_a_layer,
  ];
  if (m.can.memories) parts.push(`${m.memories_a_layer} memories a layer`);
  return parts.join(" · ");
}

page.warnOther = warnOther;
function warnOther(linked, here = mark(page.model)) {
  const close = () => note.remove();
  const note = h(
    "div.warn.row",
    { role: "alert", style: { "grid-area": "main", "align-self": "start", "z-index": 5 } },
    [`This was made with ${linked}; what you see comes from ${here}.`, button("Dismiss", close, { class: "quiet" })],
  );
  main.before(note);
}

/** The scroll offset of each address when another screen was opened, restored by Back. */
const left = new Map();
history.scrollRestoration = "manual"; // the browser restores before the page has its length

/** Scroll to an offset as soon as the page is long enough. */
function scrollBack(y) {
  const until = performance.now() + 2000;
  const moved = () => clearTimeout(timer);
  let timer = 0;
  const step = () => {
    scrollTo(0, y);
    if (Math.abs(scrollY - y) > 2 && performance.now() < until) timer = setTimeout(step, 30);
    else for (const name of ["wheel", "pointerdown", "keydown"]) removeEventListener(name, moved);
  };
  for (const name of ["wheel", "pointerdown", "keydown"]) addEventListener(name, moved, { once: true });
  step();
}

async function open() {
  const { screen } = state();
  const back = isReturning() ? (left.get(link({})) ?? 0) : 0;
  const found = SCREENS.find(([name]) => name === screen) || SCREENS[0];
  for (const el of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#rail a"))) {
    if (el.dataset.screen === found[0]) el.setAttribute("aria-current", "page");
    else el.removeAttribute("aria-current");
  }
  const module = await found[2]();
  if ((SCREENS.find(([name]) => name === state().screen) || SCREENS[0]) !== found) return;
  shown?.destroy?.();
  const again = shown !== null;
  main.replaceChildren();
  document.title = `${found[1]} · unembed`;
  shown = module.render(main, page);
  crumbs();
  if (again) {
    scrollTo(0, 0);
    if (document.activeElement === document.body) main.focus({ preventScroll: true }); // the clicked element is gone
  }
  const here = shown;
  await Promise.resolve(shown.update(state(), { ...state(), screen: "" })).catch(
    (error) => shown === here && failed(error),
  );
  if (back) scrollBack(back);
  performance.mark("unembed-open");
}

/** A button of the header; `key` is its shortcut. */
const iconButton = (name, label, key, onclick, props) =>
  button(icon(name), onclick, {
    class: "icon-btn",
    "aria-label": label,
    title: key ? `${label} (${key})` : label,
    ...props,
  });

function draw() {
  const search = h("input", {
    type: "search",
    id: "search-box",
    placeholder: "Search memories   /",
    "aria-label": "Search memories",
    onkeydown: (event) => event.key === "Enter" && jump(search.value),
  });
  fill(document.getElementById("top"), [
    h("a.brand", { href: "#/trace", onclick: (e) => (e.preventDefault(), go({ screen: "trace" })) }, [
      h("img", { src: document.querySelector("link[rel=icon]").getAttribute("href"), alt: "" }),
      "unembed",
    ]),
    h("span.model-chip"),
    h("nav", { id: "crumbs", "aria-label": "Where you are" }),
    h("span.spacer"),
    search,
    iconButton("share", "Copy or export", "x", (e) => shareMenu(e.currentTarget, page, () => shown), {
      "aria-haspopup": "menu",
    }),
    iconButton("theme", "Light or dark", "", flip),
    iconButton("help", "Help and keys", "?", help),
  ]);
  const items = SCREENS.map(([name, title]) =>
    h("li", [
      h(
        "a",
        {
          href: `#/${name}`,
          data: { screen: name },
          onclick: (e) => {
            if (e.ctrlKey || e.metaKey || e.shiftKey) return;
            e.preventDefault();
            go({ screen: name });
          },
        },
        [icon(name), title],
      ),
    ]),
  );
  fill(document.getElementById("rail"), h("ul", items));
  const status = document.getElementById("status");
  let trouble = null;
  let busy = [];
  let soon = 0;
  let drawn = [];
  let since = 0;
  let clock = 0;
  const seconds = () => Math.floor((performance.now() - since) / 1000);
  const drawStatus = () =>
    differ(drawn, (drawn = [busy[0], trouble, page.model, busy.length && seconds()]), 0, 1, 2, 3) &&
    fill(status, [
      busy.length > 0 && [
        h("span.run", `◌ ${busy[0]} …${seconds() ? ` ${seconds()} s` : ""}`),
        button("Cancel", () => api.cancel(), { class: "quiet" }),
      ],
      trouble
        ? [
            h("span.bad", [trouble.message, trouble.why, trouble.fix].filter(Boolean).join(". ")),
            button(
              "Copy details",
              () => navigator.clipboard?.writeText(JSON.stringify({ ...trouble, message: trouble.message })),
              { class: "quiet" },
            ),
            button("Dismiss", () => ((trouble = null), drawStatus()), { class: "quiet" }),
          ]
        : !busy.length && "Ready",
      h("span.spacer"),
      page.model && h("span.running", running(page.model)),
      h("span", "Press ", h("kbd", "?"), " for keys"),
    ]);
  // A failure stays until it is dismissed, even if later requests succeed.
  api.listen(({ running, error }) => {
    if (!busy.length) since = performance.now();
    busy = running;
    trouble = error || trouble;
    if (error) announce(error.message);
    clearTimeout(soon);
    clearInterval(clock);
    if (busy.length) clock = setInterval(drawStatus, 1000);
    if (error || !busy.length) drawStatus();
    else soon = setTimeout(drawStatus, 150); // short requests are not shown
  });
  page.ready = drawStatus;
  drawStatus();
}

function jump(text) {
  if (!openCard(text)) go({ screen: "search", query: text });
}

function theme(value) {
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
}

function flip() {
  const dark =
    getComputedStyle(document.documentElement).colorScheme === "dark" ||
    (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const next = dark ? "light" : "dark";
  localStorage.setItem("theme", next);
  theme(next);
}

async function help() {
  const { help: paragraphs, keys } = await api.file("about");
  const dialog = modal({ "aria-labelledby": "help-title" }, [
    h("h1", { id: "help-title" }, "How to read this"),
    paragraphs.map((text) => h("p", text)),
    h("table", [
      h("caption", "Keys"),
      h("tbody", [keys.map(([k, what]) => h("tr", h("th", { scope: "row" }, k), h("td", what)))]),
    ]),
    page.model && h("p.faint", `${page.mark()} · ${running(page.model)}`),
    tickBox("Switch single-letter keys off", localStorage.getItem("keys") === "off", (on) =>
      localStorage.setItem("keys", on ? "off" : "on"),
    ),
    h("div.row", [
      button("Close", () => dialog.close(), { class: "btn main" }),
      button("Take the six-step tour", () => (dialog.close(), tour.begin()), { class: "btn" }),
    ]),
  ]);
}

function palette() {
  /** @type {[string, () => any][]} */
  const commands = [
    .../** @type {[string, () => any][]} */ (
      SCREENS.map(([name, title]) => [`Open ${title}`, () => go({ screen: name })])
    ),
    ["Light or dark", flip],
    ["Copy link", () => copyLink(page)],
    ["Take the tour", tour.begin],
    ["Clear all edits", () => go({ edits: "", disabled: "" })],
    ["Clear pins", () => go({ pins: "" })],
    ["Timings of this page", () => panel(table)],
    ["Help and keys", help],
  ];
  const list = h("ul", { role: "listbox" });
  let matching = commands;
  let at = 0;
  const drawList = () =>
    fill(list, [
      matching.map(([title, run], i) =>
        h("li", [button(title, () => (dialog.close(), run()), { class: i === at ? "on" : "", tabindex: "-1" })]),
      ),
    ]);
  const input = h("input", {
    type: "text",
    placeholder: "A command, or L4M17, or a word to search",
    "aria-label": "Command",
    oninput: () => {
      matching = commands.filter(([title]) => title.toLowerCase().includes(input.value.toLowerCase()));
      at = 0;
      drawList();
    },
    onkeydown: (event) => {
      if (event.key === "ArrowDown") at = Math.min(matching.length - 1, at + 1);
      else if (event.key === "ArrowUp") at = Math.max(0, at - 1);
      else if (event.key === "Enter") {
        event.preventDefault(); // or the dialog that opens next receives the key too
        dialog.close();
        if (matching[at]) matching[at][1]();
        else jump(input.value);
        return;
      } else return;
      event.preventDefault();
      drawList();
    },
  });
  drawList();
  const dialog = modal({ class: "palette", "aria-label": "Commands" }, input, list);
}

addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    palette();
    return;
  }
  if (
    (event.ctrlKey || event.metaKey) &&
    event.key.toLowerCase() === "z" &&
    !(/** @type {Element} */ (event.target).closest?.("input, textarea")) &&
    tray.undo(event.shiftKey)
  )
    return event.preventDefault();
  const typing = /** @type {Element} */ (event.target).closest?.("input, textarea, select, dialog, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (!shown?.key?.(event)) history.length > 1 && state().screen !== "trace" && go({ screen: "trace" });
    return;
  }
  if (event.key.length === 1 && localStorage.getItem("keys") === "off") return;
  const taken = {
    "/": () => document.getElementById("search-box").focus(),
    "?": help,
    c: () => copyLink(page),
    x: () => shareMenu(document.querySelector("#top .icon-btn"), page, () => shown),
    r: compare,
  }[event.key];
  if (shown?.key?.(event)) event.preventDefault();
  else if (taken) {
    event.preventDefault();
    taken();
  }
});

main.addEventListener("figure", (event) => figureMenu(event.target, page));

addEventListener("keyup", (event) => shown?.keyup?.(event));

/** Copying gives the tokens' own text, without the marks for spaces. */
addEventListener("copy", (event) => {
  const chosen = getSelection();
  if (!chosen.rangeCount || /** @type {Element} */ (event.target).closest?.("input, textarea")) return;
  const range = chosen.getRangeAt(0);
  /** @type {any} */
  const around = range.commonAncestorContainer;
  const whole = (around.closest ? around : around.parentElement)?.closest(".tok");
  const part = document.createElement("div");
  part.append(whole && whole.textContent === String(chosen) ? whole.cloneNode(true) : range.cloneContents());
  /** @type {NodeListOf<HTMLElement>} */
  const drawn = part.querySelectorAll(".tok");
  if (!drawn.length) return;
  for (const el of drawn) el.textContent = el.dataset.raw ?? el.textContent;
  event.clipboardData.setData("text/plain", part.textContent);
  event.preventDefault();
});

start();
