/** The packed map of the values. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { module } from "./page.mjs";

const { unpack } = await module("screens/atlas-map.js");

/** A body with these columns. */
function packed(columns, more) {
  const names = Object.keys(columns);
  const n = columns[names[0]].length;
  const head = new TextEncoder().encode(JSON.stringify({ ...more, n, columns: names }));
  const planes = names.flatMap((name) => [0, 8, 16, 24].flatMap((by) => columns[name].map((x) => (x >>> by) & 255)));
  const size = new Uint8Array(new Uint32Array([head.length]).buffer);
  return new Uint8Array([...size, ...head, ...planes]).buffer;
}

test("positions are steps from the middle of an island, numbers have four bytes, densities are logarithmic", () => {
  const columns = {
    layer: [0, 29],
    index: [1535, 70_000],
    cluster: [0, 1],
    x: [0, 3],
    y: [4, 1],
    kind: [2, 6],
    density: [0, 13],
    top0: [0, 1],
  };
  const islands = [
    { x: 0.25, y: 0.5 },
    { x: 0.75, y: 0.5 },
  ];
  const densities = { least: 1e-5, levels_a_decade: 12 };
  const atlas = unpack(packed(columns, { step: 0.01, islands, densities, tokens: ["a", " é"] }));
  assert.deepEqual([atlas.layer, atlas.index, atlas.kind], [columns.layer, columns.index, columns.kind]);
  assert.deepEqual(atlas.x, [0.25, 0.75 - 0.02]);
  assert.deepEqual(atlas.y, [0.5 + 0.02, 0.5 - 0.01]);
  assert.equal(atlas.density[0], 0);
  assert.ok(Math.abs(atlas.density[1] - 1e-4) < 1e-15);
  assert.deepEqual(
    atlas.top.map((row) => row.map((id) => atlas.tokens[id])),
    [["a"], [" é"]],
  );
});

test("without an index there is no density", () => {
  const columns = { layer: [0], index: [0], cluster: [0], x: [0], y: [0], kind: [0] };
  const atlas = unpack(packed(columns, { step: 1, islands: [{ x: 0, y: 0 }], densities: {}, tokens: [] }));
  assert.equal(atlas.density, null);
  assert.deepEqual(atlas.top, [[]]);
});
