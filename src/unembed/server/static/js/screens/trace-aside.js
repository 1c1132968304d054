/** The frame of the inspector, which is next to the grid (narrow, wide or hidden), or alone on a page. */
import { button, h } from "../dom.js";
import { sheet } from "../sheet.js";
import { link as addressOf, state } from "../state.js";

/** The width that follows each width, and the text of the button. */
const NEXT = { "": ["wide", "Wider"], wide: ["folded", "Hide"], folded: ["", "Show"] };
const now = () => sessionStorage.getItem("inspector") || "";

/** Frame the inspector; `show` and `hide` are those of a sheet. */
export function framed(inspector) {
  const turn = () => {
    sessionStorage.setItem("inspector", NEXT[now()][0]);
    place();
  };
  const widen = button("", turn, "quiet widen");
  const away = h("a");
  const el = h("aside.card.stack", { "aria-label": "Selected cell" }, [
    h("div.row", widen, h("span.spacer"), away),
    inspector,
  ]);

  /** Apply the width of the state and of this session; the link opens the same selection. */
  function place() {
    const alone = !!state().alone;
    // A class on the body instead of `:has()`, which would make every change restyle the whole page.
    const has = { wide: now() === "wide", folded: now() === "folded", alone };
    for (const name in has) document.body.classList.toggle(name, has[name]);
    widen.textContent = NEXT[now()][1];
    away.textContent = alone ? "Whole screen" : "On its own page";
    away.href = addressOf({ alone: alone ? "" : "1" });
    away.target = alone ? "" : "_blank";
  }
  place();
  return { el, place, leave: () => document.body.classList.remove("alone"), ...sheet(el) };
}
