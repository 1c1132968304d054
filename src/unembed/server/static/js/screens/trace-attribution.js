/** The logit, or the difference of two, as a sum of writers: by component, head, memory or source token. */
import { boxes, fill, h, many, num, sumOf, tickBox } from "../dom.js";
import { attribution, card, choice, dimming, effectsTable } from "../parts.js";
import { inWords, questionQuery } from "../question.js";
import { state, turn } from "../state.js";
import { ORDERS, updatesTable } from "../updates.js";

/** With more layers the chart next to this pane has no room for the markers of its events: one is below the other. */
const ABREAST = 8;

/** `live()`: replaces the bundled example by a live trace; whether it did. `{el, draw}` */
export function attributionPane(t, { api, live }) {
  const [box] = boxes("div");
  const memory = t.model.can.memories && { memory: "Memory" };
  const by = choice("Split by", "by", { component: "Component", head: "Head", ...memory, source: "Source" });
  const orders = ["effect", "deviation"].map((name) => [name, ...ORDERS[name]]);
  const order = choice("Rank memories by", "sort", orders);
  order.hidden = state().by !== "memory";
  const totals = tickBox("Total effects", !!state().effects, (on) => turn({ effects: on ? "total" : "" }));

  async function draw() {
    const { data, view } = t;
    const { by: split, effects } = state();
    order.hidden = split !== "memory" || !!effects;
    totals.hidden = split === "source"; // an ablated head loses all its sources
    totals.querySelector("input").checked = !!effects;
    box.closest(".two").classList.toggle("long", split === "memory" || t.model.n_layers > ABREAST);
    const ask = (what) => {
      const query = { ...questionQuery(), token: `#${view.target.id}`, position: view.position, by: split, top: 14 };
      return api.get(`/traces/${data.id}/${what}`, query, { channel: "attribution" });
    };
    const isTotal = effects && split !== "source";
    if (!isTotal && split === "component") attribution(box, view.attributions[0], data.tokens);
    else if (!isTotal && split === "memory" && view.memories) drawMemories(box, view);
    else if (!isTotal && split === "head" && view.heads?.rows.some((one) => one.without !== null)) drawHeads(box, view);
    else if (live()) return;
    else if (isTotal) await dimming([box], box, async () => fill(box, totalEffects(await ask("effects"), view)));
    else
      await dimming([box], box, async () => attribution(box, (await ask("attribution")).attributions[0], data.tokens));
  }

  return { el: card("Logit attribution", [by, order, totals], box), draw };
}

/** The direct effects of the largest writers, and the effect of ablating each. */
const totalEffects = ({ rows }, view) => [
  effectsTable(rows),
  h("p.faint", [
    "Direct effect: what the writer adds. Total effect: by how much ",
    inWords(view),
    " falls when that writer alone is set to 0 at this position and later layers react.",
  ]),
];

/** The heads with the largest effects, each with what was measured without it, and the sum of all others. */
function drawHeads(box, view) {
  const { rows, others, others_effect } = view.heads;
  const list = h("div");
  const after = [[many(others, "other head"), others_effect]];
  const sum = sumOf(rows, (row) => row.effect) + others_effect;
  updatesTable(
    list,
    rows.map((row) => ({ ...row, index: row.head, score: row.effect })),
    view,
    { after },
  );
  fill(box, [list, sumLine(sum, "heads", view)]);
}

/** The sum of all writers of a kind, next to what is explained. */
const sumLine = (sum, kind, view) =>
  h("p.row.soft", [
    h("span", [
      ["Sum ", h("b", num(sum)), ` of all ${kind}; with the other writers `],
      [h("b", num(view.attributions[0].total)), " = ", inWords(view)],
    ]),
  ]);

/** The memories with the largest effects, the always-on ones folded, and the sum of all others. */
function drawMemories(box, view) {
  const { rows, always_on, others, others_effect, total } = view.memories;
  const list = h("div");
  const rest = many(others, "other active memory", "other active memories");
  const { sort: order } = state();
  updatesTable(list, [...rows, ...always_on], view, {
    order,
    after: [[rest, order === "effect" ? others_effect : null]],
  });
  fill(box, [list, sumLine(total, "memories", view)]);
}
