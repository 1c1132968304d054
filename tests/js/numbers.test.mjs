/** Numbers as the page writes them. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { module } from "./page.mjs";

const { ending, fixed, grouped, many, num, percent, places, signed, within } = await module("dom.js");

test("a number has three significant digits", () => {
  const shown = [0, 0.0012345, 0.12345, 1.2345, 12.345, 123.45, 1234.5, -1.2345, NaN, null].map(num);
  assert.deepEqual(shown, ["0", "1.2e-3", "0.123", "1.23", "12.3", "123", "1,235", "−1.23", "–", "–"]);
});

test("a signed number has its sign, with the minus of typography", () => {
  assert.deepEqual([2, -2].map(signed), ["+2.00", "−2.00"]);
});

test("a probability that is not zero is never shown as zero", () => {
  assert.deepEqual([0, 0.0001, 0.5, 1].map(percent), ["0.0 %", "<0.1 %", "50.0 %", "100.0 %"]);
});

test("the numbers of a column have the same decimals, and the largest has three significant digits", () => {
  const column = [0.04, -1.234, 0.5];
  const digits = places(column);
  assert.deepEqual(
    column.map((x) => fixed(x, digits, true)),
    ["+0.04", "−1.23", "+0.50"],
  );
  assert.equal(places([]), 2);
  assert.equal(fixed(-0.0001, 2), "0.00", "zero has no sign");
});

test("counts are grouped and agree with their noun", () => {
  assert.equal(grouped(1234567), "1,234,567");
  assert.deepEqual(
    [1, 2048].map((n) => many(n, "memory", "memories")),
    ["1 memory", "2,048 memories"],
  );
});

test("the ending of a text begins with a whole word", () => {
  assert.equal(ending("short", 10), "short");
  assert.equal(ending("the last words of a text", 14), "… of a text");
});

test("an index is clamped", () => {
  assert.deepEqual(
    [-1, 1, 5, NaN].map((i) => within(i, 3)),
    [0, 1, 2, 0],
  );
});
