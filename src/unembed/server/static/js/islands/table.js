/** Tables of nodes, texts and numbers. */
import { h } from "./nodes.js";
import { grouped, num } from "./numbers.js";

/** A cell that holds a number, which is aligned at the right. */
export const numberCell = (x) => h("td.n", x);
const isNumeric = (x) => typeof x === "number" || !!x?.classList?.contains("n");

/** A table without a heading where `head` is null; a row is a list of cells, or an element. */
export function bareTable(selector, head, rows, ...captions) {
  const td = (x) => {
    if (typeof x === "number") return numberCell(Number.isInteger(x) ? grouped(x) : num(x));
    return /^T[DH]$/.test(x?.tagName) ? x : h("td", x);
  };
  const th = (x, i) => {
    if (x === "") return h("td");
    return x?.tagName === "TH" ? x : h("th", { scope: "col", class: isNumeric(rows[0]?.[i]) && "n" }, x);
  };
  return h(selector, [
    captions,
    head && h("thead", h("tr", head.map(th))),
    h("tbody", [rows.map((row) => (Array.isArray(row) ? h("tr", row.map(td)) : row))]),
  ]);
}
