/** The rows of the grid, and the ranking of writers. */
import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { MODEL, module } from "./page.mjs";

const { rowsOf } = await module("screens/trace-rows.js");
const { ranked } = await module("updates.js");
const { percentile, percentileText } = await module("screens/memory-here.js");
const { cell, patchingRows } = await module("screens/compare-map.js");
const { goTo } = await module("state.js");

const stage = (point, ids) => ({
  point,
  ids: ids.map((layer) => layer.map((id) => [id])),
  probabilities: ids.map((layer) => layer.map(() => [0.25])),
  rank_of_prediction: ids.map((layer, n) => layer.map(() => (n ? 1 : 64))),
});
const DATA = {
  tokens: [{ token: "a" }, { token: " b" }],
  texts: { 7: " x", 8: " y" },
  prediction: [8, 7],
  events: [{ layer: 1, position: 0, kind: "saturation", cause: "ffn" }],
  embedding: stage("resid_pre", [[7, 7]]),
  stages: [
    stage("resid_post", [
      [7, 7],
      [8, 7],
    ]),
  ],
};
const rows = () => rowsOf({ model: MODEL, data: DATA, plain: null, spread: null, followed: null }, DATA, null);

beforeEach(() => goTo("#/trace"));

test("the last layer is on top, the embedding below, unless the grid is flipped", () => {
  const labels = ["Layer 1", "Layer 0", "Embedding"];
  assert.deepEqual(
    rows().map((row) => row.label),
    labels,
  );
  goTo("#/trace?flip=1");
  assert.deepEqual(
    rows().map((row) => row.label),
    labels.toReversed(),
  );
});

test("a cell with massive activations has no shade, and its name says that its reading says little", () => {
  const seen = { ...DATA, massive: { 1: [0] } };
  const [last, first] = rowsOf({ model: MODEL, data: DATA, plain: null, spread: null, followed: null }, seen, null);
  assert.deepEqual([last.cells[1].q, first.cells[1].q, first.cells[0].q], [8, 0, 8]);
  assert.match(first.cells[1].name, /massive activations: this reading says little/);
  assert.ok(first.cells[1].cls.includes("massive") && !last.cells[1].cls.includes("massive"));
  assert.doesNotMatch(last.cells[1].name + first.cells[0].name, /massive/);
});

test("a cell repeats the row below only where its token is the same and nothing is marked", () => {
  const [last, first] = rows();
  assert.deepEqual(
    first.cells.map((c) => c.same),
    [true, true],
  );
  assert.deepEqual(
    last.cells.map((c) => c.same),
    [false, false],
    "the last row is always written",
  );
  assert.equal(last.cells[0].glyph, "◆");
  assert.equal(last.cells[1].glyph, "▲", "from rank 64 to 1");
  assert.deepEqual(
    last.cells.map((c) => c.cls),
    ["answer", "answer"],
  );
});

test("a cell is shaded by the metric and named in full", () => {
  assert.equal(rows()[0].cells[0].q, 8, "the square root of 0.25");
  assert.equal(
    rows()[0].cells[0].name,
    "Layer 1 after FFN, position 0 a: first ·x 25.0 %, rank of the final prediction 1, saturation here".replace(
      "·x",
      "·y",
    ),
  );
  goTo("#/trace?metric=rank");
  assert.equal(rows()[0].cells[0].q, 16);
});

test("writers are ranked by what the order says", () => {
  const list = [
    { score: 1, coefficient: -3, contribution: 2 },
    { score: -2, coefficient: 1, contribution: 1, deviation: 0.1 },
  ];
  assert.deepEqual(ranked(list, "effect")[0], list[1]);
  assert.deepEqual(ranked(list, "deviation")[0], list[0]);
  assert.deepEqual(ranked(list, "coefficient")[0], list[0]);
});

test("a percentile is read from a histogram and written as English does", () => {
  const usual = { edges: [0, 1, 2], counts: [50, 50], sampled: 100 };
  assert.equal(percentile(usual, 1), 0.5);
  assert.equal(percentile(usual, 1.5), 0.75);
  assert.equal(percentile(null, 1), null);
  const shown = [0.21, 0.22, 0.23, 0.11, 0.12, 0.5, 0.999, 1].map(percentileText);
  const words = ["21st", "22nd", "23rd", "11th", "12th", "50th", "99.90th"].map((text) => `${text} percentile`);
  assert.deepEqual(shown, [...words, "above all sampled tokens"]);
});

test("a map of patches names the layers that have the point, which are not all layers", () => {
  const found = {
    layers: [1, 3],
    positions: [0, 2],
    tokens: ["a", " b"],
    values: [
      [1, 2],
      [3, 4],
    ],
    recovered: [
      [0, 0.5],
      [0.25, 1],
    ],
  };
  assert.deepEqual(patchingRows(found).at(-1), [3, 2, " b", 4, 1]);
  goTo("#/compare?layer=3&position=2");
  assert.deepEqual(cell(found), [1, 1]);
  goTo("#/compare?layer=0&position=2");
  assert.equal(cell(found), null);
});

const { quietRuns } = await module("screens/trace-rows.js");

/** A trace of which the prediction has these ranks after each layer. */
const traceOf = (ranks) => ({
  embedding: { rank_of_prediction: [[5000, ranks[0]]] },
  stages: [{ ids: ranks, rank_of_prediction: ranks.map((rank) => [1, rank]) }],
});

test("quiet layers are those across which the prediction's rank moves least within the first 1,000", () => {
  const early = Array.from({ length: 20 }, (_, n) => 2000 + 900 * n);
  assert.deepEqual(quietRuns(traceOf([...early, 500, 80, 40, 3, 2, 1])), [[0, 19]]);
  assert.deepEqual(quietRuns(traceOf(early.slice(0, 16))), [], "a model of few layers is shown whole");
  const { embedding, ...part } = traceOf([...early, 1]);
  assert.deepEqual(quietRuns(part), [], "nor are layers folded that have not been received");
});

test("however much moves, the rows fit a screen", () => {
  const runs = quietRuns(traceOf(Array.from({ length: 40 }, (_, n) => 1 + ((n * 37) % 101))));
  const hidden = runs.reduce((sum, [first, last]) => sum + last - first, 0);
  assert.ok(40 - hidden <= 7);
  assert.ok(runs.every(([first, last]) => first < last && last < 39));
});

const { isQuick, runOn } = await module("contexts.js");

test("a run on thousands of tokens waits for a click on a processor where the model is large", () => {
  const smollm2 = { n_layers: 30, d_model: 576, device: "cpu" };
  const small = { n_layers: 8, d_model: 128, device: "cpu" };
  assert.equal(isQuick(smollm2, runOn(smollm2, 3200)), false);
  assert.equal(isQuick(smollm2, runOn(smollm2, 100)), true);
  assert.equal(isQuick(small, runOn(small, 3200)), true);
  assert.equal(isQuick({ ...smollm2, device: "cuda:0" }, runOn(smollm2, 3200)), true);
});
