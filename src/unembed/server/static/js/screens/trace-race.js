/** Token rank by layer: ranks or probabilities of tokens, with one lane for each kind of event. */
import { boxes, button, fill, grouped, h, percent } from "../dom.js";
import * as ranks from "../islands/ranks.js";
import { visible } from "../islands/tokens.js";
import { mixersOf } from "../names.js";
import { asTable, card, choice } from "../parts.js";
import { pinned, state, turn } from "../state.js";

/** The lanes: sign, name, and whether an event belongs in the lane; it is drawn in the first of them.
 * @type {[string, string, (event: any) => boolean][]}
 */
const LANES = [
  ["◆", "saturation", (e) => e.kind === "saturation"],
  ["✕", "elimination", (e) => e.kind === "elimination"],
  ["", "mixer", (e) => e.cause === "attention" || e.cause === "mixer"],
  ["", "FFN", () => true],
];

/** Make the card; `trajectories(ids)` loads those of tokens at the position, or is null where an example is shown. */
export function race(t, { layer, trajectories }) {
  const [lines, lanes, eventSentence, notes] = boxes("div", "div.lanes", "p.told.soft", "div");
  /** @type {any} */ let chart = null;

  async function draw() {
    const { view, data, model } = t;
    const pins = pinned();
    const found = pins.length ? await trajectories(pins) : null;
    const series = [targetLine(view), ...(found?.tokens ?? []).map(pinnedLine)];
    const layers = view.layers.map((one) => String(one.layer));
    const shown = { series, layers, size: model.d_vocab, at: layer(), probability: state().scale === "p" };
    chart = ranks.mount(lines, shown, { onpick: (n) => turn({ layer: String(n), stage: "post" }) });
    const events = [...data.events.filter((e) => e.position === view.position), ...view.moves];
    const show = (e) => (eventSentence.textContent = e.sentence);
    fill(lanes, lanesOf(model, events, chart, show));
    const none = "Events are those of FFN updates, and this model has none.";
    eventSentence.textContent = events[0]?.sentence ?? (model.can.events ? "No event at this position." : none);
    fill(notes, notesOf(view, series, pins));
  }

  const scale = choice("Scale", "scale", { "": "Rank", p: "Probability" });
  const el = card("Token rank by layer", scale, lines, lanes, eventSentence, notes);
  return { el, lines, draw, at: (n) => chart?.at(n) };
}

const targetLine = ({ target, layers }) => ({
  id: target.id,
  name: target.token,
  ranks: layers.map((one) => one.rank_after),
  probabilities: layers.map((one) => one.probability_after),
});

const pinnedLine = ({ id, token: name, points: { resid_post: one } }) => ({
  id,
  name,
  ranks: one.ranks.flat(),
  probabilities: one.probabilities.flat(),
});

/** Where tokens cross, buttons for pins, and the numbers as a table. */
function notesOf(view, series, pins) {
  const rival = view.against ?? view.prediction.find((c) => c.id !== view.target.id);
  const compare = () =>
    button(`Compare with ${visible(rival.token)}`, () => turn({ pins: String(rival.id) }), "quiet", {
      title: "Pin this token as well: the layer at which the two cross is marked",
    });
  const head = ["layer", ...series.flatMap((one) => [`rank of ${visible(one.name)}`, "probability"])];
  const row = ({ layer }, i) => [layer, ...series.flatMap((one) => [one.ranks[i], one.probabilities[i]])];
  return [
    series.slice(1).map((other) => h("p", crossing(series[0], other))),
    h("div.row", [
      pins.length ? button("Clear pins", () => turn({ pins: "" }), "quiet") : compare(),
      h("span.faint", h("kbd", "p"), " or Shift and a click pins a cell's token"),
    ]),
    asTable(head, () => view.layers.map(row)),
  ];
}

/** A lane of markers for each kind of event, aligned with the layers of the chart. */
function lanesOf(model, events, chart, show) {
  const marker = (e, sign) => {
    const select = () => turn({ layer: String(e.layer), stage: e.cause === "ffn" ? "post" : "mid" });
    return button(sign || (e.kind === "rise" ? "▲" : "▼"), select, "marker", {
      style: { left: chart.x(e.layer) },
      title: e.sentence,
      "aria-label": e.sentence,
      onfocus: () => show(e),
      onpointerenter: () => show(e),
    });
  };
  return LANES.map(([sign, kind], i) => {
    const here = events.filter((e) => LANES.findIndex(([, , of]) => of(e)) === i);
    const name = kind === "mixer" ? mixersOf(model) : kind;
    const marks = here.map((e) => marker(e, sign));
    return here.length > 0 && h("div.lane", { role: "group", "aria-label": name }, h("span.faint", name), marks);
  });
}

/** The layer at which one of two tokens overtakes the other for good. */
function crossing(one, other) {
  const ahead = one.ranks.map((r, i) => r < other.ranks[i]);
  const end = ahead.at(-1);
  const since = ahead.lastIndexOf(!end) + 1;
  const [first, second] = end ? [one, other] : [other, one];
  const at = since || ahead.length - 1;
  return (
    `${visible(first.name)} ${since ? "passes" : "is ahead of"} ${visible(second.name)} ` +
    `${since ? `for good in layer ${since}` : "after every layer"}: after layer ${at}, rank ` +
    `${grouped(first.ranks[at])} against ${grouped(second.ranks[at])}, ${percent(first.probabilities[at])} ` +
    `against ${percent(second.probabilities[at])}.`
  );
}
