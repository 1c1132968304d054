/** The logit, or the difference of two, as a sum of writers: by component, head, memory or source token. */
import { fill, h, many, num, segmented, tickBox } from "../dom.js";
import { attribution, card, effectsTable, pane } from "../parts.js";
import { inWords, questionQuery } from "../question.js";
import { state, turn } from "../state.js";
import { ORDERS, updatesTable } from "../updates.js";

/** With more layers the chart next to this pane has no room for the markers of its events: one is below the other. */
const ABREAST = 8;

/** `live()`: replaces the bundled example by a live trace; whether it did. `{el, draw}` */
export function attributionPane(t, { api, live }) {
  const box = h("div");
  const by = segmented(
    "Split by",
    [
      ["component", "Component"],
      ["head", "Head"],
      ...(t.model.can.memories ? [["memory", "Memory"]] : []),
      ["source", "Source"],
    ],
    state().by,
    (value) => turn({ by: value }),
  );
  const order = segmented(
    "Rank memories by",
    ["effect", "deviation"].map((name) => [name, ...ORDERS[name]]),
    state().sort,
    (sort) => turn({ sort }),
  );
  order.hidden = state().by !== "memory";
  const totals = tickBox("Total effects", !!state().effects, (on) => turn({ effects: on ? "total" : "" }));

  async function draw() {
    const { data, view } = t;
    const split = state().by;
    order.hidden = split !== "memory" || !!state().effects;
    totals.hidden = split === "source"; // an ablated head loses all its sources
    totals.querySelector("input").checked = !!state().effects;
    box.closest(".two").classList.toggle("long", split === "memory" || t.model.n_layers > ABREAST);
    if (state().effects && split !== "source") return totalEffects(split);
    if (split === "component") return attribution(box, view.attributions[0], data.tokens);
    if (split === "memory" && view.memories) return memories(view.memories, view.attributions[0]);
    if (live()) return;
    await pane(box, async () => {
      const { attributions } = await api.get(
        `/traces/${data.id}/attribution`,
        { ...questionQuery(), token: `#${view.target.id}`, position: view.position, by: split, top: 14 },
        { channel: "attribution" },
      );
      attribution(box, attributions[0], data.tokens);
    });
  }

  /** The direct effects of the largest writers, and the effect of ablating each. */
  async function totalEffects(split) {
    if (live()) return;
    const { data, view } = t;
    await pane(box, async () => {
      const { rows } = await api.get(
        `/traces/${data.id}/effects`,
        { ...questionQuery(), token: `#${view.target.id}`, position: view.position, by: split, top: 14 },
        { channel: "attribution" },
      );
      fill(box, [
        effectsTable(rows),
        h("p.faint", [
          "Direct effect: what the writer adds. Total effect: by how much ",
          inWords(view),
          " falls when that writer alone is set to 0 at this position and later layers react.",
        ]),
      ]);
    });
  }

  /** The memories with the largest effects, the always-on ones folded, and the sum of all others. */
  function memories({ rows, always_on, others, others_effect, total }, whole) {
    const list = h("div");
    const rest = many(others, "other active memory", "other active memories");
    updatesTable(list, [...rows, ...always_on], t.view, {
      order: state().sort,
      after: [[rest, state().sort === "effect" ? others_effect : null]],
    });
    fill(box, [
      list,
      h("p.row.soft", [
        h("span", [
          "Sum ",
          h("b", num(total)),
          " of all memories; with the other writers ",
          h("b", num(whole.total)),
          " = ",
          inWords(t.view),
        ]),
      ]),
    ]);
  }

  return { el: card("Logit attribution", [by, order, totals], box), draw };
}
