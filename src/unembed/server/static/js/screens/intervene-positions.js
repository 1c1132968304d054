/** What the edits change at every position of the prompt: its tokens, shaded by how much, and the numbers. */
import { boxes, clamp, fill, h, num, percent, statusLine } from "../dom.js";
import { mount as strip, token, visible } from "../islands/tokens.js";
import { asTable, pane, prompt } from "../parts.js";

/** A token with at least this divergence, in nats, has the darkest shade. */
const FULL = 1;

const shadeOf = (nats) => (nats < 0.001 ? "" : `w${clamp(Math.ceil(6 * Math.sqrt(nats / FULL)), 1, 6)}`);

const inWords = ({ first, plain, edited, first_edited: then, divergence }) =>
  `next ${visible(first)} ${percent(plain)} → ${percent(edited)}` +
  `${then === first ? "" : `; most likely now ${visible(then)}`}; KL ${num(divergence)} nats`;

/** Make the pane; its `draw` is given the edits that are on. */
export function positionsPane(api) {
  const [el, words] = boxes("div.stack.tight", "div");
  const one = statusLine("p.faint");

  function show(rows) {
    const at = (i) => fill(one, h("span.soft", "after ", token(rows[i].token), ` (${i}): `), inWords(rows[i]));
    const most = rows.reduce((best, row, i) => (row.divergence > rows[best].divergence ? i : best), 0);
    const given = {
      tokens: rows.map((row) => row.token),
      classes: rows.map((row) => shadeOf(row.divergence)),
      titles: rows.map(inWords),
    };
    strip(words, given, { onpick: at, onhover: (i) => at(i ?? most) });
    at(most);
    const head = ["position", "token", "first", "baseline", "edited", "first, edited", "KL, nats"];
    const line = ({ position, token, first, plain, edited, first_edited: then, divergence }) => [
      ...[position, visible(token), visible(first)],
      ...[plain, edited, visible(then), divergence],
    ];
    fill(el, [
      h("h3", "By position"),
      words,
      one,
      h("p.faint", "Darker: the next token after it changes more."),
      asTable(head, () => rows.map(line)),
    ]);
  }

  function draw(edits) {
    if (!edits.length) return fill(el);
    const ask = () => api.post("/next/positions", { prompt: prompt(), edits }, { channel: "positions" });
    return pane(el, async () => show((await ask()).rows));
  }
  return { el, draw };
}
