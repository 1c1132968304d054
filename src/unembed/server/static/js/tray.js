/** The edits that hold now, on every screen: chips that say what they do. */
import { button, fill, h } from "./dom.js";
import { edits, go, setEdits, state, watch } from "./state.js";

export const verb = (e) => (e.action === "set" ? `set ${short(e.value)}` : e.action === "add" ? `${e.value < 0 ? "−" : "+"}${short(Math.abs(e.value))}` : e.value === 0 ? "off" : `×${short(e.value)}`);
const short = (x) => String(Number(x.toPrecision(4))).replace("-", "−");
const scope = (e) => (e.positions === "all" ? "everywhere" : e.positions === "last" ? "at the last token" : `at ${e.positions.length > 3 ? `${e.positions[0]} to ${e.positions.at(-1)}` : e.positions.join(", ")}`);

export function mount(el, page) {
  const draw = () => {
    const list = edits();
    el.hidden = !list.length;
    if (!list.length) return;
    const any = list.some((e) => e.on);
    fill(el, h("div", { class: "tray-head" },
      h("h2", {}, `${list.length} edit${list.length > 1 ? "s" : ""}`),
      list.map((e, i) => h("span", { class: e.on ? "chip" : "chip off" },
        h("b", {}, `${e.target === "head" ? "L" + e.layer + "H" : "L" + e.layer + "M"}${e.index}`),
        h("span", { class: "verb" }, verb(e)), h("span", { class: "faint" }, scope(e)),
        button(e.on ? "●" : "○", () => change(i, { on: !e.on }), { "aria-label": e.on ? "Switch this edit off" : "Switch this edit on", title: "On or off" }),
        button("×", () => setEdits(list.filter((_, j) => j !== i)), { "aria-label": "Remove this edit", title: "Remove" }))),
      h("span", { class: "spacer" }),
      button(any ? "Bypass all" : "Switch all on", () => setEdits(list.map((e) => ({ ...e, on: !any }))), { class: "btn small" }),
      button("Run and compare", () => go({ screen: "intervene" }), { class: "btn small main" }),
    ));
  };
  const change = (i, part) => setEdits(edits().map((e, j) => (i === j ? { ...e, ...part } : e)));
  watch((now, before) => (now.iv !== before.iv || now.off !== before.off) && draw());
  draw();
  void page;
  void state;
}

/** Add an edit, or replace the one of the same place. */
export function add(edit) {
  const rest = edits().filter((e) => !(e.target === edit.target && e.layer === edit.layer && e.index === edit.index && e.action === edit.action));
  setEdits([...rest, { positions: "all", on: true, ...edit }], { push: false });
}
