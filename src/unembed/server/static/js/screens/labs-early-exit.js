/** At which layer each token could exit, how many layers that saves, and which predictions it changes. */
import { literal } from "../code.js";
import { boxes, button, fill, h, num, rangeBox, segmented, statusLine as status, within } from "../dom.js";
import { mount as strip, token, visible } from "../islands/tokens.js";
import { about, asTable, card, pane, prompt } from "../parts.js";
import { go } from "../state.js";
import { CURVE, curveRows, drawCurve } from "./labs-early-exit-curve.js";

const METHODS = { margin: "Margin", entropy: "Entropy", agreement: "Agreement of layers" };

export function render(root, { api }) {
  const [words, curve, rest] = boxes("div", "div", "div");
  const statusLine = status("p.soft");
  let method = "margin";
  /** `found`: the answer; `place(step)` moves the point on the curve. */
  /** @type {any} */ const t = { words, curve, rest, statusLine, slider: null, found: null, place: (_step) => {} };
  const onmove = () => move(t, Number(t.slider.value));
  t.slider = rangeBox("Threshold", { min: 0, max: 1, step: 1, oninput: onmove });
  const load = () => read(t, api, method);
  const rule = segmented("Rule", METHODS, method, (v) => ((method = v), load()));
  const line = [h("span.faint", "never exits early"), h("span", { style: { flex: "1" } }, t.slider)];
  fill(root, [
    card("Early exit by threshold", rule, [
      h("div.stack", [
        h("label.row", line, h("span.faint", "exits at once")),
        statusLine,
        words,
        h("div.two", curve, rest),
        about("exit"),
      ]),
    ]),
  ]);
  load();
  const code = () => [
    `ids = lm.encode(${literal(prompt())})[0]`,
    "examples = unembed.early_exit.examples_of_prefixes(lm, [ids[: i + 1] for i in range(len(ids))])",
    `rule = unembed.early_exit.untrained(lm, ${literal(method)})`,
    "print(rule.tradeoff(examples, 24))",
  ];
  const exported = () =>
    t.found && { name: "early-exit", json: t.found, rows: [CURVE, ...curveRows(t.found.curve.rows)] };
  return Object.assign(exported, { code });
}

/** Load the whole curve; moving along it sends no request. */
const read = (t, api, method) =>
  pane(t.statusLine, async () => {
    t.found = await api.post("/labs/early-exit", { prompt: prompt(), method }, { channel: "early-exit" });
    const { rows } = t.found.curve;
    t.slider.max = String(rows.length - 1);
    t.place = drawCurve(t.curve, rows, (step) => move(t, step));
    const free = rows.findLastIndex((r) => r.disagreement === 0); // the most layers saved at no cost
    move(t, free);
  });

function move(t, step) {
  const { tokens, n_layers: layers, predictions, saturation, curve } = t.found;
  const at = within(step, curve.rows.length);
  const { exits, saved_layers: saved, disagreement } = curve.rows[at];
  const exited = exits.map((e, i) => predictions[e][i]);
  t.slider.value = String(at);
  t.place(at);
  const cost =
    ` for each token on average; ${num(disagreement)} % of the tokens differ from the full model's. ` +
    "Saved layers are not measured speed.";
  fill(t.statusLine, [
    at === 0 ? "Every token goes through all layers." : [h("b", `${num(saved)} of ${layers} layers saved`), cost],
  ]);
  const classes = exits.map((e) => `q${Math.round((16 * (e + 1)) / layers)}`);
  const title = (e, i) => `exits after layer ${e}, saturates at ${saturation[i]}; predicts ${visible(exited[i])}`;
  const onpick = (i) => go({ screen: "trace", position: String(i), layer: String(exits[i]), token: "" });
  strip(t.words, { tokens, classes, titles: exits.map(title) }, { onpick });
  drawChanges(t, exits, exited, onpick);
}

/** List the tokens whose prediction changes, and all tokens as a table. */
function drawChanges({ rest, found: { tokens, final, saturation } }, exits, exited, open) {
  const wrong = tokens.flatMap((_, i) => (exited[i] === final[i] ? [] : [i]));
  const line = (i) =>
    h("li.row", [
      button("trace", () => open(i), "quiet", { "aria-label": `Trace position ${i}` }),
      ["after ", token(tokens[i]), " predicts ", token(exited[i]), " instead of ", token(final[i])],
    ]);
  const head = ["position", "token", "exits after", "saturates at", "predicts", "full model"];
  const rows = () =>
    tokens.map((t, i) => {
      const [text, early, full] = [t, exited[i], final[i]].map(visible);
      return [...[i, text, exits[i], saturation[i]].map(String), early, full];
    });
  fill(rest, [
    h("h3", `${wrong.length} of ${tokens.length} predictions change`),
    h("ul", wrong.slice(0, 14).map(line)),
    asTable(head, rows),
  ]);
}
