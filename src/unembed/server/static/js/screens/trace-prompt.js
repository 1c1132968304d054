/** The prompt: its box, its tokens while it is typed, examples, and tasks to start with. */
import { announce, boxes, button, fill, grouped, h, promptBox } from "../dom.js";
import { mount as strip } from "../islands/tokens.js";
import { FIRST, prompt } from "../parts.js";
import { go, state } from "../state.js";

const EXAMPLES = [FIRST, "She put the book on the", "The blue car and the red", "The war lasted from 1861"];

/** Tasks for a new user: the text of the button, and the state that it opens. */
const TASKS = {
  "Which memories write this token?": { screen: "trace", prompt: FIRST, by: "memory" },
  "Find a theme and silence it": { screen: "search", query: "January" },
  "Find an induction head": { screen: "heads", prompt: "one two three four one two three" },
};

/** Milliseconds without a key after which the text is tokenized. */
const PAUSE = 60;

const counted = (n, limit) => `${grouped(n)} token${n === 1 ? "" : "s"}${limit ? ` of ${limit}` : ""}`;

/** `onsubmit(text)` is called with an entered prompt. Returns `{el, show, showTokens, value}`. */
export function promptPane({ api }, onsubmit) {
  const [tokens, start] = boxes("div.typed", "div.start");
  const count = h("span.faint", { role: "status" });
  let timer = 0;
  const typed = () => {
    clearTimeout(timer);
    timer = setTimeout(tokenize, PAUSE, api, box, tokens, count);
  };
  const box = promptBox("Prompt", submit, { placeholder: "Write the beginning of a text …", oninput: typed });

  function submit() {
    clearTimeout(timer);
    if (box.value.trim()) {
      if (box.value !== state().prompt) count.textContent = ""; // until its trace says how many tokens it has
      return onsubmit(box.value);
    }
    api.cancel("tokenize"); // its answer would replace the message
    count.textContent = "The prompt is empty: write at least one word";
    announce(count.textContent);
    box.focus();
  }

  return {
    el: h("section.prompt", { "aria-label": "Prompt" }, [
      start,
      box,
      h("div.row", button("Trace", submit, "btn main", { title: "Enter" }), count),
      h("div.row.examples", h("span.faint", "Examples"), EXAMPLES.map(example)),
      tokens,
    ]),
    get value() {
      return box.value;
    },
    /** Show the prompt of the address, unless the user has edited the box, which contained `before`. */
    show(before, anew) {
      const text = prompt();
      const free = anew || document.activeElement !== box || !before;
      if (box.value === before && before !== text && free) box.value = text;
      fill(start, !state().prompt && welcome());
    },
    /** Show the number of tokens of the trace. */
    showTokens(n, limit) {
      if (box.value !== prompt()) return; // the user is typing another one
      tokens.replaceChildren();
      count.textContent = counted(n, limit);
    },
  };
}

/** Show the tokens of the text in the box. */
async function tokenize(api, box, tokens, count) {
  const text = box.value;
  if (!text.trim()) {
    api.cancel("tokenize");
    strip(tokens, { tokens: [] });
    count.textContent = "Write a prompt to trace";
    return;
  }
  try {
    const found = await api.get("/tokenize", { text }, { channel: "tokenize" });
    const { changed } = found;
    const other = () => `; the tokenizer changes the text from “${text.slice(changed, changed + 12)}” on`;
    count.textContent = counted(found.ids.length, found.limit) + (changed === null ? "" : other());
    strip(tokens, { tokens: text === state().prompt ? [] : found.tokens });
  } catch (error) {
    api.fail(error);
  }
}

const example = (text) =>
  button(text, () => go({ prompt: text, position: "", layer: "", token: "" }), "btn small", {
    "aria-label": `Example: ${text}`,
  });

const welcome = () => [
  h("p", [
    "See how the model builds its next-token prediction: which layers, heads and memories (FFN neurons) " +
      "promote it, and what changes when you edit them.",
  ]),
  h("div.row", [Object.entries(TASKS).map(([title, change]) => button(title, () => go(change), "btn small"))]),
];
