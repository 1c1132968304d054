/** Drawings of results in notebooks: each takes an element, the data, and a callback for selections. */

import * as bars from "./bars.js";
import * as flow from "./flow.js";
import * as grid from "./grid.js";
import * as heads from "./heads.js";
import { fill, h } from "./nodes.js";
import { num, percent, signed } from "./numbers.js";
import * as patches from "./patches.js";
import * as lines from "./ranks.js";
import { token, visible } from "./tokens.js";

export function draw(el, data, chosen = () => {}) {
  el.classList.add("unembed", "unembed-out");
  const [, kind] = data.schema.split(/[./]/);
  return DRAWINGS[kind](el, data, chosen);
}

/** A drawing with a line of text under it. */
function noted(el, text) {
  const host = h("div");
  const note = h("p.bar-number", text);
  fill(el, host, note);
  return { host, note };
}

/**
 * A grid of the first tokens by layer and position; the note shows all tokens of the selected cell. `top(layer,
 * position)`: its tokens as [text, probability]; `more(layer, position, below)`: what else is said of the cell.
 */
function lens(el, { text, label, tokens, n_layers: n }, { top, more }, chosen) {
  const rows = [];
  for (let layer = 0; layer < n; layer++) {
    const below = rows[0];
    const cell = (_, p) => {
      const [[first, probability]] = top(layer, p);
      const name = `Layer ${layer}, position ${p} ${visible(tokens[p])}: first ${visible(first)} ${percent(probability)}`;
      const q = Math.round(16 * Math.sqrt(probability));
      return { text: first, q, cls: "", glyph: "", name, ...more(layer, p, name, below) };
    };
    rows.unshift({ n: layer, label: `Layer ${layer}`, cells: tokens.map(cell) });
  }
  const { host, note } = noted(el, text);
  const onselect = (r, c) => {
    const layer = rows[r].n;
    const words = top(layer, c).map(([word, p]) => `${visible(word)} ${percent(p)}`);
    note.textContent = words.join("   ");
    chosen({ layer, position: c });
  };
  const columns = tokens.map((word) => ({ text: word }));
  return grid.mount(host, { rows, columns, corner: "layer \\ token" }, { label, onselect });
}

function emergence(el, data, chosen) {
  const { ids, probabilities, rank_of_prediction: ranked } = data.stages.at(-1);
  const top = (layer, p) => ids[layer][p].map((id, k) => [data.texts[id], probabilities[layer][p][k]]);
  const more = (layer, p, name, below) => {
    const id = ids[layer][p][0];
    const event = data.events.find((e) => e.layer === layer && e.position === p);
    return {
      id,
      cls: id === data.prediction[p] ? "answer" : "",
      glyph: event ? (event.kind === "saturation" ? "◆" : "✕") : "",
      same: !!below && below.cells[p].id === id && !event && layer < ids.length - 1,
      name: `${name}, rank of the final prediction ${ranked[layer][p]}`,
    };
  };
  const label = "Most likely next token after every layer and position";
  const tokens = data.tokens.map((t) => t.token);
  const about = { text: `${data.model} · ${data.sizes}`, label, tokens, n_layers: ids.length };
  return lens(el, about, { top, more }, chosen);
}

/** The top tokens of one point of the stream, by layer and position. */
function readings(el, { texts, probabilities, tokens, label, note }, chosen) {
  const top = (layer, p) => texts[layer][p].map((text, k) => [text, probabilities[layer][p][k]]);
  return lens(el, { text: note, label, tokens, n_layers: texts.length }, { top, more: () => ({}) }, chosen);
}

function signedBars(el, { rows: all, note }, chosen) {
  const rows = all.map((row) => ({ ...row, text: signed(row.value) }));
  const onpick = ({ label, layer, index }) => chosen({ label, layer, index });
  return bars.mount(noted(el, note).host, { rows, signed: true }, { onpick });
}

function memory(el, data, chosen) {
  const list = (title, all) => {
    const box = h("div");
    const rows = all.map((r) => ({ label: token(r.token), value: r.score, text: signed(r.score), r }));
    bars.mount(box, { rows }, { onpick: ({ r }) => chosen({ id: r.id, token: r.token }) });
    return h("div", h("b", title), box);
  };
  const by = data.provenance.basis === "jacobian" ? "the fitted lens" : "W_U, without the final norm";
  const text = `Layer ${data.layer}, memory ${data.index}: its value projected by ${by}; value norm ${num(data.norm)}`;
  const { host } = noted(el, text);
  host.className = "columns";
  fill(host, list("Promotes", data.promoted), list("Suppresses", data.suppressed));
}

function pattern(el, data) {
  const { host } = noted(el, `Layer ${data.layer}, head ${data.head}: each row is a destination and adds up to one`);
  heads.pattern(host, data);
}

const scores = (el, data, chosen) =>
  heads.matrix(noted(el, data.note).host, data, { onpick: (layer, head) => chosen({ layer, head }) });

/** A circuit; a selection is a part, by its name. */
const circuit = (el, data, chosen) => {
  const host = h("div");
  fill(el, host);
  return flow.mount(host, data, { onpick: (node) => chosen({ part: node?.name ?? "answer" }) });
};

/** Values from -1 to 1 as shaded cells. */
function heat(el, { values, shown: numbers, rows, columns, note: label, unit }, chosen) {
  const name = (r, c) => `${rows[r]}, ${columns[c]}: ${unit} ${num(numbers[r][c])}`;
  const data = { values, numbers, rows, columns: columns.map((text) => ({ text })), label, name };
  patches.mount(noted(el, label).host, data, { onpick: (r, c) => chosen({ row: rows[r], column: columns[c] }) });
}

const ranks = (el, data, chosen) =>
  lines.mount(noted(el, data.note).host, data, { onpick: (layer) => chosen({ layer }) });

const DRAWINGS = { emergence, bars: signedBars, flow: circuit, heads: scores, heat, memory, pattern, ranks, readings };
