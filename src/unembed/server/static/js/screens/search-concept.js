/** All memories with one label: the tokens that they share, their layers, and the agreement of annotators. */
import { drawn, fill, h, many, percent } from "../dom.js";
import * as bars from "../islands/bars.js";
import { token } from "../islands/tokens.js";
import { about, card, link, table, toks } from "../parts.js";

export function drawConcept({ found, results, bulk }) {
  const { members, tokens, by_layer: counts, agreement } = found;
  const rows = counts.map((n, i) => ({ label: `Layer ${i}`, value: n, text: String(n) }));
  const head = [bulk.tickAll(members), "memory", "labelled by", "annotators", "top tokens"];
  const line = (x) => [bulk.tick(x), link(x), x.authors.join(", "), x.annotators, toks(x.top_tokens)];
  fill(results, [
    h("p.soft", [
      agreement === null
        ? "No member has labels of several annotators."
        : `Agreement over the members with several annotators: ${percent(agreement)}.`,
    ]),
    h("div.two", [
      card("Tokens that members share", null, [
        tokens.length
          ? tokens.map(([t, n]) => [token(t), h("small.faint", ` ${n}  `)])
          : h("p.faint", "None among their 30 top tokens."),
      ]),
      card("Over the layers", null, drawn(bars.mount, { rows })),
    ]),
    table(head, members.map(line), many(members.length, "memory", "memories")),
    about("concept"),
  ]);
}
