/** What is saved as a file. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { module } from "./page.mjs";

const { csv } = await module("sharing.js");
const { columns, topTokens } = await module("parts.js");

test("a cell is quoted where its text would end it", () => {
  const rows = [
    ["a", 'say "b"', 1],
    [",", "two\nlines", "#"],
  ];
  assert.equal(csv(rows), 'a,"say ""b""",1\n",","two\nlines","#"\n');
});

test("columns are properties by name, or are computed", () => {
  const list = [{ layer: 1, top_tokens: [" a", "b"] }];
  const named = ["layer", ["double", (x) => 2 * x.layer], topTokens];
  assert.deepEqual(columns(list, named), [
    ["layer", "double", "top_tokens"],
    [1, 2, '[" a","b"]'],
  ]);
  assert.deepEqual(columns([], ["layer"]), [["layer"]]);
});
