/** On a narrow page a tap opens its result as a sheet at the bottom, because the result is otherwise out of view. */
import { button } from "./dom.js";

const narrow = matchMedia("(max-width: 1080px)");

/** Let an element open as a sheet; `show` and `hide` return whether they changed something. A wide page has no sheets. */
export function sheet(el) {
  const hide = () => {
    const had = el.classList.contains("sheet");
    el.classList.remove("sheet");
    return had;
  };
  el.prepend(button("Close ✕", hide, "quiet sheet-close"));
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
