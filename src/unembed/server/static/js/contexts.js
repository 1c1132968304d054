/** Passages of a corpus, each shown up to a marked token; one switch sets the length shown of all of them. */
import { button, fill, h, num, percent, segmented } from "./dom.js";
import { token, visible } from "./islands/tokens.js";
import { go } from "./state.js";

const LENGTHS = { 8: "Short", 24: "Medium", 400: "Full" };
let length = "24";

/** How many multiplications a slow processor does in a second; work that takes longer than `UNASKED` seconds needs a click. */
const SPEED = 2e10;
const UNASKED = 3;

/** Whether work of so many multiplications starts without a click; `runOn` counts those of a run on so many tokens. */
export const isQuick = ({ device }, work) => device !== "cpu" || work / SPEED < UNASKED;
export const runOn = ({ n_layers, d_model }, tokens) => 12 * n_layers * d_model ** 2 * tokens;

/** A switch for the length, which draws all lists of passages on the page again. */
export const lengths = () =>
  segmented("Length", LENGTHS, length, (value) => {
    length = value;
    for (const box of document.querySelectorAll("[data-passages]")) /** @type {any} */ (box).draw();
  });

/** The shade of a coefficient: blue where positive, orange where negative. */
export function shade(m, most) {
  const q = Math.round((6 * Math.abs(m)) / most);
  return q ? `${m < 0 ? "w" : "c"}${Math.min(6, q)}` : "";
}

/**
 * Show the first few passages, and a button for the others. Tokens are shaded by their `coefficients`, which `quantity`
 * names. A passage's `source`, the token to which its last token attends, is marked and named too.
 */
export function contexts(box, rows, first, quantity = "coefficient") {
  const most = Math.max(...rows.map((r) => Math.abs(r.coefficient)), 1e-9);
  let shown = first;
  const all = () => {
    shown = 99;
    box.draw();
  };
  const line = (r) =>
    h("div.trigger", [
      h("span.value", { title: `document ${r.document}, token ${r.position}` }, num(r.coefficient)),
      passage(r, most, quantity),
      r.prompt !== null && useButton(r),
    ]);
  box.draw = () =>
    fill(box, rows.slice(0, shown).map(line), shown < rows.length && button(`Show all ${rows.length}`, all, "quiet"));
  box.dataset.passages = "";
  box.draw();
}

function passage({ tokens, source, coefficients, weight, document, next_token: next }, most, quantity) {
  const last = tokens.length - 1;
  const from = Math.max(0, Math.min(last - Number(length), (source ?? last) - 2));
  const word = (text, k) => {
    const i = from + k;
    const title = i in coefficients ? `${quantity} ${coefficients[i].toPrecision(4)}` : undefined;
    const cls = i === last ? "" : i === source ? "from" : shade(coefficients[i] || 0, most);
    return h(i === last ? "mark" : "span", { class: cls, title }, text.replace(/\s+/g, " "));
  };
  return h("div.context", { dir: "auto" }, [
    from > 0 && "… ",
    tokens.slice(from).map(word),
    h("span.next", { title: "the token that follows in the corpus" }, ` ${visible(next || "")}`),
    h("small.faint", [
      ` document ${document}`,
      weight !== undefined && [", reads ", token(tokens[source]), ` (${percent(weight)})`],
    ]),
  ]);
}

function useButton({ prompt, tokens, position }) {
  const text = prompt || tokens.join("").trimStart();
  const at = prompt ? String(position) : "";
  return button("use", () => go({ screen: "trace", prompt: text, position: at, token: "", layer: "" }), "quiet", {
    title: "Use the whole passage as prompt",
    "aria-label": "Use this text as the prompt",
  });
}
