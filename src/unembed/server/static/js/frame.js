/** The frame around every screen: header, navigation, breadcrumbs and status line. */
import * as api from "./api.js";
import { announce, button, byId, ending, fill, h, icon, many, roving } from "./dom.js";
import { token } from "./islands/tokens.js";
import * as names from "./names.js";
import { inOneLine } from "./parts.js";
import { differ, go, state } from "./state.js";

export const mark = (m) => m.name + (m.revision ? `@${m.revision.slice(0, 8)}` : "");

/** The status line's text: dtype and device of the model, the index, the version. */
export const running = ({ model: { dtype, device, index }, version }) =>
  [`${dtype} on ${device}`, index ? `index ${index}` : "no index", `unembed ${version}`].join(" · ");

/** The size of a model, in words. */
export function sizes(m) {
  const heads = m.heads_a_layer === `${m.n_heads} heads` ? many(m.n_heads, "head") : m.heads_a_layer;
  const memories = m.can.memories ? [`${m.memories_a_layer} memories a layer`] : [];
  return [many(m.n_layers, "layer"), heads, ...memories].join(" · ");
}

/** A button of the header; `key` is its shortcut. */
const iconButton = (name, label, key, onclick, props = {}) =>
  button(icon(name), onclick, "icon-btn", { "aria-label": label, title: key ? `${label} (${key})` : label, ...props });

/** Draw the header; `jump(text)` opens what was searched, and the others are what its buttons do. */
export function drawHeader({ jump, share, flip, help }) {
  const search = h("input", {
    type: "search",
    id: "search-box",
    placeholder: "Search memories   /",
    "aria-label": "Search memories",
    onkeydown: (event) => event.key === "Enter" && jump(search.value),
  });
  const home = (e) => (e.preventDefault(), go({ screen: "trace" }));
  const logo = document.querySelector("link[rel=icon]")?.getAttribute("href");
  fill(byId("top"), [
    h("a.brand", { href: "#/trace", onclick: home }, h("img", { src: logo, alt: "" }), "unembed"),
    h("span.model-chip"),
    h("nav", { id: "crumbs", "aria-label": "Where you are" }),
    h("span.spacer"),
    search,
    iconButton("share", "Copy or export", "x", (e) => share(e.currentTarget), { "aria-haspopup": "menu" }),
    iconButton("theme", "Light or dark", "", flip),
    iconButton("help", "Help and keys", "?", help),
  ]);
}

/** Draw the links to the screens. */
export function drawRail(screens) {
  const follow = (e, screen) => {
    if (e.ctrlKey || e.metaKey || e.shiftKey) return;
    e.preventDefault();
    go({ screen });
  };
  const link = ([name, title]) =>
    h("a", { href: `#/${name}`, data: { screen: name }, onclick: (e) => follow(e, name) }, icon(name), title);
  fill(byId("rail"), h("ul", [screens.map((one) => h("li", link(one)))]));
}

/** Mark the link to the open screen. */
export function markRail(screen) {
  for (const el of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#rail a"))) {
    if (el.dataset.screen === screen) el.setAttribute("aria-current", "page");
    else el.removeAttribute("aria-current");
  }
  roving(byId("rail"));
}

/** Draw the breadcrumbs: prompt, position, layer, and memory or head, each a link to its screen. */
export function drawCrumbs(page) {
  const { screen, prompt, chat, position, layer, layers, memory, head } = state();
  const here = page.tokens?.[position];
  const noSpan = { screen: "trace", layer: "", layers: "", only: "" };
  const card = screen === "memory" ? memory : screen === "heads" && head;
  const at = () => h("span", `position ${position} `, here !== undefined && token(here));
  const list = [
    prompt && [`“${ending(chat || prompt, 30)}”`, { ...noSpan, position: "", token: "" }],
    prompt && position !== "" && [at(), noSpan],
    layer !== "" && [layers ? `L${layers.replace("-", " to ")}` : `L${layer}`, { screen: "layer" }],
    card && [[`${card} `, names.at(card)], { screen }],
  ];
  const crumb = ([text, change]) => h("li", [button(text, () => go(change), "quiet")]);
  fill(byId("crumbs"), h("ol", list.filter(Boolean).map(crumb)));
}

/** Show what runs, for how long, and a failure until it is dismissed. Returns the function that draws the status line again. */
export function statusLine(page) {
  const status = byId("status");
  let trouble = null; // stays until it is dismissed, even if later requests succeed
  let busy = [];
  let drawn = [];
  const timers = { soon: 0, clock: 0, since: 0 };
  const seconds = () => Math.floor((performance.now() - timers.since) / 1000);
  const dismiss = () => {
    trouble = null;
    draw();
  };
  function draw() {
    const now = [busy[0], trouble, page.model, busy.length && seconds()];
    if (!differ(drawn, (drawn = now), 0, 1, 2, 3)) return;
    fill(status, [
      busy.length > 0 && [
        h("span.run", `◌ ${busy[0]} …${seconds() ? ` ${seconds()} s` : ""}`),
        button("Cancel", () => api.cancel(), "quiet"),
      ],
      trouble ? troubled(trouble, dismiss) : !busy.length && "Ready",
      h("span.spacer"),
      page.model && h("span.running", running(page)),
      h("span", "Press ", h("kbd", "?"), " for keys"),
    ]);
  }
  api.listen(({ running: names, error }) => {
    if (!busy.length) timers.since = performance.now();
    busy = names;
    trouble = error || trouble;
    if (error) announce(error.message);
    clearTimeout(timers.soon);
    clearInterval(timers.clock);
    if (busy.length) timers.clock = setInterval(draw, 1000);
    if (error || !busy.length) draw();
    else timers.soon = setTimeout(draw, 150); // short requests are not shown
  });
  draw();
  return draw;
}

function troubled(trouble, dismiss) {
  const copy = () => navigator.clipboard?.writeText(JSON.stringify({ ...trouble, message: trouble.message }));
  const buttons = [button("Copy details", copy, "quiet"), button("Dismiss", dismiss, "quiet")];
  return [h("span.bad", inOneLine(trouble)), buttons];
}

/** Warn that this page was made with another model or index. */
export function warnOther(linked, here) {
  const close = () => note.remove();
  const style = { "grid-area": "main", "align-self": "start", "z-index": 5 };
  const text = `This was made with ${linked}; what you see comes from ${here}.`;
  const note = h("div.warn.row", { role: "alert", style }, text, button("Dismiss", close, "quiet"));
  byId("main").before(note);
}
