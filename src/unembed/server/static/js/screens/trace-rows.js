/** The grid's rows from a trace: text, shade, marks and name of each cell. Sends no request and draws nothing. */
import { grouped, num, percent } from "../dom.js";
import { visible } from "../islands/tokens.js";
import { lastUpdate } from "../names.js";
import { edits, state } from "../state.js";

export const METRICS = [
  ["probability", "Probability", "of the first token"],
  ["rank", "Rank", "rank of the final prediction in the cell's reading"],
  ["entropy", "Entropy", "entropy of the cell's distribution"],
  ["divergence", "KL divergence", "KL divergence of the final distribution from the cell's"],
  ["pinned", "Followed token", "probability of the first pinned token, or of the target"],
];

/** A change of rank by at least this factor between two rows is marked. */
const BIG = 8;

/** Of a model with more layers than this, quiet layers are folded until so many rows are left. */
const MANY_LAYERS = 16;
const SHOWN_ROWS = 7;
/** Changes of rank beyond this do not count: in early layers the ranks are random. */
const FAR = 1000;
const SIGNS = { saturation: "◆", elimination: "✕", "a big rise": "▲", "a big fall": "▼" };

/** The upper end of the scale if the metric is in nats and was loaded, else null. */
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

/** The factor by which the rank of the prompt's prediction changes across layer n. */
function movement({ stages, embedding }, n) {
  const { rank_of_prediction: ranks } = stages.at(-1);
  const [was, now] = [ranks[n - 1] ?? embedding.rank_of_prediction[0], ranks[n]].map((all) =>
    Math.min(all.at(-1), FAR),
  );
  return Math.max(was / now, now / was);
}

/**
 * The runs of quiet layers, [first, last] each: those across which the rank of the prompt's prediction changes least.
 * The last layer is never quiet, and a single quiet layer is shown.
 */
export function quietRuns(trace) {
  const n = trace.stages.at(-1).ids.length;
  if (n <= MANY_LAYERS || !trace.embedding) return []; // which comes with the whole trace
  const moves = Array.from({ length: n - 1 }, (_, layer) => movement(trace, layer));
  for (const least of [...new Set(moves)].sort((a, b) => a - b)) {
    const runs = runsBelow(moves, least);
    const hidden = runs.reduce((sum, [first, last]) => sum + last - first, 0);
    if (n - hidden <= SHOWN_ROWS) return runs;
  }
  return [[0, n - 2]];
}

/** The runs of at least two layers across which the rank changes by at most the factor `least`. */
function runsBelow(moves, least) {
  const runs = [];
  for (let from = 0; from < moves.length; from++) {
    let to = from;
    while (to < moves.length && moves[to] <= least) to++;
    if (to - from > 1) runs.push([from, to - 1]);
    from = to;
  }
  return runs;
}

/** Whose message a token of a conversation is from, or "template"; empty if the prompt is no conversation. */
export const roleOf = ({ roles }, p) => (roles ? (roles[p] ?? "template") : "");
export const ROLES = { template: "chat template", user: "user's message", system: "system's message" };

/**
 * The rows of the grid, the last layer first unless flipped; the embedding is layer -1. A row shows index `i` of its
 * `stage`. `t`: {model, data, plain, spread, followed}; `seen`: the trace to show, with or without edits; `only`: the
 * lowest and the highest layer, or null; `runs`: runs of quiet layers, of which each is one row, read after its last layer.
 */
export function rowsOf(t, seen, only, runs = []) {
  const { data, plain } = t;
  const { stages, diff, flip } = state();
  const shown = seen.stages.filter((one) => stages === "both" || one.point === "resid_post");
  const [from, to] = only || [-1, seen.stages.at(-1).ids.length - 1];
  /** What all rows need. `was`: the ranks in the row below. */
  const all = { t, seen, to, most: greatest(t), kinds: kindsAt(seen), made: edits().filter((e) => e.on), was: null };
  const other = diff && plain && seen === data ? plain : null;
  const found = [];
  for (let n = from; n <= to; n++) {
    const run = runs.find(([first, last]) => n >= first && n <= last);
    if (run && n < run[1]) continue;
    for (const stage of n < 0 ? [seen.embedding] : run ? [seen.stages.at(-1)] : shown) {
      if (!stage && !only)
        found.push({ label: "Embedding", n, cells: data.tokens.map(() => ({ text: "", q: 0, name: "" })) });
      const i = Math.max(0, n);
      if (!stage?.ids[i]) continue; // not received yet; the embedding's row is always there
      const before = n < 0 ? other?.embedding : other?.stages.find((x) => x.point === stage.point);
      found.unshift(rowOf(all, { n, i, stage, below: found[0], before, run }));
      all.was = stage.rank_of_prediction[i];
    }
  }
  return flip ? found.reverse() : found;
}

/** A function that finds the kinds of event at a row and position; `run`: the folded layers of the row. */
function kindsAt({ events }) {
  const isJoint = state().stages !== "both";
  const key = (e) => {
    const row = e.cause === "embedding" ? "-1 resid_pre" : `${e.layer} ${isJoint || e.cause === "ffn" ? POST : MID}`;
    return `${row} ${e.position} ${e.kind}`;
  };
  const known = new Set(events.map(key));
  const at = (n, point, p, kind) => known.has(`${n} ${point} ${p} ${kind}`);
  const inside = (run, p, kind) => layersOf(run).some((n) => at(n, POST, p, kind) || at(n, MID, p, kind));
  return ({ n, point, run }, p) =>
    ["saturation", "elimination"].filter((kind) => (run ? inside(run, p, kind) : at(n, point, p, kind)));
}
const [POST, MID] = ["resid_post", "resid_mid"];
const layersOf = ([first, last]) => Array.from({ length: last - first + 1 }, (_, i) => first + i);

/**
 * The row of layer n at a stage. `below`: the row below it; `before`: the same stage without the edits; `run`: the folded
 * layers, of which n is the last.
 */
function rowOf(all, { n, i, stage, below, before, run }) {
  const { model, data } = all.t;
  const { point } = stage;
  const first = run ? run[0] : n;
  const label = run ? `Layers ${first}–${n}` : n < 0 ? "Embedding" : `Layer ${n}`;
  const sub = point === POST || n < 0 ? "" : `after ${model.mixers[n]}`;
  const named = run ? `Layers ${first} to ${n}, quiet: layer ${n}` : label;
  const title = named + (point === POST ? ` after ${lastUpdate(model, n)}` : sub && ` ${sub}`);
  const row = { n, i, title, point, stage, below, before, run };
  const cells = data.tokens.map((word, p) => cellOf(all, row, word.token, p));
  const cls = run ? "folded" : sub && "mid";
  return { label: sub ? "" : label, sub, cls, n, first, isFolded: !!run, i, title, point, stage, cells };
}

function cellOf(all, { n, i, title, point, stage, below, before, run }, word, p) {
  const { t, seen, to, most, was, made } = all;
  const { metric } = state();
  const id = stage.ids[i][p][0];
  const prob = stage.probabilities[i][p][0];
  const rank = stage.rank_of_prediction[i][p];
  const nats = most === null || n < 0 ? null : t.spread[point][metric][n][p];
  const isFollowed = metric === "pinned" && t.followed && n >= 0;
  const followed = isFollowed ? t.followed.points[point].probabilities[n][p] : null;
  const unknown = n < 0 && (most !== null || metric === "pinned");
  const byRank = () => 1 - Math.log2(rank) / Math.log2(t.model.d_vocab);
  const known = () => (nats !== null ? nats / most : metric === "rank" ? byRank() : Math.sqrt(followed ?? prob));
  const kinds = all.kinds({ n, point, run }, p);
  if (!kinds.length && was)
    kinds.push(...(was[p] >= BIG * rank ? ["a big rise"] : rank >= BIG * was[p] ? ["a big fall"] : []));
  const glyph = kinds.map((kind) => SIGNS[kind]).join("");
  let cls = id === seen.prediction[p] ? "answer" : "";
  if (before) {
    const moved = before.ids[i][p][0] !== id ? "moved" : before.probabilities[i][p][0] === prob ? "still" : "";
    cls = `${reached(made, n, p, point === POST, t.data.tokens.length - 1) ? "cone " : ""}${moved}`;
  }
  const q = unknown ? 0 : Math.max(0, Math.round(16 * known()));
  const isMassive = n >= 0 && !!seen.massive?.[p]?.includes(point === POST ? n : n - 1);
  if (isMassive) cls += " massive";
  const text = seen.texts[id];
  const same = !!below && below.cells[p].id === id && !glyph && n < to;
  const cell = { id, prob, rank, nats, followed, text, q: isMassive ? 0 : q, cls, glyph, same, isMassive };
  const role = roleOf(seen, p);
  const where = `${title}, position ${p} ${visible(word)}${role && ` (${ROLES[role] ?? role})`}`;
  return {
    ...cell,
    get name() {
      return nameOf(cell, where, t, kinds);
    },
  };
}

const nameOf = ({ text, prob, rank, nats, followed, isMassive }, where, t, kinds) =>
  [
    `${where}: first ${visible(text)} ${percent(prob)}`,
    `rank of the final prediction ${grouped(rank)}`,
    ...(nats === null ? [] : [`${num(nats)} nats`]),
    ...(followed === null ? [] : [`${visible(t.followed.token)} ${percent(followed)}`]),
    ...kinds.map((kind) => `${kind} here`),
    ...(isMassive ? ["massive activations: this reading says little"] : []),
  ].join(", ");
