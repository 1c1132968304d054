/**
 * A heat map of signed fractions, by row and column: blue towards 1, orange below 0.
 *
 * mount(el, {values: [[number]], rows: [text], columns: [{text, differs}], chosen: [row, column], label, name(row,
 * column)}, {onpick(row, column)})
 *   rows are drawn from the bottom up; `name` is the sentence of a cell; `numbers` [[number]] are written in the cells
 *   instead of the values that shade them.
 */
import { fill, h, moveFocus } from "./nodes.js";
import { token } from "./tokens.js";

/** The most columns for which numbers are written in the cells. */
const NUMBERED = 16;

/** The class that shades a fraction. */
export const shade = (x) =>
  x < -0.005 ? `w${Math.ceil(6 * Math.min(1, -x))}` : `q${Math.round(16 * Math.min(1, Math.max(0, x)))}`;

export function mount(el, data, options = {}) {
  const { values, rows, columns, chosen, numbers = values } = data;
  const numbered = columns.length <= NUMBERED;
  el.className = numbered ? "patches" : "patches dense";
  el.setAttribute("role", "grid");
  el.setAttribute("aria-label", data.label);
  el.style.setProperty("--columns", String(columns.length));
  const head = h("div.line", { role: "row" }, [
    h("span", { role: "columnheader" }, ""),
    columns.map((column) =>
      h("span", { role: "columnheader", class: column.differs ? "differs" : "" }, token(column.text)),
    ),
  ]);
  const lines = values.map((row, r) =>
    h("div.line", { role: "row" }, [
      h("span", { role: "rowheader" }, rows[r]),
      row.map((x, c) => {
        const here = chosen?.[0] === r && chosen?.[1] === c;
        const name = data.name(r, c);
        return h(
          "button",
          {
            type: "button",
            role: "gridcell",
            class: `${shade(x)}${here ? " on" : ""}`,
            tabindex: here || (!chosen && r === values.length - 1 && c === columns.length - 1) ? 0 : -1,
            data: { at: `${r}.${c}` },
            title: name,
            "aria-label": name,
            "aria-selected": String(here),
            onclick: () => options.onpick?.(r, c),
          },
          [numbered ? numbers[r][c].toFixed(2).replace("-0.00", "0.00").replace("-", "−") : ""],
        );
      }),
    ]),
  );
  fill(el, head, lines.reverse());
  el.onkeydown = moveFocus;
}
