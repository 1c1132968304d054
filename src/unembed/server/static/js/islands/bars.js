/**
 * Bars: one list of labelled bars on one scale, to the right for positive numbers and to the left for negative ones.
 *
 * mount(el, {rows: [{label, value, text, title, cls}], signed, least}, {onpick}) -> {update, destroy}
 *   `label` is a text or a node; `text` is the number as shown; `least` is the smallest value of a bar of full
 *   length.
 */
import { fill, h } from "./nodes.js";

export function mount(el, data, options = {}) {
  const update = ({ rows, signed, least = 1e-12 }) => {
    const most = Math.max(...rows.map((row) => Math.abs(row.value)), least);
    const drawn = rows.map((row, i) => {
      const live = options.onpick && row.pick !== false;
      const minus = row.value < 0;
      const width = `${(Math.abs(row.value) / most) * (signed ? 50 : 100)}%`;
      return h("li", { class: row.cls }, [
        h(
          live ? "button" : "div",
          { class: "bar-row", type: live && "button", title: row.title, onclick: () => live && options.onpick(row, i) },
          [
            h("span.bar-label", row.label),
            h("span.bar-track", [
              h("span", {
                class: minus ? "bar minus" : "bar plus",
                style: { width, ...(signed && { [minus ? "right" : "left"]: "50%" }) },
              }),
            ]),
            h("span.bar-number", row.text),
          ],
        ),
      ]);
    });
    fill(el, h("ol", { class: signed ? "bars signed" : "bars" }, drawn));
  };
  update(data);
  return { update, destroy: () => fill(el) };
}
