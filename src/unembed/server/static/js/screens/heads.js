/** Attention heads as circuits: what they attend to (QK) and what they write (OV). */
import { fill, h, textBox } from "../dom.js";
import { labels } from "../labels.js";
import { nameOf } from "../names.js";
import { card, pane, positionHere, prompt } from "../parts.js";
import { QUESTION, questionPicker, questionQuery } from "../question.js";
import { activeEdits, differ, idOf, parseId, state } from "../state.js";
import * as tray from "../tray.js";
import { headCard } from "./heads-card.js";
import { repeatedTokens, topContexts } from "./heads-examples.js";
import { matrixPane, thumbnailPane } from "./heads-matrix.js";

/** The score behind each name of a head, in words. */
const ROLES = {
  previous_token: "previous token",
  duplicate_token: "duplicate token",
  induction: "induction",
  resting: "first token",
};

export function render(root, page) {
  const { api, model } = page;
  const own = textBox("Text for the pattern", {
    value: prompt(),
    onchange: () => Promise.all([one.anew(), small.draw()]),
  });
  const why = questionPicker();
  /** State shared by the panes. `here`: the scores of every head on the prompt; `text`: the text of the patterns. */
  const t = {
    model,
    api,
    chosen: [0, 0],
    scores: null,
    here: null,
    get text() {
      return own.value || prompt();
    },
    id: () => idOf({ layer: t.chosen[0], index: t.chosen[1] }, "head"),
    /** A head's name by its scores; its label, or else that name. */
    role: (layer, head) => ROLES[t.scores?.roles[layer]?.[head]] ?? "",
    calledBy: (layer, head) => nameOf({ layer, index: head }, "head") || t.role(layer, head),
    /** The question at a position of the patterns' text; of the prompt, the question in the address. */
    question(position, text = t.text) {
      const { token, against, alone } = text === prompt() ? questionQuery() : {};
      return {
        prompt: text,
        edits: activeEdits(),
        position,
        token: token || null,
        against: against || null,
        alone: !!alone,
      };
    },
  };
  const all = matrixPane(t);
  const small = thumbnailPane(t);
  const one = headCard(t, own);
  const repeat = repeatedTokens(t);
  const examples = topContexts(t);
  const called = h("div");
  const side = (...cards) => h("div.stack", cards);
  const wrong = h("div");
  fill(root, [
    h("div.stack.bounded", [
      h("div.row", h("h1", "Heads"), why.el),
      wrong,
      h("div.two", card("All heads", null, all.el), card("Patterns on the prompt", null, small.el)),
      card(one.title, one.named, one.el),
      h("div.two", side(repeat.card), side(examples.card, card("Labels", null, called))),
    ]),
  ]);

  /** Select the head in the address. */
  function wish() {
    const found = parseId(state().head);
    if (!found) return null;
    if (found.layer < model.n_layers && found.index < model.n_heads) return (t.chosen = [found.layer, found.index]);
    const last = idOf({ layer: model.n_layers - 1, index: model.n_heads - 1 }, "head");
    api.fail(
      new api.Problem({
        code: "out_of_range",
        message: `there is no head ${state().head}`,
        fix: `The last is ${last}`,
      }),
    );
    return null;
  }

  /** Load the scores of every head on the prompt; the picker shows the prediction there. */
  const onPrompt = () =>
    pane(wrong, async () => {
      const { ids } = await api.get("/tokenize", { text: prompt() }, { channel: "heads-prompt" });
      const question = t.question(positionHere(ids.length), prompt());
      t.here = await api.post("/heads/prompt", question, { channel: "prompt-heads" });
      fill(wrong);
      why.draw(t.here);
      all.draw();
    });

  async function load() {
    const wanted = wish();
    await pane(all.grid, async () => {
      t.scores = await api.get("/heads", {}, { channel: "heads", what: "Scoring heads" });
      if (wanted) return;
      const rows = t.scores.scores.induction;
      const most = Math.max(...rows.flat().filter((x) => x !== null));
      const layer = rows.findIndex((row) => row.includes(most));
      t.chosen = [layer, rows[layer].indexOf(most)];
    });
    await Promise.all([onPrompt(), one.open(), repeat.draw(), call(), small.draw()]);
    examples.draw(); // last, because it is slow and nothing depends on it
  }

  const call = () =>
    labels(called, one.named, { layer: t.chosen[0], index: t.chosen[1], of: "head" }, () => {
      all.draw();
      small.draw();
    });

  return {
    update(now, before) {
      if (before.screen !== now.screen) return load();
      if (now.head !== before.head) {
        wish();
        all.draw();
        examples.draw();
        return Promise.all([one.open(), repeat.draw(), call(), small.draw()]);
      }
      const text = differ(now, before, "prompt", "edits", "disabled");
      if (!text && !differ(now, before, "position", ...QUESTION)) return;
      if (now.prompt !== before.prompt) own.value = prompt();
      return Promise.all([onPrompt(), text ? one.anew() : one.open(), text && small.draw()]);
    },
    key(event) {
      if (event.key === "i") return (tray.off({ layer: t.chosen[0], index: t.chosen[1] }, "head"), true);
      return false;
    },
    destroy: () => api.cancel("examples"),
    exported: () =>
      t.scores && {
        name: "heads",
        json: { ...t.scores, on_prompt: t.here },
        rows: [
          ["kind", "layer", "head", "score"],
          ...Object.entries({ ...t.scores.scores, ...t.here?.scores }).flatMap(([k, rows]) =>
            rows.flatMap((row, l) => row.flatMap((x, n) => (x === null ? [] : [[k, l, n, x]]))),
          ),
        ],
      },
  };
}
