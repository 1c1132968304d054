/** Where the inspector stands: beside the grid, narrow, wide or folded away, or alone on a page of its own. */
import { button, h } from "../dom.js";
import { sheet } from "../sheet.js";
import { link as addressOf, state } from "../state.js";

/** How it stands -> how it stands next, and what the button to that says. */
const NEXT = { "": ["wide", "Wider"], wide: ["folded", "Hide"], folded: ["", "Show"] };
const now = () => sessionStorage.getItem("inspector") || "";

/** The inspector in its frame, {el, place, leave, show, hide}. */
export function framed(inspector) {
  const widen = button(
    "",
    () => {
      sessionStorage.setItem("inspector", NEXT[now()][0]);
      place();
    },
    { class: "quiet widen" },
  );
  const away = h("a", {});
  const el = h(
    "aside",
    { class: "card stack", "aria-label": "Selected cell" },
    h("div", { class: "row" }, widen, h("span", { class: "spacer" }), away),
    inspector,
  );

  /** As the state and this browser's session say; the link leads to the same selection. */
  function place() {
    const alone = !!state().alone;
    // On the body by name, not by `:has()`: with that, every change of the page would style all of it anew.
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
