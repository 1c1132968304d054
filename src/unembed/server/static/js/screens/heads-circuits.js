/** What the weights alone say of a head: its OV and QK circuits, and its composition with earlier heads. */
import { isQuick } from "../contexts.js";
import { button, fill, fixed, h, part } from "../dom.js";
import { token } from "../islands/tokens.js";
import { link, table, tokenLists } from "../parts.js";

const MODES = { q: "query", k: "key", v: "value" };

const lists = (found) =>
  h("div.three", tokenLists(Object.entries(found).map(([name, rows]) => [name, rows.slice(0, 8)])));

export function circuits(t, circuit) {
  const { raises, lowers, looks_for: sought, ignores, notes, maps } = circuit;
  const others = h("div");
  drawPartners(t, others);
  const raised = h("div", [button("Other words that it raises", () => drawRaised(t, raised), "btn small")]);
  const read = sought.length ? lists({ "Attended to": sought, Avoided: ignores }) : h("p.note", notes.join(" "));
  return [
    maps && part("Words that it maps to words", h("p", `${maps}: by its weights, for the words' embeddings.`)),
    part(["OV: output when attending to ", token(circuit.source)], lists({ Promotes: raises, Suppresses: lowers })),
    part(["QK: tokens that ", token(circuit.destination), " attends to"], read),
    raised,
    others,
    notes.length > 0 && sought.length > 0 && h("p.faint", `OV and QK from the weights alone: ${notes.join("; ")}.`),
  ];
}

/** List common words for which the head raises another word: each is run alone through the layers below. */
async function drawRaised(t, box) {
  fill(box, h("p.faint", "Running common tokens through the layers below…"));
  const found = await t.api.get(`${t.path()}/raised`, {}, { channel: "raised" });
  const rows = found.sources.map((source, k) => [token(source), found.raises[k], found.entries[k]]);
  const words = rows.length > 0 && table(["reads", "raises", "entry"], rows);
  fill(box, part("Other words that it raises", words, h("p.faint", found.text)));
}

/** Show the earlier heads that this one reads. The first time, the composition of all pairs of heads is computed. */
function drawPartners(t, box) {
  const draw = ({ partners }) => partners.length > 0 && fill(box, composition(partners.slice(0, 12)));
  const ask = () => t.api.get(`${t.path()}/partners`, {}, { channel: "partners" }).then(draw, () => {});
  const { n_layers, n_heads, d_model } = t.model;
  const pairs = (3 * (n_layers * n_heads) ** 2) / 2;
  if (isQuick(t.model, (pairs * d_model ** 3) / n_heads ** 2)) ask();
  else fill(box, button("Composition with earlier heads", ask, "btn small"));
}

function composition(partners) {
  const one = (p) => h("span", link({ layer: p.layer, index: p.head }, "head"), ` ${fixed(p.composition, 3)}`);
  const mode = ([letter, name]) => {
    const list = partners.filter((p) => p.mode === letter);
    return list.length > 0 && h("div.row", h("span.faint.mode", name), list.map(one));
  };
  const note = "How much of an earlier head's output lies in what this head reads as query, key or value.";
  return part("Composition with earlier heads", [Object.entries(MODES).map(mode), h("p.faint", note)]);
}
