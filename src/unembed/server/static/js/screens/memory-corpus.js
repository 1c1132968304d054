/** A memory on a corpus: its top activating examples and the distribution of its coefficient. */
import { contexts } from "../contexts.js";
import { fill, fixed, h, many, num, segmented } from "../dom.js";
import * as histogram from "../islands/histogram.js";
import { noIndex } from "../labels.js";
import { asTable, loading, pane } from "../parts.js";

/** The top activating examples: first the texts, from the index; then each token's coefficient, from the model. */
export function topExamples(box, { api, model }, { layer, index }, slot = 0) {
  if (!model.can.index) return noIndex(box, "Triggers are the texts of a corpus on which the key fires most.");
  const at = `/memories/${layer}/${index}`;
  let pole = "positive";
  fill(box, loading("Reading triggers", 10));
  const list = h("div");
  const again = () =>
    pane(box, async () => {
      const { rows } = await api.get(`${at}/triggers`, { top: 25, context: 24, pole }, { channel: `triggers${slot}` });
      if (!rows.length) return fill(box, h("p.note", "The key never fired on this corpus."));
      const drawn = (found) => contexts(list, found, 10);
      drawn(rows.map((r) => ({ ...r, tokens: [r.prefix, r.token], coefficients: [] })));
      fill(box, [
        model.can.gated &&
          segmented(
            "Coefficients",
            [
              ["positive", "Positive"],
              ["negative", "Negative"],
            ],
            pole,
            (value) => ((pole = value), again()),
          ),
        list,
        h("p.faint", [
          `The ${rows.length} strongest, which index ${model.index} stores; the marked token is where the key fires.`,
        ]),
      ]);
      drawn((await api.get(`${at}/contexts`, { top: 25, pole }, { channel: `contexts${slot}` })).contexts);
    });
  return again();
}

/** Sampled tokens by bands of their coefficient, the largest first; each band opens to examples. */
export function quantiles(box, usual) {
  let above = 0; // sampled tokens with a larger coefficient than this band's
  fill(box, [
    h("h3.apart", `Examples by quantile, among ${usual.sampled.toLocaleString("en")} sampled tokens`),
    usual.bands.map((b) => {
      const list = h("div");
      const [high, low] = [1 - above / usual.sampled, 1 - (above + b.tokens) / usual.sampled];
      above += b.tokens;
      return h("details", { ontoggle: () => !list.firstChild && contexts(list, b.contexts, 4) }, [
        h("summary", [
          `${num(b.above)} to ${num(b.up_to)}: ${many(b.tokens, "token")}, quantiles ` +
            `${fixed(Math.max(0, low), 3)} to ${fixed(high, 3)}`,
        ]),
        list,
      ]);
    }),
  ]);
}

/** The histogram of the sample, with one coefficient marked and the number of smaller ones. */
export function distribution(el, usual, marked) {
  const { mean, variance, least, largest, active_fraction: active } = usual.statistics;
  const box = h("div");
  const below = usual.counts.reduce((sum, n, i) => sum + (usual.edges[i + 1] <= marked ? n : 0), 0);
  const histogramCaption = `Coefficients of ${usual.sampled.toLocaleString("en")} sampled tokens, heights logarithmic`;
  histogram.mount(box, {
    ...usual,
    marks: marked === null ? [] : [{ value: marked, name: `here ${num(marked)}` }],
    label: histogramCaption,
  });
  fill(el, [
    box,
    marked !== null && h("p", "Here ", h("b", num(marked)), `, above ${below.toLocaleString("en")} of them.`),
    h("p.faint", [
      `${histogramCaption}. Over all ${usual.tokens.toLocaleString("en")} tokens of the index: mean ${num(mean)}, ` +
        `standard deviation ${num(Math.sqrt(variance))}, from ${num(least)} to ${num(largest)}; active at ${num(100 * active)} %.`,
    ]),
    asTable("As a table", ["from", "to", "tokens"], () =>
      usual.counts.map((n, i) => [usual.edges[i], usual.edges[i + 1], n]),
    ),
  ]);
}
