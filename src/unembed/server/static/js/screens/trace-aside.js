/** Where the inspector stands: beside the grid, narrow or wide, or alone on a page of its own. */
import { button, h } from "../dom.js";
import { link as addressOf, state } from "../state.js";

/** The inspector in its frame, {el, place, leave}; `moved()`: what stands beside it has another width now. */
export function framed(inspector, moved) {
  const widen = button("", () => {
    sessionStorage.setItem("inspector", wide() ? "" : "wide");
    place();
    moved();
  }, { class: "quiet widen" });
  const away = h("a", {});
  const el = h("aside", { class: "card stack", "aria-label": "The chosen cell" }, h("div", { class: "row" }, widen, h("span", { class: "spacer" }), away), inspector);
  const wide = () => sessionStorage.getItem("inspector") === "wide";

  /** As the state and this browser's session say; the link leads to the same selection. */
  function place() {
    const alone = !!state().alone;
    // On the body by name, not by `:has()`: with that, every change of the page would style all of it anew.
    document.body.classList.toggle("wide", wide());
    document.body.classList.toggle("alone", alone);
    widen.textContent = wide() ? "Narrower" : "Wider";
    away.textContent = alone ? "Whole screen" : "On its own page";
    away.href = addressOf({ alone: alone ? "" : "1" });
    away.target = alone ? "" : "_blank";
  }
  place();
  return { el, place, leave: () => document.body.classList.remove("alone") };
}
