/** One head: what it does here, its pattern and contributions by source token on a text; beside them, its circuits. */
import {
  boxes,
  bySize,
  clamp,
  drawn,
  fill,
  fixed,
  h,
  num,
  part,
  percent,
  places,
  segmented,
  signed,
  sumOf,
  tickBox,
} from "../dom.js";
import * as arcs from "../islands/arcs.js";
import { pattern } from "../islands/heads.js";
import { mount as strip, token, visible } from "../islands/tokens.js";
import { answered, asTable, pane, positionHere, prompt } from "../parts.js";
import { asText, inWords } from "../question.js";
import { activeEdits } from "../state.js";
import { circuits } from "./heads-circuits.js";
import { here } from "./heads-here.js";

/**
 * The card of the chosen head. `own`: the box of the text. `name()` shows the head's name, `open()` its content, and
 * `anew()` its content for a new text, in which no position is selected.
 */
export function headCard(t, own) {
  const [el, title, named] = boxes("div.stack", "span", "div.row");
  fill(title, "Choose a head");
  /** `position`: the attending token, by default that of the address; `measure` and `hideFirst`: how the pattern is shown. */
  const shown = { position: null, measure: "weights", hideFirst: true };
  const read = (position) => {
    shown.position = position;
    return open();
  };

  /** Show the head's id, and its role once all heads are scored. */
  function name() {
    const role = t.role(...t.chosen);
    title.textContent = `${t.id()}${role ? ` · ${role} head` : ""}`;
  }

  async function open() {
    const [layer, head] = t.chosen;
    name();
    await pane(el, async () => {
      const body = { prompt: t.text, edits: activeEdits() };
      const found = await t.api.post(`${t.path()}/attention`, body, { channel: "pattern" });
      const last = found.tokens.length - 1;
      const at = Math.min(shown.position ?? (t.text === prompt() ? positionHere(last + 1) : last), last);
      const row = found.weights[at];
      const best = row.indexOf(Math.max(...row));
      const ends = { source: `#${found.ids[best]}`, destination: `#${found.ids[at]}` };
      const circuit = await t.api.get(t.path(), ends, { channel: "head" });
      if (t.chosen[0] === layer && t.chosen[1] === head) await draw(found, circuit, at, best);
    });
  }

  function draw(found, circuit, at, best) {
    const [sources, terms] = boxes("div", "p.faint");
    const note =
      `Attends most to ${visible(found.tokens[best])} (${percent(found.weights[at][best])}). Orange: tokens that it ` +
      "attends to; blue: later tokens that attend to it. Click a token to select it.";
    const now = here(t, found, at);
    const from = ["Attention from ", token(found.tokens[at]), ` (${at})`];
    fill(el, [
      now.el,
      h("div.two", [
        h("div.stack", [
          h("label.row.faint", "text", h("span", { style: { flex: "1", display: "grid" } }, own)),
          part("Contribution by source token", sources),
          part(from, looks(found, at, read), h("p.faint", note), terms),
          weights(found, shown),
        ]),
        h("div.stack", circuits(t, circuit)),
      ]),
    ]);
    drawTerms(t, terms, at, best);
    return Promise.all([now.done, drawSources(t, sources, found, at, read)]);
  }

  return { el, title, named, name, open, anew: () => read(null) };
}

/** The tokens of the text, orange where the chosen one attends to them, blue where they attend to it. */
function looks({ tokens, weights }, at, onpick) {
  const between = (from, i) => (i <= from ? weights[from][i] : weights[i][from]);
  const shade = (w, i, from) => (w > 0.01 ? `${i <= from ? "w" : "c"}${clamp(Math.ceil(w * 6), 1, 6)}` : "");
  const shades = (from) => tokens.map((_, i) => shade(between(from, i), i, from));
  const titles = tokens.map((_, i) => `${i <= at ? "attended to" : "attends to it"}: ${percent(between(at, i))}`);
  const words = h("div");
  const onhover = (i) => chips.shade(shades(i ?? at));
  const chips = strip(words, { tokens, selected: at, classes: shades(at), titles }, { onpick, onhover });
  return words;
}

/** The pattern as a triangle, by weight or by contribution. */
function weights(found, shown) {
  if (!found.norms) shown.measure = "weights";
  const map = h("div");
  const statusLine = h("p.faint", { role: "status" });
  const draw = () => {
    const { measure, hideFirst } = shown;
    const rows = found[measure];
    const norms = measure === "norms";
    const unit = norms ? Math.max(...rows.flatMap((r) => r.slice(hideFirst ? 1 : 0)), 1e-9) : 1;
    const format = norms ? (x) => `contribution ${num(x * unit)}` : undefined;
    pattern(map, { tokens: found.tokens, weights: rows.map((r) => r.map((x) => x / unit)), hideFirst, format });
    const first = rows.at(-1)[0];
    fill(statusLine, [
      hideFirst && `The first column is hidden; the last row gives it ${norms ? num(first) : percent(first)}. `,
      norms && `Weight times the norm of the value as the head writes it; the darkest is ${num(unit)}.`,
    ]);
  };
  draw();
  const named = (i) => `${i} ${visible(found.tokens[i])}`;
  const rows = () => found.weights.flatMap((r, d) => r.map((w, i) => [named(d), named(i), w, found.norms[d][i]]));
  const measures = { weights: "Attention weight", ...(found.norms && { norms: "Contribution" }) };
  return h("div", [
    segmented("Shade by", measures, shown.measure, (value) => ((shown.measure = value), draw())),
    map,
    tickBox("Leave out the first position", shown.hideFirst, (on) => ((shown.hideFirst = on), draw())),
    statusLine,
    asTable(["destination", "source", "weight", "contribution"], rows),
  ]);
}

/** Write the attention score between two tokens as a sum of terms; with edits there is no such sum. */
function drawTerms(t, box, destination, source) {
  if (activeEdits().length) return;
  const body = { prompt: t.text, destination, source };
  const draw = ({ score, terms }) => {
    const digits = places(Object.values(terms));
    const each = Object.entries(terms).map(([name, x]) => `${name.replace(" x ", " × ")} ${fixed(x, digits, true)}`);
    fill(box, `Score before the softmax ${signed(score)}: ${each.join(", ")}`);
  };
  // in some families the score is not a sum of such terms
  t.api.post(`${t.path()}/terms`, body, { channel: "terms" }).then(draw, () => {});
}

/** Draw what the head adds to the logits in question, by source token, as arcs over the text. */
function drawSources(t, box, { tokens }, at, onpick) {
  const ask = () => t.api.post(`${t.path()}/sources`, t.question(at), { channel: "sources" });
  return answered(box, ask, (answer) => {
    const values = answer.contributions;
    const of = asText(answer);
    const digits = places(values);
    const number = (x) => fixed(x, digits, true);
    const label = `What ${t.id()} adds to ${of} at position ${at}, by source token`;
    const order = bySize(values.keys(), (i) => values[i]);
    const largest = order.slice(0, 3).map((i) => `${number(values[i])} from ${visible(tokens[i])} (${i})`);
    return [
      drawn(arcs.mount, { tokens, from: at, values, label, format: (x) => `${number(x)} to ${of}` }, { onpick }),
      h("p.faint", [
        `Adds ${number(sumOf(values, Number))} logits to `,
        inWords(answer),
        `: ${largest.join(", ")}. Blue promotes the target, orange suppresses it.`,
      ]),
      asTable(["source", "contribution"], () => values.map((x, i) => [`${i} ${visible(tokens[i])}`, x])),
    ];
  });
}
