/** What a cell holds, while the pointer is on it: one popover, which stays when the pointer goes into it. */
import { h, percent, place } from "../dom.js";
import { token } from "../islands/tokens.js";
import * as bars from "../islands/bars.js";

/** `onpick(id)`: a token was chosen in it. */
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
  function show({ data }, { n, point }, c, cell) {
    hide();
    const one = data.stages.find((x) => x.point === point);
    const list = one.ids[n][c].map((id, k) => ({ label: token(data.texts[id]), value: one.probabilities[n][c][k], text: percent(one.probabilities[n][c][k]), id, title: "pin: follow it in the race" }));
    const body = h("div");
    bars.mount(body, { rows: list, signed: false }, { onpick: (row) => onpick(row.id) });
    pop = h("div", { id: "pop", role: "tooltip" }, h("h2", {}, `Layer ${n} ${point === "resid_post" ? "after FFN" : "after attention"}, position ${c}`), body, h("p", { class: "faint" }, "the answer ", token(data.texts[data.prediction[c]]), ` at place ${place(one.rank_of_prediction[n][c])}`));
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
      timer = cell ? setTimeout(show, 80, t, row, c, cell) : setTimeout(hide, 120);
    },
  };
}
