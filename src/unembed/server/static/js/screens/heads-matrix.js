/** All heads: their scores as a matrix, and their patterns on a text as thumbnails. */
import { boxes, bySize, fill, h, rangeBox, segmented, worded } from "../dom.js";
import { matrix, thumbnails } from "../islands/heads.js";
import { nameOf } from "../names.js";
import { about, asTable, pane } from "../parts.js";
import { activeEdits, go, idOf } from "../state.js";

const KINDS = {
  effect: "Effect, prompt",
  moved: "Moved, prompt",
  induction: "Induction",
  previous_token: "Previous token",
  duplicate_token: "Duplicate",
  copying: "Copying",
  resting: "First token",
  eigenvalues: "OV eigenvalues",
  own: "Self-attention, prompt",
  entropy: "Entropy, prompt",
};
const ON_PROMPT = ["effect", "moved", "own", "entropy"];
const EIGENVALUES =
  "sum of the real parts of the full OV circuit's eigenvalues over the sum of their sizes: +1 copies, −1 does " +
  "the opposite";

const NOT_IN_PROMPT = "The prompt does not contain the explained token.";
const NOT_DEFINED = "This score is not defined for this model.";

/** Whether a layer has attention, alone or with another mixer, by the name of what it has. */
const attends = (mixer) => mixer.startsWith("attention");

const choose = (layer, index) => go({ head: idOf({ layer, index }, "head") });
const names = (layer, index) => nameOf({ layer, index }, "head");

/** The head with the largest score of a kind, [layer, head]. */
export function best(scores) {
  const heads = scores.flatMap((row, layer) => row.map((_, head) => [layer, head]));
  return bySize(heads, ([layer, head]) => scores[layer][head])[0];
}

/** The matrix of the selected score, which is at first the effect on the prompt if the address has one. */
export function matrixPane(t) {
  const { model } = t;
  const total = model.n_heads * model.mixers.filter(attends).length;
  let kind = t.firstKind;
  const grid = h("div", h("p.faint", "Scoring heads …"));
  const [noteLine, table] = boxes("p.faint", "div");
  const many = h("span", `${total} of ${total}`);
  const few = rangeBox("Show top n heads", { min: 1, max: total, value: String(total), oninput: draw });

  function draw() {
    const of = ON_PROMPT.includes(kind) ? t.here : t.scores;
    if (!of) return;
    const scores = kind === "eigenvalues" ? of.eigenvalues : of.scores[kind];
    if (!scores) return fill(grid, h("p.note", kind === "moved" ? NOT_IN_PROMPT : NOT_DEFINED));
    const definition = kind === "eigenvalues" ? EIGENVALUES : of.definitions[kind];
    const top = Number(few.value);
    fill(many, `${top} of ${total}`);
    matrix(grid, { scores, chosen: t.chosen, definition, top, names, mixers: model.mixers }, { onpick: choose });
    const sample = () => `${of.n_sequences} sequences of 2 × ${of.length} random tokens, seed ${of.seed}.`;
    fill(noteLine, [
      top < total && `Top ${top} of ${total} heads: `,
      `${definition}. `,
      kind === "eigenvalues" ? "From the weights alone." : of === t.scores && sample(),
    ]);
    fill(table, [asTable(["head", "score", "± 95 %"], () => rowsOf(scores, of.intervals?.[kind]))]);
  }

  /** Show another score; those on random tokens are computed when one of them is chosen for the first time. */
  function choosing(value) {
    kind = value;
    if (ON_PROMPT.includes(kind) || t.scores) return draw();
    fill(grid, h("p.faint", "Scoring heads on repeated random tokens …"));
    return t.score();
  }

  const shared = `Grouped queries: ${model.n_heads} heads share ${model.n_kv_heads} sets of keys and values.`;
  const el = h("div.stack", [
    segmented("Score", KINDS, kind, choosing),
    grid,
    worded("show top", h("span", { style: { flex: "1" } }, few), many),
    noteLine,
    about("heads"),
    table,
    model.can.shared_keys && h("p.note", shared),
  ]);
  return { el, grid, draw };
}

/** The rows of a table: each head that has the score, with its name and the score's interval. */
function rowsOf(scores, intervals) {
  const row = (layer, x, index) => {
    const head = [idOf({ layer, index }, "head"), names(layer, index)].join(" ");
    return x === null ? [] : [[head, x, intervals?.[layer][index] ?? ""]];
  };
  return scores.flatMap((all, layer) => all.flatMap((x, index) => row(layer, x, index)));
}

/** Thumbnails of all patterns on the text. */
export function thumbnailPane(t) {
  const [pictures, note] = boxes("div", "p.faint");
  const draw = () =>
    pane(pictures, async () => {
      const body = { prompt: t.text, edits: activeEdits() };
      const found = await t.api.post("/heads/patterns", body, { channel: "patterns" });
      const data = { ...found, chosen: t.chosen, name: t.calledBy, mixers: t.model.mixers };
      thumbnails(pictures, data, { onpick: choose });
      const { n_tokens: n, side } = found;
      const named = () =>
        `A head is named by its largest score on repeated random tokens, if it is ${t.scores.role_threshold} or more.`;
      fill(note, [
        n > side && `Each picture shows ${n} tokens in ${side} blocks by their largest weight. `,
        t.scores && named(),
      ]);
    });
  return { el: h("div.stack", pictures, note), draw };
}
