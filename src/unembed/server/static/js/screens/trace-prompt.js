/** The prompt: its box, its tokens while it is typed, examples, and tasks to start with. */
import { announce, button, fill, h } from "../dom.js";
import { mount as strip } from "../islands/tokens.js";
import { FIRST, prompt } from "../parts.js";
import { go, state } from "../state.js";

const EXAMPLES = [FIRST, "She put the book on the", "The blue car and the red", "The war lasted from 1861"];

/** Tasks for a new user: the text of the button, and the state that it opens. */
const TASKS = [
  ["Which memories write this token?", { screen: "trace", prompt: FIRST, by: "memory" }],
  ["Find a theme and silence it", { screen: "search", query: "January" }],
  ["Find an induction head", { screen: "heads", prompt: "one two three four one two three" }],
];

/** Milliseconds without a key after which the text is tokenized. */
const PAUSE = 60;

/** `onsubmit(text)` is called with an entered prompt. Returns `{el, show, showTokens, value}`. */
export function promptPane(page, onsubmit) {
  const { api } = page;
  const box = h("textarea", {
    "aria-label": "Prompt",
    rows: 1,
    spellcheck: "false",
    placeholder: "Write the beginning of a text …",
    oninput: typed,
    onkeydown: (e) => e.key === "Enter" && !e.shiftKey && (e.preventDefault(), submit()),
  });
  const count = h("span.faint", { role: "status" });
  const tokens = h("div.typed");
  const start = h("div.start");
  let timer = 0;

  function typed() {
    clearTimeout(timer);
    timer = setTimeout(tokenize, PAUSE);
  }

  async function tokenize() {
    const text = box.value;
    if (!text.trim()) {
      api.cancel("tokenize");
      strip(tokens, { tokens: [] });
      count.textContent = "Write a prompt to trace";
      return;
    }
    try {
      const found = await api.get("/tokenize", { text }, { channel: "tokenize" });
      const notes = [counted(found.ids.length, found.limit)];
      if (found.changed !== null)
        notes.push(`the tokenizer changes the text from “${text.slice(found.changed, found.changed + 12)}” on`);
      count.textContent = notes.join("; ");
      strip(tokens, { tokens: text === state().prompt ? [] : found.tokens });
    } catch (error) {
      api.fail(error);
    }
  }

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

  const counted = (n, limit) => `${n.toLocaleString("en")} token${n === 1 ? "" : "s"}${limit ? ` of ${limit}` : ""}`;

  const el = h("section.prompt", { "aria-label": "Prompt" }, [
    start,
    box,
    h("div.row", button("Trace", submit, { class: "btn main", title: "Enter" }), count),
    h("div.row.examples", [
      h("span.faint", "Examples"),
      EXAMPLES.map((text) =>
        button(text, () => go({ prompt: text, position: "", layer: "", token: "" }), {
          class: "btn small",
          "aria-label": `Example: ${text}`,
        }),
      ),
    ]),
    tokens,
  ]);

  return {
    el,
    get value() {
      return box.value;
    },
    /** Show the prompt of the address, unless the user has edited the box, which contained `before`. */
    show(before, anew) {
      const text = prompt();
      const free = anew || document.activeElement !== box || !before;
      if (box.value === before && before !== text && free) box.value = text;
      fill(start, [
        !state().prompt && [
          h("p", [
            "See how the model builds its next-token prediction: which layers, heads and memories (FFN neurons) " +
              "promote it, and what changes when you edit them.",
          ]),
          h("div.row", [TASKS.map(([title, change]) => button(title, () => go(change), { class: "btn small" }))]),
        ],
      ]);
    },
    /** Show the number of tokens of the trace. */
    showTokens(n, limit) {
      if (box.value !== prompt()) return; // the user is typing another one
      tokens.replaceChildren();
      count.textContent = counted(n, limit);
    },
  };
}
