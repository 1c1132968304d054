/** A popover with the top five of the cell under the pointer; it stays open while the pointer is on it. */
import { h, percent, shownRank } from "../dom.js";
import * as bars from "../islands/bars.js";
import { token } from "../islands/tokens.js";

/** `onpick(id)` is called when a token in it is clicked. */
export function popover(onpick) {
  let pop = null;
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
    const list = stage.ids[i][c].map((id, k) => ({
      label: token(data.texts[id]),
      value: stage.probabilities[i][c][k],
      text: percent(stage.probabilities[i][c][k]),
      id,
      title: "pin: follow it in Token rank by layer",
    }));
    const body = h("div");
    bars.mount(body, { rows: list, signed: false }, { onpick: (row) => onpick(row.id) });
    pop = h("div", { id: "pop", role: "tooltip" }, [
      h("h2", `${title}, position ${c}`),
      body,
      h("p.faint", [
        "final prediction ",
        token(data.texts[data.prediction[c]]),
        ` at rank ${shownRank(stage.rank_of_prediction[i][c])}`,
      ]),
    ]);
    const box = cell.getBoundingClientRect();
    pop.style.left = `${Math.min(box.left, innerWidth - 262) + scrollX}px`;
    pop.style.top = `${box.bottom + scrollY + 6}px`;
    pop.addEventListener("pointerenter", () => clearTimeout(timer));
    pop.addEventListener("pointerleave", hide);
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
