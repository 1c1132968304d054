/** Six steps through the first screen. The step is in the address, so a link can begin anywhere; it ends when dismissed. */
import { button, fill, h } from "./dom.js";
import { go, state, watch } from "./state.js";

const STEPS = [
  [".prompt", "A prompt, and what comes next", "Write the beginning of a text and press Enter. The pills are the tokens that the model itself holds most likely to come next; click one to follow it."],
  ["#main .grid", "What each layer would say", "Each column is a token of the prompt, each row a layer. A cell tells what the model would say next if it stopped there. Move with the arrow keys; ◆ is where the answer is settled."],
  [".trace aside", "One cell taken apart", "The chosen layer's candidates before and after, and the memories that moved them. Drag over several layers' names, or hold Shift with the arrows, to see what they do together."],
  [".ranks", "The race to the top", "The place of the answer after every layer, 1 on top. Pin other tokens to race against it. Below: where it was settled, and what was thrown out."],
  [".trace .two .bars", "The account of a logit", "Everything that wrote to the answer's logit, signed. The bars add up to the model's own number, and the error of the sum is shown. Split it by head, memory or source."],
  ["#rail", "Go on from here", "Memory: what one value says and what sets it off. Intervene: change it and compare. Press / to search by word, ? for all keys."],
];

/** The tour follows the address: `tour=1` to `tour=6`. */
export function mount() {
  const card = h("section", { id: "tour", role: "dialog", "aria-labelledby": "tour-title", tabindex: "-1", hidden: true, onkeydown: (e) => e.key === "Escape" && (e.stopPropagation(), end()) });
  document.body.append(card);
  let marked = null;
  let timer = 0;
  const at = () => Math.min(STEPS.length, Number.parseInt(state().tour, 10) || 0);
  const step = (n) => go({ tour: String(n), ...(state().screen !== "trace" && { screen: "trace" }) }, { push: false });
  const end = () => go({ tour: "" }, { push: false });

  function point(selector, tries = 40) {
    clearTimeout(timer);
    const found = document.querySelector(selector);
    if (!found) return tries && (timer = setTimeout(() => point(selector, tries - 1), 100));
    marked = found;
    found.classList.add("toured");
    found.scrollIntoView({ block: found.offsetHeight > innerHeight / 3 ? "start" : "center" });
  }

  function show() {
    const n = at();
    clearTimeout(timer);
    marked?.classList.remove("toured");
    marked = null;
    card.hidden = n < 1;
    if (card.hidden) return;
    const [selector, title, text] = STEPS[n - 1];
    fill(card, h("p", { class: "faint" }, `${n} of ${STEPS.length}`), h("h2", { id: "tour-title" }, title), h("p", {}, text),
      h("div", { class: "row" }, button("End", end, { class: "quiet" }), h("span", { class: "spacer" }), n > 1 && button("Back", () => step(n - 1), { class: "btn small" }), button(n < STEPS.length ? "Next" : "Done", () => (n < STEPS.length ? step(n + 1) : end()), { class: "btn small main" })));
    card.focus({ preventScroll: true });
    point(selector);
  }

  watch((now, before) => (now.tour !== before.tour || (now.tour && now.screen !== before.screen)) && show());
  show();
}

/** Begin it. */
export const begin = () => go({ screen: "trace", tour: "1" });
