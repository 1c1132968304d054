/** The grid's rows from a trace: text, shade, marks and name of each cell. Sends no request and draws nothing. */
import { num, percent, shownRank } from "../dom.js";
import { visible } from "../islands/tokens.js";
import { lastUpdate } from "../names.js";
import { edits, state } from "../state.js";

export const METRICS = [
  ["probability", "Probability", "of the first token"],
  ["rank", "Rank of the final prediction", "rank of the final prediction in the cell's reading"],
  ["entropy", "Entropy", "entropy of the cell's distribution"],
  ["divergence", "KL to the final layer", "KL divergence of the final distribution from the cell's"],
  ["pinned", "Followed token", "probability of the first pinned token, or of the target"],
];

/** A change of rank by at least this factor between two rows is marked. */
const BIG = 8;
const SIGNS = { saturation: "◆", elimination: "✕", "a big rise": "▲", "a big fall": "▼" };

/** The upper end of the scale in nats, where the metric has one and is known. */
export function greatest({ model, spread }) {
  const { metric } = state();
  if (metric === "entropy" && spread) return Math.log(model.d_vocab);
  return metric === "divergence" && spread
    ? Math.max(1e-9, ...Object.values(spread).flatMap((one) => one.divergence.flat()))
    : null;
}

/** Whether the active edits can affect a cell: it is at or after their layer and positions. */
function reached(list, n, p, post, last) {
  return list.some((e) => {
    const at = e.positions === "all" ? [0] : e.positions === "last" ? [last] : e.positions;
    return n > e.layer
      ? p >= Math.min(...at)
      : n === e.layer && (post || e.target === "head") && (e.positions === "all" || at.includes(p));
  });
}

/**
 * Rows as the grid takes them, the last layer first unless flipped; the embedding is layer -1. Row i of `stage` is
 * what a row shows.
 * `t`: {model, data, plain, spread, followed}; `seen`: the trace shown, the edited one or the baseline; `only`:
 * [lowest, highest].
 */
export function rowsOf(t, seen, only) {
  const { model, data, spread } = t;
  const { metric, stages, diff, flip } = state();
  const V = Math.log2(model.d_vocab);
  const most = greatest(t);
  const plain = diff && t.plain && seen === data ? t.plain : null;
  const made = edits().filter((e) => e.on);
  const eventsAt = new Map();
  for (const e of seen.events) {
    const after = stages !== "both" || e.cause === "ffn" ? "resid_post" : "resid_mid";
    const row = e.cause === "embedding" ? "-1 resid_pre" : `${e.layer} ${after}`;
    eventsAt.set(`${row} ${e.position} ${e.kind}`, 1);
  }
  const shown = seen.stages.filter((one) => stages === "both" || one.point === "resid_post");
  const [from, to] = only || [-1, seen.stages.at(-1).ids.length - 1];
  const found = [];
  let was = null;
  for (let n = from; n <= to; n++)
    for (const one of n < 0 ? [seen.embedding] : shown) {
      const i = Math.max(0, n);
      if (!one && !only)
        found.push({ label: "Embedding", n, cells: data.tokens.map(() => ({ text: "", q: 0, name: "" })) });
      if (!one?.ids[i]) continue; // not received yet; the embedding's row is always there
      const post = one.point === "resid_post";
      const below = found[0];
      const other = n < 0 ? plain?.embedding : plain?.stages.find((x) => x.point === one.point);
      const ranks = one.rank_of_prediction[i];
      const label = n < 0 ? "Embedding" : `Layer ${n}`;
      const sub = post || n < 0 ? "" : `after ${model.mixers[n]}`;
      const title = label + (post ? ` after ${lastUpdate(model, n)}` : sub && ` ${sub}`);
      const cells = data.tokens.map((t0, p) => {
        const id = one.ids[i][p][0];
        const prob = one.probabilities[i][p][0];
        const rank = ranks[p];
        const nats = most === null || n < 0 ? null : spread[one.point][metric][n][p];
        const followed =
          metric === "pinned" && t.followed && n >= 0 ? t.followed.points[one.point].probabilities[n][p] : null;
        const unknown = n < 0 && (most !== null || metric === "pinned");
        const q = Math.max(
          0,
          Math.round(
            16 *
              (unknown
                ? 0
                : nats !== null
                  ? nats / most
                  : metric === "rank"
                    ? 1 - Math.log2(rank) / V
                    : Math.sqrt(followed ?? prob)),
          ),
        );
        const kinds = ["saturation", "elimination"].filter((kind) => eventsAt.has(`${n} ${one.point} ${p} ${kind}`));
        if (!kinds.length && was)
          kinds.push(...(was[p] >= BIG * rank ? ["a big rise"] : rank >= BIG * was[p] ? ["a big fall"] : []));
        const glyph = kinds.map((kind) => SIGNS[kind]).join("");
        let cls = id === seen.prediction[p] ? "answer" : "";
        if (other) {
          const moved = other.ids[i][p][0] !== id ? "moved" : other.probabilities[i][p][0] === prob ? "still" : "";
          cls = `${reached(made, n, p, post, data.tokens.length - 1) ? "cone " : ""}${moved}`;
        }
        return {
          id,
          prob,
          rank,
          nats,
          followed,
          text: seen.texts[id],
          q,
          cls,
          glyph,
          same: !!below && below.cells[p].id === id && !glyph && n < to,
          get name() {
            const first = `first ${visible(seen.texts[id])} ${percent(prob)}`;
            return [
              `${title}, position ${p} ${visible(t0.token)}: ${first}`,
              `rank of the final prediction ${shownRank(rank)}`,
              ...(nats === null ? [] : [`${num(nats)} nats`]),
              ...(followed === null ? [] : [`${visible(t.followed.token)} ${percent(followed)}`]),
              ...kinds.map((kind) => `${kind} here`),
            ].join(", ");
          },
        };
      });
      found.unshift({
        label: sub ? "" : label,
        sub,
        cls: sub && "mid",
        n,
        i,
        title,
        point: one.point,
        stage: one,
        cells,
      });
      was = ranks;
    }
  return flip ? found.reverse() : found;
}
