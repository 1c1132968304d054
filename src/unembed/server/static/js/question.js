/** The question that all panes of a prompt answer: why the model prefers one token to another, or what makes up the logit of one. */
import * as api from "./api.js";
import { announce, button, fill, h, selectBox, textBox } from "./dom.js";
import { token, visible } from "./islands/tokens.js";
import { prompt } from "./parts.js";
import { activeEdits, state, turn } from "./state.js";

/** The question of the address as parameters of a GET request. */
export const questionQuery = () => ({
  token: state().token,
  against: state().single ? "" : state().against,
  alone: state().single ? "true" : "",
});

/** The question about a prompt with the active edits, at a position, as the body of a POST request. */
export function questionBody(position, text = prompt(), { token: target, against, alone } = questionQuery()) {
  const question = { token: target || null, against: against || null, alone: !!alone };
  return { prompt: text, edits: activeEdits(), position, ...question };
}

/** The parts of the state that make up the question. */
export const QUESTION = ["token", "against", "single"];

const OTHER = "another";

/**
 * The id of the token that a text names: the text with a space before it, if that is one token, else the text itself; a
 * text in quotes is taken exactly. A text of several tokens is reported, and the result is null.
 */
async function oneToken(text) {
  const quoted = /^"(.*)"$/s.exec(text);
  const plain = (quoted ? quoted[1] : text).replaceAll("·", " ");
  for (const form of quoted || /^\s/.test(plain) ? [plain] : [` ${plain}`, plain]) {
    const { ids } = await api.get("/tokenize", { text: form }, { channel: "one-token" });
    if (ids.length === 1) return ids[0];
  }
  const { tokens } = await api.get("/tokenize", { text: plain }, { channel: "one-token" });
  announce(`“${text}” is ${tokens.length} tokens: ${tokens.map(visible).join(" ")}. Choose one of them`);
  return null;
}

/** A list of tokens to choose from, whose last entry opens a box for any other token. */
function choice(label, chosen, options, on) {
  const box = h("span");
  const other = async (input) => {
    const id = input.value && (await oneToken(input.value));
    if (id !== null && id !== "") on(`#${id}`);
  };
  const typed = () => {
    const title = 'a word, read with the space before it; in quotes exactly as written: "ing"';
    const input = textBox(`${label}: any token`, { placeholder: "a token", size: 10, title, onkeydown });
    function onkeydown(e) {
      if (e.key === "Enter") other(input);
      if (e.key === "Escape") fill(box, list), list.focus(), e.stopPropagation();
    }
    fill(
      box,
      input,
      button("Use", () => other(input), "btn small"),
    );
    input.focus();
  };
  const all = [...options, [OTHER, "another token …"]];
  const list = selectBox(label, all, chosen, (id) => (id === OTHER ? typed() : on(id)));
  fill(box, list);
  return box;
}

const hash = (one) => `#${one.id}`;

/** Two lists, for the target and for the token that it is compared with; `draw(view)` fills them for a position. */
export function questionPicker() {
  const el = h("div.row.question", { role: "group", "aria-label": "Target and runner-up" });

  function draw({ target, against, prediction }) {
    const listed = prediction.slice(0, 10);
    const [first] = listed;
    const rivals = listed.filter((c) => c.id !== target.id);
    const [runnerUp] = rivals;
    const named = (c, more = "") => [hash(c), `${visible(c.token)}${more}`];
    const withOne = (one, list) => (one && !list.some(([id]) => id === hash(one)) ? [named(one), ...list] : list);
    const targets = listed.map((c) => named(c, c === first ? " (predicted)" : ""));
    const others = rivals.map((c) => named(c, c === runnerUp ? " (runner-up)" : ""));
    const aim = (id) => turn({ token: id === hash(first) ? "" : id, ...(id === state().against && { against: "" }) });
    const compare = (id) => {
      if (id === "none") turn({ single: "1", against: "" });
      else turn({ single: "", against: runnerUp && id === hash(runnerUp) ? "" : id });
    };
    const rivalOptions = [...withOne(against, others), ["none", "none: its logit alone"]];
    fill(el, [
      h("span.soft", "Why"),
      choice("Target", hash(target), withOne(target, targets), aim),
      h("span.soft", "rather than"),
      choice("Runner-up", against ? hash(against) : "none", rivalOptions, compare),
    ]);
  }
  return { el, draw };
}

/** The question in words: "·December over ·January", or "the logit of ·December". */
export const inWords = ({ target, against }) =>
  against ? [token(target.token), " over ", token(against.token)] : ["the logit of ", token(target.token)];

export const asText = ({ target, against }) =>
  against ? `${visible(target.token)} over ${visible(against.token)}` : `the logit of ${visible(target.token)}`;
