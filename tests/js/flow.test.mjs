/** The picture of a circuit: sums, places, and texts. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { module } from "./page.mjs";

const { fold, ANSWER } = await module("islands/flow-fold.js");
const { withGroups } = await module("islands/flow-groups.js");
const { layout, ROW } = await module("islands/flow-layout.js");
const { pooled } = await module("islands/flow-rows.js");
const { nameOf } = await module("islands/flow-card.js");
const { answerLines, boxLines, moves, wrapped } = await module("islands/flow-words.js");

/** A graph in which every sum holds: random edges from lower to higher parts. */
function graph(n_layers = 6, seed = 1) {
  let state = seed;
  const random = () => {
    state = (state * 16807) % 2147483647;
    return state / 2147483647;
  };
  const tokens = ["The", " one", " two", " three", " four"];
  const nodes = [];
  const node = (more) =>
    nodes.push({ index: 0, reads: null, promotes: [], label: "", removed: null, position: null, layer: null, ...more });
  for (let layer = 0; layer < n_layers; layer++)
    for (let i = 0; i < 3; i++) {
      const kind = i < 2 ? "head" : "memory";
      node({
        name: `L${layer}${kind[0].toUpperCase()}${i}@${i + 2}`,
        kind,
        layer,
        index: i,
        position: i + 2,
        reads: i,
      });
    }
  for (let p = 0; p < 5; p++) node({ name: `token@${p}`, kind: "token", position: p });
  for (let layer = 0; layer < n_layers; layer++) node({ name: `rest L${layer}`, kind: "rest", layer, reads: 2 });
  node({ name: "changes", kind: "changes" });
  const rank = ({ kind, layer }) =>
    kind === "token" ? -1 : layer === null ? -1 : 10 * layer + (kind === "head" ? 0 : kind === "memory" ? 1 : 2);
  const edges = [];
  nodes.forEach((source, s) => {
    nodes.forEach((target, t) => {
      const writes = target.kind === "head" || target.kind === "memory";
      if (writes && rank(source) < rank(target) && random() < 0.5) edges.push([s, t, random() - 0.4]);
    });
    if (random() < 0.8) edges.push([s, ANSWER, random() - 0.3]);
  });
  const sum = (t) => edges.reduce((all, [, target, weight]) => (target === t ? all + weight : all), 0);
  nodes.forEach((one, i) => {
    const writes = one.kind === "head" || one.kind === "memory";
    one.relevance = one.kind === "changes" ? null : writes ? sum(i) : 0.3;
  });
  const order = nodes.map((_, i) => i).sort((a, b) => order_of(nodes[a]) - order_of(nodes[b]));
  const place = new Map(order.map((old, now) => [old, now]));
  return {
    nodes: order.map((i) => nodes[i]),
    edges: edges.map(([s, t, w]) => [place.get(s), t === ANSWER ? ANSWER : place.get(t), w]),
    tokens,
    n_prompts: 1,
    target: " five",
    against: " six",
    metric: 1,
    other_metric: null,
    counterfactual: null,
    explained: sum(ANSWER),
    probabilities: [0.5, 0.1],
    test: [],
  };
}
const order_of = ({ kind, relevance }) => (kind === "head" || kind === "memory" ? -1 - Math.abs(relevance) : 0);

const lines = (data) => (node) => (node ? boxLines(node, data) : answerLines(data, false));
const near = (a, b, what) => assert.ok(Math.abs(a - b) < 1e-9, `${what}: ${a} is not ${b}`);

test("what flows into each box, drawn and not drawn, adds up to its number", () => {
  for (const n of [3, 6, 12]) {
    const data = graph();
    const { boxes, ribbons } = fold(data, n);
    assert.equal(boxes.filter(({ kind }) => kind === "head" || kind === "memory").length, n);
    const into = (i) => ribbons.reduce((sum, r) => (r.target === i ? sum + r.weight : sum), 0);
    const out = (i) => ribbons.reduce((sum, r) => (r.source === i ? sum + r.weight : sum), 0);
    boxes.forEach((box, i) => {
      if (box.kind === "head" || box.kind === "memory") near(into(i) + box.others_in, box.relevance, box.name);
      near(out(i) + box.others_out, box.relevance, box.name);
    });
    near(into(ANSWER), data.explained, "the answer");
  }
});

test("a ribbon that is too thin is one of the others", () => {
  const data = graph();
  const few = fold(data, 8, 0.3);
  const many = fold(data, 8, 0.01);
  assert.ok(few.ribbons.length < many.ribbons.length);
  const direct = data.edges.filter(([, target]) => target === ANSWER).map(([, , weight]) => Math.abs(weight));
  const least = 0.3 * Math.max(...direct);
  for (const { source, weight } of few.ribbons)
    assert.ok(few.boxes[source].kind === "others" || Math.abs(weight) >= least);
});

const rect = ({ x, y, width, tall }) => [x - width / 2, x + width / 2, y, y + tall];
const meets = ([a, b, c, d], [e, f, g, i]) => a < f && e < b && c < i && g < d;

test("boxes do not overlap, ribbons pass beside them, and all lies within the width", () => {
  for (const [n, width, seed] of [
    [6, 900, 1],
    [10, 1200, 2],
    [10, 900, 3],
    [4, 340, 4],
    [16, 1400, 5],
  ]) {
    const data = graph(5, seed);
    const place = layout(data, n, width, lines(data));
    const boxes = place.boxes.filter(({ tall }) => tall);
    const all = [...boxes, place.answer].map(rect);
    all.forEach((a, i) => {
      for (const b of all.slice(i + 1)) assert.ok(!meets(a, b), `${n} boxes at ${width}: ${a} meets ${b}`);
    });
    for (const [left, right] of all) assert.ok(left >= 0 && right <= place.width + 0.5);
    for (const ribbon of place.ribbons)
      for (const lane of ribbon.lanes)
        for (const box of boxes.filter(({ y }) => y === rowY(place, lane)))
          assert.ok(Math.abs(lane.x - box.x) >= box.width / 2, "a ribbon passes through a box");
  }
});
const rowY = (place, lane) => place.rows[lane.row].y;

test("a part lies above all that it reads", () => {
  const data = graph();
  const { boxes, ribbons, answer } = layout(data, 10, 1100, lines(data));
  for (const { source, target } of ribbons) {
    const upper = target === ANSWER ? answer : boxes[target];
    assert.ok(upper.y + upper.tall <= boxes[source].y);
  }
  assert.ok(boxes.every(({ tall }) => !tall || tall === ROW) && boxes.every(({ y }) => y > answer.y));
});

test("places are as near as possible to the wished ones, and far enough apart", () => {
  const even = (list) =>
    pooled(
      list,
      list.map(() => 1),
      list.map((_, i) => (i ? 10 : 0)),
      0,
      100,
    );
  assert.deepEqual(even([5, 50, 90]), [5, 50, 90]);
  assert.deepEqual(even([50, 50]), [45, 55]);
  assert.deepEqual(even([0, 0, 0]), [0, 10, 20]);
  assert.deepEqual(even([100, 100]), [90, 100]);
  assert.deepEqual(pooled([0, 0], [3, 1], [0, 8], -50, 50), [-2, 6]);
});

test("a long prompt is folded where nothing happens", () => {
  const data = { ...graph(), tokens: Array.from({ length: 40 }, (_, i) => ` w${i}`) };
  for (const node of data.nodes) if (node.position !== null) node.position += 35;
  for (const node of data.nodes) if (node.reads !== null) node.reads += 35;
  const { tokens } = layout(data, 6, 1000, lines(data));
  assert.ok(tokens.length <= 6 && tokens[0].text.some((text) => /… \d+ tokens …/.test(text)));
});

test("texts are cut into lines, and an answer without an opponent has one number", () => {
  assert.deepEqual(wrapped("one two three", 7), ["one two", "three"]);
  const data = { ...graph(), against: null, probabilities: [0.25] };
  assert.deepEqual(answerLines(data, false), ["·five 25.0 %", "+1.00 logits"]);
});

test("every kind of part has a name, those without a position too", () => {
  const data = graph();
  const bias = { name: "bias L3", kind: "bias", layer: 3, position: null, relevance: 0.1 };
  assert.deepEqual(
    [
      bias,
      ...["rest L2", "changes", "token@1", "L0H1@3"].map((name) => data.nodes.find((one) => one.name === name)),
    ].map((one) => nameOf(data, one)),
    ["biases L3", "all else of layer 2", "changes of patterns, gates, norms", "token ·one", "L0H1 at ·three"],
  );
});

test("a group as one box: what comes from outside flows into it, and all other sums still hold", () => {
  const data = graph();
  const writers = data.nodes.flatMap(({ kind }, i) => (kind === "head" || kind === "memory" ? [i] : []));
  const nodes = writers.slice(1, 5);
  const drawn = withGroups(data, [{ name: "some", by: "role", nodes, effects: [] }]);
  const at = data.nodes.length;
  const inside = (i) => nodes.includes(i);
  const from = (test) => data.edges.filter(test).reduce((all, [, , weight]) => all + weight, 0);
  const outside = from(([source, target]) => !inside(source) && inside(target));
  near(drawn.nodes[at].relevance, outside, "the group");
  const own = nodes.reduce((all, i) => all + data.nodes[i].relevance, 0);
  near(outside, own - from(([source, target]) => inside(source) && inside(target)), "without what flows inside");
  assert.ok(nodes.every((i) => drawn.nodes[i].kind === "grouped" && drawn.nodes[i].relevance === null));
  assert.ok(drawn.edges.every(([source, target]) => !inside(source) && !inside(target)));
  const { boxes, ribbons } = fold(drawn, 4);
  assert.equal(boxes.filter(({ kind }) => kind === "group").length, 1);
  boxes.forEach((one, i) => {
    if (one.kind !== "head" && one.kind !== "memory" && one.kind !== "group") return;
    const into = ribbons.reduce((all, r) => (r.target === i ? all + r.weight : all), 0);
    near(into + one.others_in, one.relevance, one.name);
  });
  near(
    ribbons.reduce((all, r) => (r.target === ANSWER ? all + r.weight : all), 0),
    data.explained,
    "the answer",
  );
  assert.deepEqual(boxLines(drawn.nodes[at], drawn)[0], "4 parts");
});

test("a node's tokens are those of the measurement, and of the reading only where there is none", () => {
  const promotes = ["bin", "ric"];
  const removed = { tokens: { raised: [" Paris", " Mont", " Lyon"], lowered: [" London"] } };
  assert.equal(moves({ promotes, removed }), "raises ·Paris ·Mont ·Lyon, lowers ·London");
  const memory = { name: "L2M5@1", kind: "memory", layer: 2, index: 5, promotes, removed };
  assert.equal(boxLines({ ...memory, relevance: 1 }, {})[2], "raises ·Paris ·Mont");
  assert.equal(boxLines({ ...memory, relevance: -1 }, {})[2], "lowers ·London");
  assert.equal(boxLines({ ...memory, relevance: 1, removed: null }, {})[2], "promotes bin ric");
  assert.equal(moves({ promotes, removed: null }), "promotes bin ric");
  assert.equal(moves({ promotes: [], removed: { tokens: { raised: [], lowered: [] } } }), "");
});
