/** The view as a Python program and as a command. */
import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { MODEL, module } from "./page.mjs";

const { asCommand, asPython, editCall, literal, shell } = await module("code.js");
const { go, goTo } = await module("state.js");
const page = { model: MODEL };

beforeEach(() => goTo("#/trace?prompt=a"));

test("a text is a literal of Python and a word of a shell, whatever it contains", () => {
  assert.equal(literal('"\n\u00e9\u{1f600}'), '"\\"\\n\\u00e9\\U0001f600"');
  assert.equal(shell("it's"), "'it'\\''s'");
});

test("an edit is a call with its positions", () => {
  const edit = { target: "coefficient", layer: 1, index: 2, action: "set", value: 3, positions: "all" };
  assert.equal(editCall(edit), "unembed.set_coefficient(1, 2, 3.0)");
  assert.equal(editCall({ ...edit, positions: [1, 2] }), "unembed.set_coefficient(1, 2, 3.0, positions=[1, 2])");
  const head = { ...edit, target: "head", action: "scale", value: 0.5, positions: "last" };
  assert.equal(editCall(head), 'unembed.scale_head(1, 2, 0.5, positions="last")');
});

test("the program has the edits where they are used, and an index only where one is open", () => {
  go({ edits: "L1M2:set:3@all" });
  const lines = asPython(page).split("\n");
  assert.equal(lines[2], "lm = unembed.load()");
  assert.equal(lines[3], "edits = [unembed.set_coefficient(1, 2, 3.0)]");
  assert.ok(lines.includes('trace = lm.trace("a", edits=edits)'));
  go({ screen: "search", query: "year" });
  const search = asPython({
    model: { ...MODEL, source: "my model", can: { ...MODEL.can, index: true }, index_path: "/i" },
  });
  assert.match(search, /lm = unembed\.load\("my model"\)\nindex = unembed\.Index\.open\("\/i", lm\)\n/);
  assert.doesNotMatch(search, /edits/);
});

test("what the command line can do is a command, and the rest a program", () => {
  go({ edits: "L1M2:set:3@all", position: "2", token: " b" });
  assert.equal(asCommand(page), "unembed trace --position 2 --token ' b' --set L1M2=3 -- 'a'");
  go({ edits: "L1H2:scale:0@all" });
  assert.match(asCommand(page), /^python - <<'EOF'\nimport unembed\n/);
  go({ screen: "memory", memory: "L1M2" });
  assert.equal(asCommand(page), "unembed value L1M2");
});
