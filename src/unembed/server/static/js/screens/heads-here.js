/** What the chosen head does at one position of the text: where it attends, what it adds, what that promotes. */
import { boxes, button, bySize, fill, fixed, h, percent, places } from "../dom.js";
import { token } from "../islands/tokens.js";
import { answered, toks } from "../parts.js";
import { inWords } from "../question.js";
import * as tray from "../tray.js";

/** How many sources are named at most, and the least weight of one after the first. */
const NAMED = 3;
const LEAST = 0.05;
const WRITTEN = 8;

/** The sources with the largest attention weights, as [position, weight], the largest first. */
const mostRead = (weights) =>
  bySize([...weights.entries()], ([, w]) => w).filter(([, w], n) => n === 0 || (n < NAMED && w >= LEAST));

/** Make the section; `found`: the head's pattern; `at`: the position. `done` resolves when the answer is drawn. */
export function here(t, found, at) {
  const [effect, promotes, suppresses] = boxes("p", "p", "p");
  const [layer, index] = t.chosen;
  const place = (i) => [token(found.tokens[i]), ` (${i})`];
  const read = mostRead(found.weights[at]).map(([i, w], n) => [n > 0 && ", ", place(i), ` ${percent(w)}`]);
  const ask = () => t.api.post(`${t.path()}/here`, t.question(at), { channel: "head-here" });
  const done = answered(effect, ask, (answer) => {
    const { score, share, top_tokens: top, bottom_tokens: bottom } = answer.update;
    const lens = answer.basis === "jacobian" ? "fitted lens" : "logit lens";
    fill(promotes, h("span.soft", `By the ${lens}, what it writes promotes `), toks(top, WRITTEN));
    fill(suppresses, h("span.soft", "and suppresses "), toks(bottom, WRITTEN));
    return [
      h("span.soft", "Effect "),
      h("b", fixed(score, places([score]), true)),
      " logits on ",
      inWords(answer),
      h("span.faint", `, ${percent(share)} of the size of all that the layer's heads write here`),
    ];
  });
  const off = () => tray.off({ layer, index }, "head");
  const title = "adds the edit to all screens: this head writes nothing, at every position";
  const el = h("section.head-here.stack.tight", { "aria-label": "What the head does here" }, [
    h("div.row", h("h3", "Here, at ", place(at)), h("span.spacer"), button("Knock out", off, "btn small", { title })),
    h("p", h("span.soft", "Attends to "), read),
    effect,
    promotes,
    suppresses,
  ]);
  return { el, done };
}
