/** A popover with the top five of the cell under the pointer; it stays open while the pointer is on it. */
import { drawn, grouped, h, percent } from "../dom.js";
import * as bars from "../islands/bars.js";
import { token } from "../islands/tokens.js";

/** Make the popover; `onpick(id)` is called when a token in it is clicked. */
export function popover(onpick) {
  /** @type {any} */ let pop = null;
  let timer = 0;
  const hide = () => {
    clearTimeout(timer);
    const was = pop;
    was?.remove();
    pop = null;
    return !!was;
  };
  function show({ data }, { title, stage, i }, c, cell) {
    hide();
    const rows = stage.ids[i][c].map((id, k) => {
      const value = stage.probabilities[i][c][k];
      const label = token(data.texts[id]);
      return { label, value, text: percent(value), id, title: "pin: follow it in Token rank by layer" };
    });
    const final = token(data.texts[data.prediction[c]]);
    const box = cell.getBoundingClientRect();
    const left = `${Math.min(box.left, innerWidth - 262) + scrollX}px`;
    const style = { left, top: `${box.bottom + scrollY + 6}px` };
    const stay = () => clearTimeout(timer);
    pop = h("div", { id: "pop", role: "tooltip", style, onpointerenter: stay, onpointerleave: hide }, [
      h("h2", `${title}, position ${c}`),
      drawn(bars.mount, { rows, signed: false }, { onpick: (row) => onpick(row.id) }),
      h("p.faint", "final prediction ", final, ` at rank ${grouped(stage.rank_of_prediction[i][c])}`),
    ]);
    document.body.append(pop);
  }
  return {
    hide,
    over(t, row, c, cell) {
      clearTimeout(timer);
      timer = cell && row.stage ? setTimeout(show, 80, t, row, c, cell) : setTimeout(hide, 120);
    },
  };
}
