/**
 * Six steps through the first screen. The step is in the address, so a link can begin anywhere; it ends when
 * dismissed.
 */

import * as api from "./api.js";
import { button, fill, h } from "./dom.js";
import { go, state, turn, watch } from "./state.js";

/** The element that each step points to. */
const STEPS = [".prompt", "#main .grid", ".trace aside", ".ranks", ".trace .two .bars", "#rail"];

/** Show the step of the tour that the address names, and follow it. */
export function mount() {
  const card = h("section", {
    id: "tour",
    role: "dialog",
    "aria-labelledby": "tour-title",
    tabindex: "-1",
    hidden: true,
    onkeydown: (e) => e.key === "Escape" && (e.stopPropagation(), end()),
  });
  document.body.append(card);
  /** @type {any} */ let marked = null;
  let timer = 0;
  const at = () => Math.min(STEPS.length, Number.parseInt(state().tour, 10) || 0);
  const step = (n) => turn({ tour: String(n), ...(state().screen !== "trace" && { screen: "trace" }) });
  const end = () => turn({ tour: "" });

  function point(selector, tries = 40) {
    clearTimeout(timer);
    const found = document.querySelector(selector);
    if (!found) return tries && (timer = setTimeout(() => point(selector, tries - 1), 100));
    marked = found;
    found.classList.add("toured");
    found.scrollIntoView({ block: found.offsetHeight > innerHeight / 3 ? "start" : "center" });
  }

  async function show() {
    const n = at();
    clearTimeout(timer);
    marked?.classList.remove("toured");
    marked = null;
    card.hidden = n < 1;
    if (card.hidden) return;
    const [title, text] = (await api.file("about")).tour[n - 1];
    if (n !== at()) return;
    fill(card, [
      h("p.faint", `${n} of ${STEPS.length}`),
      h("h2", { id: "tour-title" }, title),
      h("p", text),
      h("div.row", [
        button("End", end, "quiet"),
        h("span.spacer"),
        n > 1 && button("Back", () => step(n - 1), "btn small"),
        button(n < STEPS.length ? "Next" : "Done", () => (n < STEPS.length ? step(n + 1) : end()), "btn small main"),
      ]),
    ]);
    card.focus({ preventScroll: true });
    point(STEPS[n - 1]);
  }

  watch((now, before) => (now.tour !== before.tour || (now.tour && now.screen !== before.screen)) && show());
  show();
}

export const begin = () => go({ screen: "trace", tour: "1" });
