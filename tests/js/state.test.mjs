/** The state in the address, and what is read from it. */
import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { MODEL, module } from "./page.mjs";

const state = await module("state.js");
const { readable } = await module("unread.js");

beforeEach(() => {
  state.setExperts(null);
  state.goTo("#/trace");
});

test("an address holds what differs from the defaults, in a fixed order", () => {
  state.go({ position: "3", prompt: "a b" });
  assert.equal(state.link({}), "#/trace?prompt=a+b&position=3");
  assert.equal(state.link({ prompt: "", position: "" }), "#/trace");
  assert.equal(
    state.link({ screen: "search", path: ["concept", "a/b"] }),
    "#/search/concept/a%2Fb?prompt=a+b&position=3",
  );
});

test("a link restores the state", () => {
  state.go({ prompt: "Größe & more", edits: "L1M2:set:0@all", screen: "layer", layer: "1" });
  const address = state.link({});
  const before = state.state();
  state.goTo("#/trace");
  assert.notDeepEqual(state.state(), before);
  state.goTo(address);
  assert.deepEqual(state.state(), before);
});

test("another prompt has a question of its own, on every screen", () => {
  for (const screen of ["trace", "intervene", "heads"]) {
    state.goTo(`#/${screen}?prompt=a&token=%2312&against=%237&single=1`);
    state.go({ prompt: "b" });
    assert.equal(state.link({}), `#/${screen}?prompt=b`);
  }
  state.goTo("#/trace?prompt=a&against=%237");
  state.go({ screen: "intervene", edits: "L1M2:set:0@all" });
  assert.equal(state.state().against, "#7");
});

test("who watches is told the state before and after, and only of changes of the address", () => {
  const told = [];
  const end = state.watch((now, before) => told.push([before.layer, now.layer]));
  state.turn({ layer: "1" });
  state.goTo(state.link({}));
  end();
  state.turn({ layer: "0" });
  assert.deepEqual(told, [["", "1"]]);
});

test("ids of memories and heads are written and read", () => {
  assert.equal(state.idOf({ layer: 5, index: 278 }), "L5M278");
  assert.equal(state.idOf({ layer: 5, index: 1 }, "head"), "L5H1");
  assert.deepEqual(state.parseId(" l5m278 "), { layer: 5, index: 278, kind: "memory" });
  assert.deepEqual(state.parseId("5.278"), { layer: 5, index: 278, kind: "memory" });
  assert.deepEqual(state.parseId("L5H1"), { layer: 5, index: 1, kind: "head" });
  assert.deepEqual(state.parseId("-L5M278"), { layer: 5, index: 278, kind: "memory", pole: "negative" });
  assert.equal(state.idOf({ layer: 5, index: 278, pole: "negative" }), "-L5M278");
  for (const text of ["", "five", "L5", "L5E1M2", "-L5H1"]) assert.equal(state.parseId(text), null, text);
});

test("memories of experts are numbered within their expert, those of the shared one come last", () => {
  state.setExperts({ 12: [4, 100] });
  for (const [index, id] of Object.entries({ 345: "L12E3M45", 7: "L12E0M7", 403: "L12SM3" })) {
    assert.equal(state.idOf({ layer: 12, index: Number(index) }), id);
    assert.deepEqual(state.parseId(id), { layer: 12, index: Number(index), kind: "memory" });
  }
});

test("edits are written as they are read", () => {
  const texts = "L5M278:set:3@all;L5H1:scale:0@last;L0M1:add:-0.5@2,3";
  state.go({ edits: texts, disabled: "1" });
  assert.equal(state.written(state.edits()), texts);
  assert.deepEqual(
    state.edits().map((e) => e.on),
    [true, false, true],
  );
  assert.deepEqual(state.activeEdits()[1], {
    target: "coefficient",
    layer: 0,
    index: 1,
    action: "add",
    value: -0.5,
    positions: [2, 3],
  });
  for (const text of ["L5M278", "L5M278:set:x@all", "L5M278:drop:1@all", "L5M278:set:1@first"])
    assert.equal(state.oneEdit(text), null, text);
});

test("what an address holds that the model does not have is left out, and the rest stays", () => {
  const found = { ...state.state(), screen: "trace", layer: "7", pins: "3 999", memory: "L0H1", position: "2" };
  const edits = "L1M2:set:0@all;L9M0:set:0@all;L0H1:set:1@all;L0H1:scale:0@all";
  const kept = readable({ ...found, edits, disabled: "3" }, ["strange"], MODEL, ["trace"]);
  assert.deepEqual([kept.layer, kept.pins, kept.memory, kept.position], ["", "3", "", "2"]);
  assert.equal(kept.edits, "L1M2:set:0@all;L0H1:scale:0@all");
  assert.equal(kept.disabled, "1", "an edit stays off where others before it are left out");
  assert.equal(readable({ ...found, screen: "nothing" }, [], MODEL, ["trace"]).screen, "trace");
});
