/**
 * Bars: one list of labelled bars on one scale, to the right for positive numbers and to the left for negative ones.
 *
 * mount(el, {rows: [{label, value, text, title, cls, pick}], signed, least}, {onpick})
 *   `label` is a text or a node; `text` is the number as shown; `least` is the smallest value of a bar of full
 *   length; a row without `pick: false` is a button.
 */
import { fill, h } from "./nodes.js";

export function mount(el, { rows, signed = false, least = 1e-12 }, options = {}) {
  const most = Math.max(...rows.map((row) => Math.abs(row.value)), least);
  const bar = ({ value }) => {
    const minus = value < 0;
    const width = `${(Math.abs(value) / most) * (signed ? 50 : 100)}%`;
    const style = { width, ...(signed && { [minus ? "right" : "left"]: "50%" }) };
    return h("span", { class: minus ? "bar minus" : "bar plus", style });
  };
  const line = (row, i) => {
    const live = options.onpick && row.pick !== false;
    const props = { type: live && "button", title: row.title, onclick: () => live && options.onpick(row, i) };
    return h("li", { class: row.cls }, [
      h(live ? "button.bar-row" : "div.bar-row", props, [
        h("span.bar-label", row.label),
        h("span.bar-track", bar(row)),
        h("span.bar-number", row.text),
      ]),
    ]);
  };
  fill(el, h("ol", { class: signed ? "bars signed" : "bars" }, rows.map(line)));
}
