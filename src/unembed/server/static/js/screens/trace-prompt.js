/** The prompt: its box, the chat switch, its tokens while it is typed, examples, and tasks to start with. */
import { announce, boxes, button, fill, grouped, h, promptBox, tickBox } from "../dom.js";
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

const counted = (n, limit) => `${grouped(n)} token${n === 1 ? "" : "s"}${limit ? ` of ${grouped(limit)}` : ""}`;

/** What the user entered: the message of a conversation, or the prompt itself. */
const entered = () => state().chat || prompt();

/** Enter a text as the prompt or, where `chat`, as a user's message. */
async function enterText(api, text, chat) {
  const change = { prompt: text, chat: "", position: "", token: "", layer: "" };
  if (!chat) return go(change);
  try {
    go({ ...change, ...(await conversation(api, text)) });
  } catch (error) {
    api.fail(error);
  }
}

/** The prompt that the chat template makes of a user's message; the server then knows the role of each token. */
export async function conversation(api, chat) {
  const { prompt } = await api.get("/tokenize", { text: chat, chat: true }, { channel: "chat" });
  return { prompt, chat };
}

/** Make the pane; `onsame()` is called when the prompt of the address is entered again. */
export function promptPane({ api, model }, onsame) {
  const [tokens, start, plain] = boxes("div.typed", "div.start", "span.faint");
  const count = h("span.faint", { role: "status" });
  let timer = 0;
  const typed = () => {
    clearTimeout(timer);
    timer = setTimeout(tokenize, PAUSE, api, box, tokens, count, chat());
  };
  const box = promptBox("Prompt", submit, { placeholder: "Write the beginning of a text …", oninput: typed });
  const turned = (on) => box.value.trim() && enterText(api, box.value, on);
  const chatBox = model.can.chat && tickBox("As a user's message", !!state().chat, turned);
  const chat = () => !!chatBox && chatBox.firstChild.checked;

  function submit() {
    clearTimeout(timer);
    if (box.value.trim()) {
      const isSame = box.value === (state().chat || state().prompt) && chat() === !!state().chat;
      if (!isSame) count.textContent = ""; // until its trace says how many tokens it has
      enterText(api, box.value, chat());
      return isSame && onsame();
    }
    api.cancel("tokenize"); // its answer would replace the message
    count.textContent = "The prompt is empty: write at least one word";
    announce(count.textContent);
    box.focus();
  }

  const trace = button("Trace", submit, "btn main", { title: "Enter" });
  const examples = h("details.examples", { open: !state().prompt }, [
    h("summary.faint", "Examples"),
    h("div.row", [EXAMPLES.map((text) => example(text, () => enterText(api, text, chat())))]),
  ]);
  return {
    el: h("section.prompt", { "aria-label": "Prompt" }, [
      start,
      h("div.row.entry", box, trace),
      h("div.row.under", chatBox, plain, count, examples),
      tokens,
    ]),
    get value() {
      return box.value;
    },
    /** Show the prompt of the address, unless the user has edited the box, which contained `before`. */
    show(before, anew) {
      const text = entered();
      const free = anew || document.activeElement !== box || !before;
      if (box.value === before && before !== text && free) box.value = text;
      if (chatBox) chatBox.firstChild.checked = !!state().chat;
      fill(start, !state().prompt && welcome());
      if (anew) /** @type {HTMLDetailsElement} */ (examples).open = !state().prompt;
    },
    /** Show how many tokens the trace has, and warn where a model of conversations is given plain text. */
    showTrace(data) {
      plain.textContent = data.without_chat ? `${model.name} was trained on conversations; this is given as it is` : "";
      this.showTokens(data.tokens.length, model.n_ctx);
    },
    showTokens(n, limit) {
      if (box.value !== entered()) return; // the user is typing another one
      tokens.replaceChildren();
      count.textContent = counted(n, limit);
    },
  };
}

async function tokenize(api, box, tokens, count, chat) {
  const text = box.value;
  if (!text.trim()) {
    api.cancel("tokenize");
    strip(tokens, { tokens: [] });
    count.textContent = "Write a prompt to trace";
    return;
  }
  try {
    const query = chat ? { text, chat } : { text };
    const found = await api.get("/tokenize", query, { channel: "tokenize" });
    const { changed } = found;
    const other = () => `; the tokenizer changes the text from “${found.prompt.slice(changed, changed + 12)}” on`;
    count.textContent = counted(found.ids.length, found.limit) + (changed === null ? "" : other());
    strip(tokens, { tokens: found.prompt === state().prompt ? [] : found.tokens });
  } catch (error) {
    api.fail(error);
  }
}

const example = (text, onclick) => button(text, onclick, "btn small", { "aria-label": `Example: ${text}` });

const WELCOME =
  "See how the model builds its next-token prediction: which layers, heads and memories (FFN neurons) promote it, and " +
  "what changes when you edit them.";

function welcome() {
  const task = ([title, change]) => button(title, () => go(change), "btn small");
  return [h("p", WELCOME), h("div.row", Object.entries(TASKS).map(task))];
}
