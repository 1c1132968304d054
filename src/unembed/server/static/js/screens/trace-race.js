/** Token rank by layer: ranks or probabilities of tokens, with one lane for each kind of event. */
import { button, fill, h, percent, segmented, shownRank } from "../dom.js";
import * as ranks from "../islands/ranks.js";
import { visible } from "../islands/tokens.js";
import { mixersOf } from "../names.js";
import { asTable, card } from "../parts.js";
import { state, turn } from "../state.js";

/** A sign, a name, and whether an event stands in the lane.
 * @type {[string, string, (event: any) => boolean][]}
 */
const LANES = [
  ["◆", "saturation", (e) => e.kind === "saturation"],
  ["✕", "elimination", (e) => e.kind === "elimination"],
  ["", "mixer", (e) => e.cause === "attention" || e.cause === "mixer"],
  ["", "FFN", () => true],
];

export const pinned = () => state().pins.split(" ").filter(Boolean).slice(0, 5);

/** `trajectories(ids)` returns the trajectories of tokens at the position, or a falsy value. */
export function race(t, { layer, trajectories }) {
  const lines = h("div");
  const lanes = h("div.lanes");
  const eventSentence = h("p.told.soft");
  const notes = h("div");
  const scale = segmented(
    "Scale",
    [
      ["", "Rank"],
      ["p", "Probability"],
    ],
    state().scale,
    (ys) => turn({ scale: ys }),
  );
  let chart = null;

  async function draw() {
    const { view, data, model } = t;
    const pins = pinned();
    const series = [
      {
        id: view.target.id,
        name: view.target.token,
        ranks: view.layers.map((one) => one.rank_after),
        probabilities: view.layers.map((one) => one.probability_after),
      },
    ];
    const found = pins.length ? await trajectories(pins) : null;
    if (found)
      series.push(
        ...found.tokens.map(({ id, token, points: { resid_post: one } }) => ({
          id,
          name: token,
          ranks: one.ranks.flat(),
          probabilities: one.probabilities.flat(),
        })),
      );
    chart = ranks.mount(
      lines,
      {
        series,
        layers: view.layers.map((one) => String(one.layer)),
        size: model.d_vocab,
        at: layer(),
        probability: state().scale === "p",
      },
      { onpick: (n) => turn({ layer: String(n), stage: "post" }) },
    );
    drawLanes(
      data.events.filter((e) => e.position === view.position),
      view.moves,
    );
    const rival = view.against ?? view.prediction.find((c) => c.id !== view.target.id);
    fill(notes, [
      series.slice(1).map((other) => h("p", crossing(series[0], other))),
      h("div.row", [
        pins.length
          ? button("Clear pins", () => turn({ pins: "" }), { class: "quiet" })
          : button(`Compare with ${visible(rival.token)}`, () => turn({ pins: String(rival.id) }), {
              class: "quiet",
              title: "Pin this token as well: the layer at which the two cross is marked",
            }),
        h("span.faint", h("kbd", "p"), " or Shift and a click pins a cell's token"),
      ]),
      asTable(
        "As a table",
        ["layer", ...series.flatMap((one) => [`rank of ${visible(one.name)}`, "probability"])],
        () => view.layers.map((one, i) => [one.layer, ...series.flatMap((s) => [s.ranks[i], s.probabilities[i]])]),
      ),
    ]);
  }

  /** One lane for each kind of event, aligned with the chart's layers; a marker shows its sentence. */
  function drawLanes(events, moves) {
    const showSentence = (e) => () => (eventSentence.textContent = e.sentence);
    const left = [...events, ...moves];
    fill(lanes, [
      LANES.map(([sign, name, of], i) => {
        const here = left.filter((e) => of(e) && LANES.findIndex((lane) => lane[2](e)) === i);
        return here.length
          ? h("div.lane", { role: "group", "aria-label": name === "mixer" ? mixersOf(t.model) : name }, [
              h("span.faint", name === "mixer" ? mixersOf(t.model) : name),
              here.map((e) =>
                h(
                  "button",
                  {
                    type: "button",
                    class: "marker",
                    style: { left: chart.x(e.layer) },
                    title: e.sentence,
                    "aria-label": e.sentence,
                    onclick: () => turn({ layer: String(e.layer), stage: e.cause === "ffn" ? "post" : "mid" }),
                    onfocus: showSentence(e),
                    onpointerenter: showSentence(e),
                  },
                  [sign || (e.kind === "rise" ? "▲" : "▼")],
                ),
              ),
            ])
          : null;
      }),
    ]);
    eventSentence.textContent = left.length
      ? left[0].sentence
      : t.model.can.events
        ? "No event at this position."
        : "Events are those of FFN updates, and this model has none.";
  }

  return {
    el: card("Token rank by layer", scale, lines, lanes, eventSentence, notes),
    lines,
    draw,
    at: (n) => chart?.at(n),
  };
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
    `${shownRank(first.ranks[at])} against ${shownRank(second.ranks[at])}, ${percent(first.probabilities[at])} ` +
    `against ${percent(second.probabilities[at])}.`
  );
}
