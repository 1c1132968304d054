/** On a narrow page, what a tap changes comes up from below as a sheet, instead of changing out of sight. */
import { button } from "./dom.js";

const narrow = matchMedia("(max-width: 1080px)");

/**
 * Make an element such a sheet: {show, hide}, each true where that changed something. On a wide page it stands where
 * it is.
 */
export function sheet(el) {
  const hide = () => {
    const had = el.classList.contains("sheet");
    el.classList.remove("sheet");
    return had;
  };
  el.prepend(button("Close ✕", hide, { class: "quiet sheet-close" }));
  el.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && hide()) event.stopPropagation();
  });
  return {
    hide,
    show() {
      if (!narrow.matches || el.classList.contains("sheet")) return false;
      el.classList.add("sheet");
      el.scrollTop = 0;
      return true;
    },
  };
}
