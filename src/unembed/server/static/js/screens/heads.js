/** Attention heads as circuits: what they attend to (QK) and what they write (OV). */
import { isQuick, runOn } from "../contexts.js";
import { fill, h, textBox } from "../dom.js";
import { labels } from "../labels.js";
import { nameOf } from "../names.js";
import { card, pane, positionHere, prompt } from "../parts.js";
import { QUESTION, questionBody, questionPicker, questionQuery } from "../question.js";
import { sheet } from "../sheet.js";
import { differ, idOf, isReturning, parseId, state } from "../state.js";
import * as tray from "../tray.js";
import { headCard } from "./heads-card.js";
import { repeatedTokens, topContexts } from "./heads-examples.js";
import { best, matrixPane, thumbnailPane } from "./heads-matrix.js";
import { movedPane, movers } from "./heads-moved.js";

/** What a head is called by the score that names it. */
const ROLES = {
  previous_token: "previous token",
  duplicate_token: "duplicate token",
  induction: "induction",
};

export function render(root, page) {
  const own = textBox("Text for the pattern", {
    value: prompt(),
    onchange: () => Promise.all([panes.one.anew(), panes.small.draw()]),
  });
  const t = shared(page, own);
  const why = questionPicker();
  const panes = {
    all: matrixPane(t),
    small: thumbnailPane(t),
    one: headCard(t, own),
    repeat: repeatedTokens(t),
    examples: topContexts(t),
    called: h("div"),
    wrong: h("div"),
    moved: movedPane(t),
    why,
    /** @type {any} */ over: null,
  };
  const { all, small, one, repeat, examples, called, wrong } = panes;
  const chosen = card(one.title, one.named, one.el);
  chosen.classList.add("head-card");
  panes.over = sheet(chosen);
  t.score = () => scored(t, panes);
  fill(root, [
    h("div.stack.bounded", [
      h("div.row", h("h1", "Heads"), why.el),
      wrong,
      panes.moved.el,
      h("div.heads", [
        h("div.stack", card("All heads", null, all.el), card("Patterns on the prompt", null, small.el)),
        chosen,
      ]),
      h("div.two", [h("div.stack", repeat.card), h("div.stack", examples.card, card("Labels", null, called))]),
    ]),
  ]);
  return {
    update: (now, before) => update(t, panes, own, now, before),
    key: ({ key }) => key === "i" && (tray.off({ layer: t.chosen[0], index: t.chosen[1] }, "head"), true),
    destroy: () => page.api.cancel("examples"),
    exported: () =>
      (t.here || t.scores) && { name: "heads", json: { ...t.scores, on_prompt: t.here }, rows: rowsOf(t) },
  };
}

/** How many random tokens all heads are scored on: 16 sequences of 2 × 32. */
const SCORED = 16 * 64;

/** The state that the panes share. `here`: the scores of every head on the prompt; `text`: the text of the patterns. */
function shared({ api, model }, own) {
  const quick = isQuick(model, runOn(model, SCORED));
  const t = {
    model,
    api,
    chosen: [0, 0],
    scores: null,
    here: null,
    /** Whether the address names a head. */
    named: false,
    /** Whether the heads are scored on random tokens without a click. */
    quick,
    /** What the matrix shows at first: effects on the prompt of the address, else scores on random tokens. */
    firstKind: state().prompt || !quick ? "effect" : "induction",
    /** Score all heads on random tokens; set below, as several panes show the scores. */
    score: async () => {},
    prompt,
    get text() {
      return own.value || prompt();
    },
    id: () => idOf({ layer: t.chosen[0], index: t.chosen[1] }, "head"),
    path: () => `/heads/${t.chosen.join("/")}`,
    /** What a head is called by its scores; `calledBy` prefers its label. */
    role: (layer, head) => ROLES[t.scores?.roles[layer]?.[head]] ?? "",
    calledBy: (layer, head) => nameOf({ layer, index: head }, "head") || t.role(layer, head),
    /** The question at a position of a text: for the prompt that of the address, else the default one. */
    question: (position, text = t.text) =>
      questionBody(position, text, text === prompt() ? questionQuery() : { token: "", against: "", alone: "" }),
  };
  return t;
}

function update(t, panes, own, now, before) {
  const { all, small, one, repeat, examples } = panes;
  if (before.screen !== now.screen) return load(t, panes);
  if (now.head !== before.head) {
    t.named = !!wish(t);
    if (t.named && !isReturning()) panes.over.show();
    all.draw();
    examples.draw();
    return Promise.all([one.open(), repeat.draw(), drawLabels(t, panes), small.draw()]);
  }
  const text = differ(now, before, "prompt", "edits", "disabled");
  if (!text && !differ(now, before, "position", ...QUESTION)) return undefined;
  if (now.prompt !== before.prompt) own.value = prompt();
  return Promise.all([onPrompt(t, panes), text ? one.anew() : one.open(), text && small.draw()]);
}

/** Select the head that the address names; null if it names none, or one that the model does not have. */
function wish(t) {
  const { model, api } = t;
  const found = parseId(state().head);
  if (!found) return null;
  if (found.layer < model.n_layers && found.index < model.n_heads) return (t.chosen = [found.layer, found.index]);
  const last = idOf({ layer: model.n_layers - 1, index: model.n_heads - 1 }, "head");
  const message = `there is no head ${state().head}`;
  api.fail(new api.Problem({ code: "out_of_range", message, fix: `The last is ${last}` }));
  return null;
}

/** Load the scores of every head on the prompt; the picker shows the prediction there. */
const onPrompt = (t, { wrong, why, all, moved }) =>
  pane(wrong, async () => {
    const { ids } = await t.api.get("/tokenize", { text: prompt() }, { channel: "heads-prompt" });
    const question = t.question(positionHere(ids.length), prompt());
    t.here = await t.api.post("/heads/prompt", question, { channel: "prompt-heads" });
    fill(wrong);
    why.draw(t.here);
    all.draw();
    moved.draw();
  });

/** If the address names no head, open the one with the largest score of a kind that has just been loaded. */
function first(t, { one, all }, kind) {
  if (t.named || kind !== t.firstKind) return undefined;
  const [mover] = kind === "effect" ? movers(t.here) : [];
  t.chosen = mover
    ? [mover.layer, mover.index]
    : best(kind === "effect" ? t.here.scores.effect : t.scores.scores[kind]);
  all.draw();
  return one.open();
}

async function load(t, panes) {
  const { one, repeat, small, examples } = panes;
  t.named = !!wish(t);
  // The card of one head comes first: it does not depend on the scores of all heads.
  if (t.named) await one.open();
  await onPrompt(t, panes);
  if (t.here) await first(t, panes, "effect");
  await (t.quick ? t.score() : small.draw());
  await Promise.all([repeat.draw(), drawLabels(t, panes)]);
  examples.draw(); // last, because it is slow and nothing depends on it
}

/** Score all heads on random tokens, and show what they are called by these scores. */
const scored = (t, panes) =>
  pane(panes.all.grid, async () => {
    t.scores = await t.api.get("/heads", {}, { channel: "heads", what: "Scoring heads" });
    panes.all.draw();
    if (!t.named) await first(t, panes, "induction");
    panes.one.name();
    await panes.small.draw();
  });

function drawLabels(t, { called, one, all, small }) {
  const [layer, index] = t.chosen;
  return labels(called, one.named, { layer, index, of: "head" }, () => {
    all.draw();
    small.draw();
  });
}

function rowsOf({ scores, here }) {
  const all = Object.entries({ ...scores?.scores, ...here?.scores });
  const rows = all.flatMap(([kind, layers]) => layers.flatMap((row, l) => row.map((x, n) => [kind, l, n, x])));
  return [["kind", "layer", "head", "score"], ...rows.filter(([, , , score]) => score !== null)];
}
