/** The logit, or the difference of two, as a sum of writers: by component, head, memory or source token. */
import { boxes, fill, h, many, num, sumOf, tickBox } from "../dom.js";
import { attribution, card, choice, dimming, effectsTable } from "../parts.js";
import { inWords, questionQuery } from "../question.js";
import { state, turn } from "../state.js";
import { ORDERS, updatesTable } from "../updates.js";

/** In a model with more layers, the chart of ranks needs the whole width for its markers, and is below this pane. */
const ABREAST = 8;

/** Make the card; `live()` replaces the bundled example by a live trace, and returns whether it did. */
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

const totalEffects = ({ rows }, view) => [
  effectsTable(rows),
  h("p.faint", [
    "Direct effect: what the writer adds. Total effect: by how much ",
    inWords(view),
    " falls when that writer alone is set to 0 at this position and later layers react.",
  ]),
];

/** Show the heads with the largest effects, what was measured without each, and the sum of all others. */
function drawHeads(box, view) {
  const { rows, others, others_effect } = view.heads;
  const after = [[many(others, "other head"), others_effect]];
  const sum = sumOf(rows, (row) => row.effect) + others_effect;
  const heads = rows.map((row) => ({ ...row, index: row.head, score: row.effect }));
  fill(box, updatesTable(heads, view, { after }), sumLine(sum, "heads", view));
}

/** The sum of all writers of a kind, and the logit or difference that all writers add up to. */
function sumLine(sum, kind, view) {
  const all = h("b", num(view.attributions[0].total));
  const text = ["Sum ", h("b", num(sum)), ` of all ${kind}; with the other writers `, all, " = ", inWords(view)];
  return h("p.row.soft", h("span", text));
}

/** Show the memories with the largest effects, and the sum of all others. */
function drawMemories(box, view) {
  const { rows, always_on, others, others_effect, total } = view.memories;
  const { sort: order } = state();
  const rest = many(others, "other active memory", "other active memories");
  const after = [[rest, order === "effect" ? others_effect : null]];
  fill(box, updatesTable([...rows, ...always_on], view, { order, after }), sumLine(total, "memories", view));
}
