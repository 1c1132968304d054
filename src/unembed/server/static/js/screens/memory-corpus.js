/** A memory on a corpus: its top activating examples and the distribution of its coefficient. */
import { contexts, isQuick, runOn } from "../contexts.js";
import { button, drawn, fill, fixed, folded, grouped, h, many, num, segmented, sumOf } from "../dom.js";
import * as histogram from "../islands/histogram.js";
import { noIndex } from "../labels.js";
import { asTable, loading, pane } from "../parts.js";
import { memoryPath } from "../state.js";

/** About how many tokens the model must read for the coefficient at every token of the listed texts. */
const READ = 25 * 128;

/** Show the top activating examples: at once as the index stores them; with each token's coefficient when the model has run. */
export function topExamples(box, { api, model }, memory, slot = 0) {
  let { pole = "positive" } = memory;
  if (!model.can.index) return noIndex(box, "Triggers are the texts of a corpus on which the key fires most.");
  const at = memoryPath(memory);
  fill(box, loading("Reading triggers", 10));
  const list = h("div");
  const choose = (value) => ((pole = value), again());
  const again = () =>
    pane(box, async () => {
      const { rows } = await api.get(`${at}/triggers`, { top: 25, context: 24, pole }, { channel: `triggers${slot}` });
      if (!rows.length) return fill(box, h("p.note", "The key never fired on this corpus."));
      const every = async () => {
        const found = await api.get(`${at}/contexts`, { top: 25, pole }, { channel: `contexts${slot}` });
        contexts(list, found.contexts, 10);
      };
      const quick = isQuick(model, runOn(model, READ));
      const all = () => (fill(more), pane(list, every));
      const title = "The model reads the texts again: this takes a while";
      const more = h("div", button("Shade every token", all, "quiet", { title }));
      const note = `The ${rows.length} strongest, which index ${model.index} stores; the key fires at the marked token.`;
      const plain = rows.map((r) => ({ ...r, tokens: [r.prefix, r.token], coefficients: [] }));
      contexts(list, plain, 10);
      fill(box, [
        model.can.gated && segmented("Coefficients", { positive: "Positive", negative: "Negative" }, pole, choose),
        list,
        !quick && more,
        h("p.faint", note),
      ]);
      return quick ? every() : undefined;
    });
  return again();
}

/** List bands of the coefficient, the largest first; each opens to examples. */
export function quantiles(box, usual) {
  let above = 0; // sampled tokens with a larger coefficient than this band's
  const band = (b) => {
    const [high, low] = [1 - above / usual.sampled, 1 - (above + b.tokens) / usual.sampled];
    above += b.tokens;
    const quantile = `quantiles ${fixed(Math.max(0, low), 3)} to ${fixed(high, 3)}`;
    const summary = `${num(b.above)} to ${num(b.up_to)}: ${many(b.tokens, "token")}, ${quantile}`;
    return folded(summary, (list) => contexts(list, b.contexts, 4));
  };
  const title = `Examples by quantile, among ${grouped(usual.sampled)} sampled tokens`;
  fill(box, h("h3.apart", title), usual.bands.map(band));
}

/**
 * Show the distribution of the coefficient: a histogram with some values marked; where no sample was taken, what the
 * index stores, and a button that takes one.
 */
export function distribution(el, usual, marks, sample) {
  const { counts, edges, sampled, tokens } = usual;
  const { mean, variance, least, largest, active_fraction: active } = usual.statistics;
  const stored =
    `Over all ${grouped(tokens)} tokens of the index: mean ${num(mean)}, standard deviation ` +
    `${num(Math.sqrt(variance))}, from ${num(least)} to ${num(largest)}; active at ${num(100 * active)} %.`;
  if (!counts) {
    const title = "The model reads a part of the corpus: some seconds";
    return fill(el, [h("p.faint", stored), button("Sample the corpus", sample, "btn small", { title })]);
  }
  const below = ({ value }) => sumOf(counts, (n, i) => (edges[i + 1] <= value ? n : 0));
  const label = `Coefficients of ${grouped(sampled)} sampled tokens, heights logarithmic`;
  return fill(el, [
    drawn(histogram.mount, { ...usual, marks, label }),
    marks.map((one) => h("p", `${one.what} `, h("b", num(one.value)), `, above ${grouped(below(one))} of them.`)),
    h("p.faint", `${label}. ${stored}`),
    asTable(["from", "to", "tokens"], () => counts.map((n, i) => [edges[i], edges[i + 1], n])),
  ]);
}
