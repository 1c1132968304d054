/** Compare two prompts: activation patching shows which layers and positions make their predictions differ. */
import { literal } from "../code.js";
import { button, fill, h, namedBoxes, num, promptBox, signed, statusLine, textBox, worded } from "../dom.js";
import { token } from "../islands/tokens.js";
import { about, candidates, card, choice, comparedPrompts, dimming, pane } from "../parts.js";
import { differ, go, state, turn } from "../state.js";
import { drawMap, drawParts, openCell, POINTS, patchingRows } from "./compare-map.js";
import { continueAll } from "./compare-texts.js";

const SIDES = { clean: "Clean prompt", corrupted: "Corrupted prompt" };
const NOTHING_PICKED = { layer: "", position: "", patched: "" };
const DIRECTIONS = [
  ["denoising", "Clean into corrupted", "denoising"],
  ["noising", "Corrupted into clean", "noising"],
];

export function render(root, page) {
  const submit = () => enter(t);
  const panes = {
    ...namedBoxes({
      both: "div.two",
      map: "div",
      scale: "p.faint",
      mapTable: "div",
      parts: "div.stack",
      texts: "div.three",
    }),
    difference: statusLine("p"),
    cellSentence: statusLine("p.soft"),
    statusLine: statusLine("p.soft"),
  };
  const inputs = {
    prompts: Object.values(SIDES).map((name) => promptBox(name, submit, { rows: 2 })),
    target: textBox("Target token", { size: 10, onchange: () => turn({ token: t.target.value }) }),
    rival: textBox("Compared with", { size: 10, onchange: () => turn({ against: t.rival.value }) }),
  };
  /**
   * The state of the screen and the elements of its panes. `view`: the comparison; `found`: the patching of every layer
   * and position; `inside`: that of the heads and memories of the chosen cell.
   */
  /** @type {any} */ const t = { page, api: page.api, ...panes, ...inputs, view: null, found: null, inside: null };
  fill(root, frame(t, submit));
  return {
    update: (now, before) => update(t, now, before),
    key(event) {
      if (event.key !== "Escape" || state().layer === "") return false;
      turn(NOTHING_PICKED);
      return true;
    },
    code: () => code(t),
    exported: () =>
      t.found && {
        name: "patching",
        json: { comparison: t.view, patching: t.found, heads: t.inside?.heads, memories: t.inside?.memories },
        rows: [["layer", "position", "token", "logit_difference", "fraction_recovered"], ...patchingRows(t.found)],
      },
  };
}

function frame(t, submit) {
  const swap = () => {
    const [prompt, other] = comparedPrompts();
    go({ prompt: other, other: prompt, token: "", against: "", ...NOTHING_PICKED });
  };
  const which = [choice("Patch", "point", POINTS), choice("Direction", "direction", DIRECTIONS)];
  const start = button("Continue all three", () => continueAll(t), "btn small");
  return h("div.stack.bounded", [
    h("h1", "Compare two prompts"),
    h("div.two", [Object.values(SIDES).map((name, i) => h("label.stack.tight", h("span.faint", name), t.prompts[i]))]),
    h("div.row", button("Compare", submit, "btn main", { title: "Enter" }), button("Swap", swap, "btn")),
    card("Next token", [worded("target", t.target), worded("against", t.rival)], t.both, t.difference),
    card("Activation patching", which, t.map, t.scale, t.cellSentence, about("patching"), t.mapTable),
    h(
      "div.two",
      card("Heads and memories of the cell", null, t.parts),
      card("Continuations", start, t.statusLine, t.texts),
    ),
  ]);
}

function enter(t) {
  const [prompt, other] = t.prompts.map((box) => box.value);
  if (!prompt.trim() || !other.trim()) return fill(t.difference, "Write both prompts.");
  go({ prompt, other, token: "", against: "", ...NOTHING_PICKED });
  return undefined;
}

function update(t, now, before) {
  if (differ(now, before, "screen", "prompt", "other", "token", "against")) return load(t);
  if (!t.view) return undefined;
  if (differ(now, before, "point", "direction")) return patch(t);
  if (differ(now, before, "layer", "position")) {
    drawMap(t);
    return openCell(t, query());
  }
  if (differ(now, before, "patched") && t.inside) drawParts(t);
  return undefined;
}

function query() {
  const [clean, corrupted] = comparedPrompts();
  return { clean, corrupted, token: state().token || null, against: state().against || null };
}

async function load(t) {
  const prompts = comparedPrompts();
  t.prompts.forEach((box, i) => {
    box.value = prompts[i];
  });
  t.found = t.inside = null;
  for (const el of [t.parts, t.texts, t.statusLine]) fill(el);
  if (!prompts[1]) {
    t.view = null;
    for (const el of [t.map, t.scale, t.cellSentence, t.mapTable, t.difference]) fill(el);
    fill(t.both, h("p.note", "Write a second prompt: best one that differs in a word or two."));
    return t.prompts[1].focus();
  }
  await dimming([t.both, t.map], t.both, async () => {
    t.view = await t.api.post("/comparison", query(), { channel: "comparison", what: "Comparing" });
    drawBoth(t);
    await patch(t);
  });
}

/** Patch each layer and position on its own. */
const patch = (t) =>
  pane(t.map, async () => {
    const { point, direction } = state();
    const body = { ...query(), point, direction };
    t.found = await t.api.post("/patching", body, { channel: "patching", what: "Patching" });
    drawMap(t);
    await openCell(t, query());
  });

/** Show both prompts, token by token, with their predictions and the difference of the two logits. */
function drawBoth({ view, both, target: targetBox, rival, difference }) {
  const { target: one, against: other } = view;
  targetBox.value = one.token;
  rival.value = other.token;
  const inverse = view.pairs.map(([a, c]) => [c, a]);
  fill(both, [prompted(view, "clean", "corrupted", view.pairs), prompted(view, "corrupted", "clean", inverse)]);
  const [clean, corrupted] = [view.clean, view.corrupted].map(({ logits }) => h("b", signed(logits[0] - logits[1])));
  fill(difference, [
    ["Logit of ", token(one.token), " minus ", token(other.token), ": "],
    [clean, " with the clean prompt, ", corrupted, ` with the corrupted one. Alignment ${view.alignment}.`],
  ]);
}

function prompted(view, side, away, pairs) {
  const { tokens, prediction, logits } = view[side];
  const there = new Map(pairs);
  const word = (t, at) => {
    const pair = there.get(at);
    const alone = pair === undefined;
    const cls = alone ? "alone" : view[away].tokens[pair].id === t.id ? "common" : "differs";
    const title = `position ${at}: ${alone ? "no corresponding token" : `corresponds to position ${pair}`}`;
    return h("span", { class: cls, title }, token(t.token));
  };
  const { target: one, against: other } = view;
  return h("div.stack.tight", [
    h("h3", SIDES[side]),
    h("p.aligned", tokens.map(word)),
    candidates(prediction, { n: 5, onpick: (c) => turn({ token: `#${c.id}`, against: "" }) }),
    h("p.faint", token(one.token), ` logit ${num(logits[0])}, `, token(other.token), ` ${num(logits[1])}`),
  ]);
}

function code({ view }) {
  const [first, second] = comparedPrompts();
  const { point, direction } = state();
  const aligned = view?.clean.tokens.length === view?.corrupted.tokens.length;
  return [
    `patching = lm.patch(${literal(first)}, ${literal(second || first)}, ${literal(point)},`,
    `    unembed.logit_difference(${view?.target.id ?? 0}, ${view?.against.id ?? 1}), ` +
      `direction=${literal(direction)}${aligned ? "" : ', alignment="auto"'})`,
    "print(patching.to_table())",
  ];
}
