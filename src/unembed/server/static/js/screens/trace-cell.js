/** The inspector's content: one cell in detail, or the joint update of several layers. */
import { button, fill, h, many, num, part, signed, sumOf, tickBox } from "../dom.js";
import { token } from "../islands/tokens.js";
import { lastUpdate, mixersOf } from "../names.js";
import { candidates } from "../parts.js";
import { inWords } from "../question.js";
import { go, state, turn } from "../state.js";
import { ORDERS, ranked, updatesTable } from "../updates.js";

const onpick = (c) => turn({ token: `#${c.id}` });
const updates = (rows, view) => h("div", updatesTable(rows, view, { order: state().sort }));
const byWhat = () => `by ${ORDERS[state().sort][0].toLowerCase()}`;

function head({ data, view }, title) {
  const { position } = view;
  const where = ["at ", token(data.tokens[position].token), ` position ${position}; effects on `, inWords(view)];
  return h("div", h("h2", title), h("p.soft", where));
}

const warnings = (layers) => layers.flatMap((one) => one.events).map((e) => h("p.warn", e.sentence));

/** Show the joint update of several layers at the position. */
export function drawSpan(el, t, [a, b]) {
  const { view, model } = t;
  const layers = view.layers.slice(a, b + 1);
  const [low, high] = [layers[0], layers.at(-1)];
  const { rows: writers, logit, others } = view.attributions[0];
  const inside = writers.filter((row) => row.layer !== null && row.layer >= a && row.layer <= b);
  const given = (ffn) => {
    const rows = inside.filter((row) => row.label.startsWith("ffn") === ffn);
    return signed(sumOf(rows, (row) => row.contribution));
  };
  const mixers = mixersOf(model) === "attention" ? "attention adds" : "mixers add";
  const all = layers.flatMap((one) => one.sub_updates);
  const active = all.filter((u) => !u.always_on);
  const strongest = [...ranked(active, state().sort).slice(0, 8), ...all.filter((u) => u.always_on)];
  const first = `${byWhat()}, among the first five of each layer`;
  fill(el, [
    head(t, `Layers ${a} to ${b}, together`),
    h("div.row", [
      tickBox("Only these layers in the grid", !!state().only, (on) => turn({ only: on ? "1" : "" })),
      button("One layer", () => turn({ layers: "", only: "" }), "quiet", { title: "Esc" }),
    ]),
    h("div.sandwich", [
      part(`Before layer ${a}`, candidates(low.before, { onpick, rank: low.rank_before })),
      part(`After layer ${b}`, candidates(high.after, { before: low.before, onpick, rank: high.rank_after })),
    ]),
    h("p", [
      ["Of ", h("b", num(logit)), ", ", inWords(view)],
      `, their ${mixers} ${given(false)}, their FFNs ${given(true)}`,
      others ? ", counting the writers listed." : ".",
    ]),
    warnings(layers),
    strongest.length > 0 && part("Sub-updates of these layers", updates(strongest, view), h("p.faint", first)),
  ]);
}

/** Show the update of one layer at the position: that of its mixer if `isMid`, else of its FFN. */
export function drawCell(el, t, n, isMid) {
  const { view, model } = t;
  const one = view.layers[n];
  const mid = isMid && one.middle;
  const before = mid || !one.middle ? one.before : one.middle;
  const rank = mid ? one.rank_before : (one.rank_middle ?? one.rank_before);
  const after = { before, onpick, rank: mid ? one.rank_middle : one.rank_after };
  const first = `The first of ${many(model.memories[one.layer], "memory", "memories")} (FFN neurons), ${byWhat()}`;
  const open = () => go({ screen: "layer", layer: String(one.layer), position: String(view.position) });
  fill(el, [
    head(t, `Layer ${one.layer}, ${mid ? model.mixers[one.layer] : lastUpdate(model, one.layer)}`),
    h("div.sandwich", [
      part("Before", candidates(before, { onpick, rank })),
      part("After", candidates(mid ? one.middle : one.after, after)),
    ]),
    warnings([one]),
    one.sub_updates.length
      ? part("Sub-updates of the FFN", updates(one.sub_updates, view), h("p.faint", first))
      : model.can.events && h("p.note", "No sub-updates here."),
    button("Open this layer", open, "btn"),
  ]);
}
