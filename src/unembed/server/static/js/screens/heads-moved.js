/** The heads that copy the target from the prompt, and the prediction without them. */
import { button, bySize, fill, fixed, h, many, percent, places } from "../dom.js";
import { token, visible } from "../islands/tokens.js";
import { answered, link } from "../parts.js";
import { activeEdits } from "../state.js";
import * as tray from "../tray.js";

/** How many heads are listed, and removed together. */
const LISTED = 5;

/** The heads that promote the target most where they read the same word in the prompt, the largest `amount` first. */
export function movers({ scores: { moved } }) {
  const all = (moved ?? []).flatMap((row, layer) => row.map((amount, index) => ({ layer, index, amount })));
  const positive = all.filter(({ amount }) => amount > 0);
  return bySize(positive, ({ amount }) => amount).slice(0, LISTED);
}

/** The pane, which is hidden if the prompt does not contain the target. */
export function movedPane(t) {
  const el = h("section.stack.tight", { "aria-label": "Heads that move the token", hidden: true });
  function draw() {
    const list = movers(t.here);
    const { target, against, copied, position } = t.here;
    el.hidden = !list.length;
    if (!list.length) return undefined;
    const digits = places(list.map(({ amount }) => amount));
    const each = list.map((one) => [link(one, "head").slice(0, 1), ` ${fixed(one.amount, digits, true)} `]);
    const from = copied.map((one) => `${visible(one.token)} (${one.position})`).join(", ");
    const without = h("p");
    const off = () => tray.addAll(list, "scale", 0, "head");
    const over = against ? ["logits over ", token(against.token)] : "logits";
    const how = `, by what they read at ${from} from position ${position}`;
    const all = list.length === 1 ? "it" : `all ${list.length}`;
    fill(el, [
      h("p", h("b", "Heads that move ", token(target.token), " here: "), each, h("span.soft", over, how)),
      without,
      h("div.row", button(`Knock out ${all}`, off, "btn small")),
    ]);
    return activeEdits().length ? undefined : measured(t, without, list);
  }
  return { el, draw };
}

/** Measure the model's prediction without these heads at the position. */
function measured(t, box, list) {
  const { target, against, position, probabilities: before } = t.here;
  const parts = list.map(({ layer, index }) => ({ part: "head", layer, index, at: position }));
  const body = { ...t.question(position, t.prompt()), edits: [], parts };
  const ask = () => t.api.post("/flow/group", body, { channel: "heads-moved", what: "Measuring" });
  return answered(box, ask, ({ probabilities }) => {
    const line = (one, i) => [token(one.token), ` from ${percent(before[i])} to ${percent(probabilities[i])}`];
    const heads = list.length === 1 ? "this head" : `these ${many(list.length, "head")}`;
    return [
      h("span.soft", `Without ${heads} here (measured): `),
      [line(target, 0), against && [", ", line(against, 1)], "."],
    ];
  });
}
