/** What the weights say of a memory: its figures, and the tokens that its value promotes and suppresses. */
import { architecture } from "../architecture.js";
import { announce, button, drawn, fill, grouped, h, num, sumOf } from "../dom.js";
import * as histogram from "../islands/histogram.js";
import { visible } from "../islands/tokens.js";
import { about, answered, asTable, card, loading, tokenLists } from "../parts.js";
import { MOST_PINS, memoryPath, pinned, turn } from "../state.js";

/** How many tokens are loaded from each end of a value's scores. */
export const TOP = 50;

/**
 * The row of figures: those from the weights, and in `more` boxes for those from a prompt, an index or a cluster.
 */
export function figures(model, view, more = {}) {
  const place = h("span.spark");
  architecture(place, { model, at: { layer: view.layer, part: "ffn" } });
  const all = {
    "coefficient on the prompt": more.here,
    "effect (logits)": more.effect,
    "active on": model.can.index && more.density,
    "value norm": h("dd", num(view.norm)),
    cluster: model.can.index && more.cluster,
    layer: h("dd", view.layer, h("small", ` (0 to ${model.n_layers - 1})`), place),
  };
  return h("dl.figures", [Object.entries(all).map(([name, box]) => box && h("div", h("dt", name), box))]);
}

/** A memory's view at the sign of its id: a negative coefficient exchanges what its value promotes and suppresses. */
export function atSign(view) {
  if (view.pole !== "negative") return view;
  const negated = (list) => list.map((r) => ({ ...r, score: -r.score }));
  const [promoted, suppressed] = [negated(view.suppressed), negated(view.promoted)];
  const [edges, counts] = [view.edges.map((x) => -x).reverse(), view.counts.slice().reverse()];
  return { ...view, promoted, suppressed, edges, counts };
}

/** The tokens at both ends of the value's scores; a click pins a token. */
export function ends(view, n = 12) {
  const lists = Object.entries({ Promotes: view.promoted.slice(0, n), Suppresses: view.suppressed.slice(0, n) });
  return h("div.two", tokenLists(lists, { onpick: (r) => pin(r.id) }));
}

function pin(id) {
  turn({ pins: [...new Set([...pinned(), String(id)])].slice(-MOST_PINS).join(" ") });
  announce("pinned");
}

/** Whether adding the value raises the tokens listed, in words, and a button that measures it. */
function truthLine(view, api) {
  const box = h("div");
  const read = (what) => api.get(`${memoryPath(view)}/${what}`, { pole: view.pole ?? "" }, { channel: "truth" });
  const measure = () => {
    fill(box, loading("Adding the value to 24 passages", 1));
    answered(box, () => read("truth/measured"), draw);
  };
  const title = "Some seconds; minutes for a large model";
  const start = button("Measure", measure, "quiet", { title });
  const draw = ({ of, words, borne_out: isTrue }) =>
    h("p", { class: isTrue === false ? "warn" : "faint" }, words, " ", of !== "memory" && start);
  answered(box, () => read("truth"), draw);
  return box;
}

/** The card with the tokens at both ends of the value's scores, and a histogram of all scores. */
export function vocabularyCard(view, api) {
  let more = false;
  const lists = h("div.compact");
  const copy = (end) =>
    navigator.clipboard.writeText(view[end].map((r) => r.token).join("\n")).then(() => announce("copied"), api.fail);
  const draw = () =>
    fill(lists, [
      ends(view, more ? TOP : 10),
      h("p.row", [
        button(more ? "Fewer" : `Show ${TOP}`, () => ((more = !more), draw()), "quiet"),
        ["promoted", "suppressed"].map((end) => button(`Copy ${end}`, () => copy(end), "quiet")),
      ]),
    ]);
  draw();
  const counted = grouped(sumOf(view.counts, Number));
  const data = { ...view, marks: [], label: `Scores of all ${counted} tokens, heights logarithmic` };
  const row = (i) => [view.promoted[i], view.suppressed[i]].flatMap(({ token, score }) => [visible(token), score]);
  const way = { jacobian: "by the lens fitted on text" }[view.provenance.basis] ?? "by the logit lens (W_U alone)";
  const sign = view.pole === "negative" ? ", at a coefficient of −1" : "";
  const note = `projected ${way}${sign}; click a token to pin it in Trace`;
  return card("Effect of the value on the vocabulary", h("span.faint", note), [
    lists,
    truthLine(view, api),
    h("h3", "Scores of all tokens"),
    drawn(histogram.mount, data),
    about("memory"),
    asTable(["promoted", "score", "suppressed", "score"], () => [...view.promoted.keys()].map(row), "All as a table"),
  ]);
}
