/**
 * A heat map of signed fractions, by row and column: blue towards 1, orange below 0.
 *
 * mount(el, {values: [[number]], rows: [text], columns: [{text, differs}], chosen: [row, column], label, name(row,
 * column)}, {onpick(row, column)})
 *   rows are drawn from the bottom up; `name` is the sentence of a cell; `numbers` [[number]] are written in the cells
 *   instead of the values that shade them.
 */
import { clamp, fixed } from "./numbers.js";
import { columnHeader, square, squares } from "./squares.js";
import { token } from "./tokens.js";

/** The most columns for which numbers are written in the cells. */
const NUMBERED = 16;

/** The class that shades a fraction. */
export const shade = (x) => (x < -0.005 ? `w${Math.ceil(6 * Math.min(1, -x))}` : `q${Math.round(16 * clamp(x, 0, 1))}`);

export function mount(el, data, options = {}) {
  const { values, rows, columns, chosen, numbers = values } = data;
  const numbered = columns.length <= NUMBERED;
  const last = [values.length - 1, columns.length - 1];
  const cell = (x, r, c) => {
    const isAt = (at) => at?.[0] === r && at?.[1] === c;
    const here = isAt(chosen);
    const onclick = () => options.onpick?.(r, c);
    const text = numbered ? fixed(numbers[r][c], 2) : "";
    const cls = `${shade(x)}${here ? " on" : ""}`;
    const el = square(`${r}.${c}`, data.name(r, c), cls, isAt(chosen ?? last), onclick, text);
    el.setAttribute("aria-selected", String(here));
    return el;
  };
  el.style.setProperty("--columns", String(columns.length));
  const heading = ({ text, differs }) => columnHeader(token(text), differs ? "differs" : "");
  squares(el, {
    cls: numbered ? "patches" : "patches dense",
    label: data.label,
    head: [columnHeader(""), columns.map(heading)],
    rows: values.map((row, r) => [rows[r], row.map((x, c) => cell(x, r, c))]),
  });
}
