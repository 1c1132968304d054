/** The marks that make every token's text visible. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { module } from "./page.mjs";

const { pieces, visible } = await module("islands/tokens.js");

test("spaces, line ends and what is invisible are marked", () => {
  const shown = [" the", "a\n", "\t", "\u0000", "\u200b", "\u007f", "\ud83d"].map((text) => visible(text));
  assert.deepEqual(shown, ["·the", "a↵", "⇥", "␀", "⟨U+200B⟩", "␡", "⟨U+D83D⟩"]);
});

test("a byte that is no text is shown as its number", () => {
  assert.equal(visible("\udcff"), "⟨0xFF⟩");
});

test("a combining character stands on a circle where it has no letter", () => {
  assert.equal(visible("\u0301"), "◌\u0301");
  assert.equal(visible("e\u0301"), "e\u0301");
});

test("different texts never look the same", () => {
  const alphabet = [" ", "·", "\n", "↵", "a", "\u0301", "◌", "⟨", "U", "+", "\u2420", "\u0000", "\u2400"];
  const seen = new Map();
  for (const a of alphabet)
    for (const b of alphabet)
      for (const c of ["", ...alphabet]) {
        const shown = visible(a + b + c);
        assert.equal(seen.get(shown) ?? a + b + c, a + b + c);
        seen.set(shown, a + b + c);
      }
});

test("the marks of a text are told from its letters", () => {
  assert.deepEqual(pieces(" a"), [
    ["·", true],
    ["a", false],
  ]);
});
