/** The page: it opens the screen that the address names, each a module loaded on first use, and handles the keys. */

import * as api from "./api.js";
import { flip, help, jump, palette, setTheme } from "./commands.js";
import { byId, fill, h } from "./dom.js";
import { drawCrumbs, drawHeader, drawRail, mark, markRail, sizes, statusLine, warnOther } from "./frame.js";
import * as names from "./names.js";
import { failure } from "./parts.js";
import { presets } from "./presets.js";
import { copyLink, figureMenu, shareMenu } from "./sharing.js";
import { go, goTo, isReturning, link, readWith, setExperts, state, turn, watch } from "./state.js";
import { changed } from "./timing.js";
import * as tour from "./tour.js";
import * as tray from "./tray.js";
import { readable } from "./unread.js";

/** @type {[string, string, () => Promise<any>][]} */
const SCREENS = [
  ["trace", "Trace", () => import("./screens/trace.js")],
  ["flow", "Flow", () => import("./screens/flow.js")],
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
const main = byId("main");
/** @type {any} */ let shown = null;

/** What every screen is given. `isShipped`: whether the model is that of the bundled example. */
const page = {
  model: null,
  isShipped: false,
  api,
  version: new URL(import.meta.url).pathname.split("/").at(-3),
  crumbs: () => drawCrumbs(page),
  mark: () => mark(page.model),
  warnOther: (linked, here = page.mark()) => warnOther(linked, here),
};

async function start() {
  setTheme(localStorage.getItem("theme"));
  drawHeader({ jump, share, flip, help: () => help(page) });
  drawRail(SCREENS);
  const drawStatus = statusLine(page);
  try {
    page.model = (await api.get("/models")).models[0];
    setExperts(page.model.experts);
    const screens = SCREENS.map(([name]) => name);
    readWith((found, unknown) => readable(found, unknown, page.model, screens));
    page.isShipped = page.model.name === "wren";
  } catch (/** @type {any} */ error) {
    fill(main, h("div.empty", h("h1", error.message), h("p", error.fix || error.why || "")));
    return;
  }
  const { model } = page;
  drawStatus();
  fill(document.querySelector(".model-chip"), h("b", model.name), ` ${sizes(model)}`);
  await Promise.all([
    model.can.index && names.load().catch(api.fail),
    model.can.memories && names.loadDescriptions().catch(api.fail),
  ]);
  if (state().session) await recall();
  const { model: linked, index } = state();
  if (linked && linked !== page.mark()) page.warnOther(linked);
  else if (index && index !== model.index_mark)
    page.warnOther(`index ${index}`, model.index ? `index ${model.index_mark}` : "no index");
  page.presets = presets(page);
  tray.mount(byId("tray"), compare, page.presets);
  watch(follow);
  tour.mount();
  await open();
}

function follow(now, before) {
  if (now.session) return recall();
  if (now.screen !== before.screen) left.set(link(before), scrollY);
  const done = changed(now, before);
  const updated = now.screen === before.screen ? shown?.update(now, before) : open();
  return Promise.resolve(updated)
    .catch(failed)
    .then(() => (page.crumbs(), done())); // in the same frame as the response
}

/** Show an unexpected failure above the screen, with a button to try again. */
function failed(error) {
  const box = h("div", { role: "alert" });
  main.prepend(box);
  failure(box, error, open);
}

/** Run the comparison of Intervene; the screen runs it itself when it opens. */
const compare = () => (state().screen === "intervene" ? shown?.compare() : go({ screen: "intervene" }));

const share = (anchor) => shareMenu(anchor, page, () => shown);

/** Open the address that the server stores under the name in a short link. */
async function recall() {
  try {
    goTo((await api.get(`/sessions/${encodeURIComponent(state().session)}`)).address);
  } catch (/** @type {any} */ error) {
    turn({ session: "" });
    api.fail(error);
  }
}

/** How far each address was scrolled when another screen was opened; Back restores it. */
const left = new Map();
history.scrollRestoration = "manual"; // the browser restores before the page has its length

/** Scroll to an offset as soon as the page is long enough, unless the user scrolls first. */
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

const screenHere = () => SCREENS.find(([name]) => name === state().screen) || SCREENS[0];

async function open() {
  const back = isReturning() ? (left.get(link({})) ?? 0) : 0;
  const found = screenHere();
  const [name, title, load] = found;
  markRail(name);
  const module = await load();
  if (screenHere() !== found) return;
  shown?.destroy?.();
  const again = shown !== null;
  main.replaceChildren();
  document.title = `${title} · unembed`;
  shown = module.render(main, page);
  page.crumbs();
  if (again) {
    scrollTo(0, 0);
    if (document.activeElement === document.body) main.focus({ preventScroll: true }); // the clicked element is gone
  }
  const here = shown;
  const updated = Promise.resolve(shown.update(state(), { ...state(), screen: "" }));
  await updated.catch((error) => shown === here && failed(error));
  if (back) scrollBack(back);
  performance.mark("unembed-open");
}

const KEYS = {
  "/": () => byId("search-box").focus(),
  "?": () => help(page),
  c: () => copyLink(page),
  x: () => share(document.querySelector("#top .icon-btn")),
  r: compare,
};

addEventListener("keydown", (event) => {
  const { key, ctrlKey, metaKey, altKey, shiftKey } = event;
  const inside = (selector) => /** @type {Element} */ (event.target).closest?.(selector);
  if ((ctrlKey || metaKey) && key.toLowerCase() === "k") {
    palette(page, SCREENS);
    return event.preventDefault();
  }
  const undoes = (ctrlKey || metaKey) && key.toLowerCase() === "z" && !inside("input, textarea");
  if (undoes && tray.undo(shiftKey)) return event.preventDefault();
  if (inside("input, textarea, select, dialog, [contenteditable]") || ctrlKey || metaKey || altKey) return;
  if (key === "Escape") {
    if (!shown?.key?.(event)) history.length > 1 && state().screen !== "trace" && go({ screen: "trace" });
    return;
  }
  if (key.length === 1 && localStorage.getItem("keys") === "off") return;
  if (shown?.key?.(event)) event.preventDefault();
  else if (KEYS[key]) {
    event.preventDefault();
    KEYS[key]();
  }
});

main.addEventListener("figure", (event) => figureMenu(event.target, page));

addEventListener("keyup", (event) => shown?.keyup?.(event));

/** Copying gives the tokens' own text, without the marks for spaces. */
addEventListener("copy", (event) => {
  const chosen = /** @type {Selection} */ (getSelection());
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
  event.clipboardData?.setData("text/plain", part.textContent);
  event.preventDefault();
});

start();
