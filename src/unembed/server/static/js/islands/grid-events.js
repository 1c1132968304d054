/** What the pointer and the keys do in the grid. */
import { ROW } from "./grid-cells.js";
import { consume } from "./nodes.js";
import { within } from "./numbers.js";

const closest = (event, selector) =>
  /** @type {HTMLElement} */ (/** @type {Element} */ (event.target).closest(selector));

/** Row and column of the cell at an event, or null. */
function cellOf(event) {
  const cell = closest(event, ".cell");
  return cell ? [Number(cell.dataset.r), Number(cell.dataset.c)] : null;
}

/** Listen to the grid; `pick(row, column, tell)` selects a cell. */
export function listen(g, pick) {
  const { body, head, options } = g;
  body.addEventListener("click", (event) => {
    const found = cellOf(event);
    if (found && event.shiftKey && options.onpin) options.onpin(...found);
    else if (found) pick(...found, true);
  });
  body.addEventListener("dblclick", (event) => {
    const found = cellOf(event);
    if (found) options.onopen?.(...found);
  });
  body.addEventListener("pointerover", (event) => {
    const found = event.pointerType === "touch" ? null : cellOf(event);
    if (found) options.onhover?.(...found, closest(event, ".cell"));
  });
  body.addEventListener("pointerleave", () => options.onhover?.(-1, -1, null));
  head.addEventListener("click", (event) => {
    const column = closest(event, "[data-c]");
    if (!column) return;
    const c = Number(column.dataset.c);
    if (event.shiftKey && options.onpincolumn) options.onpincolumn(c);
    else pick(g.at[0], c, true);
  });
  if (options.onrange) listenToRanges(g, pick);
  body.addEventListener("pointerup", () => g.el.focus({ preventScroll: true }));
  g.el.addEventListener("keydown", onkey(g, pick));
}

/** Let rows be chosen by dragging over their labels. */
function listenToRanges(g, pick) {
  const { body, options } = g;
  /** @type {any} */ let dragged = null; // the row where it began, and whether another was reached
  const rowAt = (event) =>
    within(Math.floor((event.clientY - body.getBoundingClientRect().top) / ROW), g.data.rows.length);
  body.addEventListener("pointerdown", (event) => {
    if (event.button || !closest(event, ".grid-label")) return;
    body.setPointerCapture(event.pointerId);
    dragged = [rowAt(event), false];
    event.preventDefault();
  });
  body.addEventListener("pointermove", (event) => {
    if (!dragged) return;
    const r = rowAt(event);
    dragged[1] ||= r !== dragged[0];
    if (dragged[1]) tellRange(g, dragged[0], r);
  });
  body.addEventListener("pointerup", () => {
    if (dragged && !dragged[1]) {
      pick(dragged[0], g.at[1], true);
      options.onrange(null);
    }
    dragged = null;
  });
  body.addEventListener("pointercancel", () => (dragged = null));
}

const tellRange = (g, from, to) => g.options.onrange(Math.min(from, to), Math.max(from, to), to);

function onkey(g, pick) {
  let anchor = null; // the row where a range of rows began
  return (event) => {
    const { key, ctrlKey } = event;
    const [row, column] = g.at;
    const by = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (event.shiftKey && by && g.options.onrange) {
      anchor ??= row;
      pick(row + by, column, false);
      tellRange(g, anchor, g.at[0]);
      return consume(event);
    }
    if (key !== "Shift") anchor = null;
    const [lastRow, lastColumn] = [g.data.rows.length - 1, g.data.columns.length - 1];
    const moves = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      Home: [ctrlKey ? 0 : row, 0],
      End: [ctrlKey ? lastRow : row, lastColumn],
      PageUp: [row - 8, column],
      PageDown: [row + 8, column],
    };
    if (moves[key] && !event.altKey && !event.metaKey) pick(...moves[key], true);
    else if (key === "Enter" && g.options.onopen) g.options.onopen(row, column);
    else return;
    consume(event);
  };
}
