/** Drawings of results in notebooks: each takes an element, the data, and a callback for selections. */

import * as bars from "./bars.js";
import * as grid from "./grid.js";
import * as heads from "./heads.js";
import { fill, h } from "./nodes.js";
import * as patches from "./patches.js";
import * as lines from "./ranks.js";
import { token, visible } from "./tokens.js";

export function draw(el, data, chosen) {
  el.classList.add("unembed", "unembed-out");
  const [, kind] = data.schema.split(/[./]/);
  return { emergence, attribution, bars: barred, heads: scores, heat, memory, pattern, ranks, readings }[kind](
    el,
    data,
    chosen,
  );
}

/** A drawing with a line of text under it. */
function noted(el, text) {
  const host = h("div");
  const note = h("p.bar-number", text);
  fill(el, host, note);
  return { host, note };
}

function emergence(el, data, chosen) {
  const stage = data.stages[data.stages.length - 1];
  const n = stage.ids.length;
  const percent = (p) => (p >= 0.1 ? `${Math.round(p * 100)} %` : `${(p * 100).toFixed(1)} %`);
  const rows = [];
  for (let layer = 0; layer < n; layer++) {
    const below = rows[0];
    rows.unshift({
      n: layer,
      label: `Layer ${layer}`,
      cells: data.tokens.map((t, p) => {
        const id = stage.ids[layer][p][0];
        const event = data.events.find((e) => e.layer === layer && e.position === p);
        return {
          id,
          text: data.texts[id],
          q: Math.round(16 * Math.sqrt(stage.probabilities[layer][p][0])),
          cls: id === data.prediction[p] ? "answer" : "",
          glyph: event ? (event.kind === "saturation" ? "◆" : "✕") : "",
          same: !!below && below.cells[p].id === id && !event && layer < n - 1,
          name:
            `Layer ${layer}, position ${p} ${visible(t.token)}: first ${visible(data.texts[id])} ` +
            `${percent(stage.probabilities[layer][p][0])}, rank of the final prediction ` +
            `${stage.rank_of_prediction[layer][p]}`,
        };
      }),
    });
  }
  const { host, note } = noted(el, `${data.model} · ${data.sizes}`);
  return grid.mount(
    host,
    { rows, columns: data.tokens.map((t) => ({ text: t.token })), corner: "layer \\ token" },
    {
      label: "Most likely next token after every layer and position",
      onselect: (r, c) => {
        const one = rows[r];
        note.textContent = stage.ids[one.n][c]
          .map((id, k) => `${visible(data.texts[id])} ${percent(stage.probabilities[one.n][c][k])}`)
          .join("   ");
        chosen?.({ layer: one.n, position: c });
      },
    },
  );
}

/** The top tokens of one point of the stream, by layer and position. */
function readings(el, data, chosen) {
  const percent = (p) => (p >= 0.1 ? `${Math.round(p * 100)} %` : `${(p * 100).toFixed(1)} %`);
  const rows = data.texts
    .map((layer, n) => ({
      n,
      label: `Layer ${n}`,
      cells: layer.map((texts, p) => ({
        text: texts[0],
        q: Math.round(16 * Math.sqrt(data.probabilities[n][p][0])),
        cls: "",
        glyph: "",
        name:
          `Layer ${n}, position ${p} ${visible(data.tokens[p])}: first ${visible(texts[0])} ` +
          `${percent(data.probabilities[n][p][0])}`,
      })),
    }))
    .reverse();
  const { host, note } = noted(el, data.note);
  return grid.mount(
    host,
    { rows, columns: data.tokens.map((text) => ({ text })), corner: "layer \\ token" },
    {
      label: data.label,
      onselect: (r, c) => {
        const { n } = rows[r];
        note.textContent = data.texts[n][c]
          .map((text, k) => `${visible(text)} ${percent(data.probabilities[n][c][k])}`)
          .join("   ");
        chosen?.({ layer: n, position: c });
      },
    },
  );
}

const signed = (x) => (x < 0 ? "−" : "+") + Math.abs(x).toPrecision(3);

function attribution(el, data, chosen) {
  const { host } = noted(el, data.note);
  const rows = data.rows.map((row) => ({
    label: row.label,
    value: row.contribution,
    text: signed(row.contribution),
    row,
  }));
  return bars.mount(
    host,
    { rows, signed: true },
    { onpick: ({ row }) => chosen?.({ label: row.label, layer: row.layer, index: row.index }) },
  );
}

function memory(el, data, chosen) {
  const lists = [
    ["Promotes", data.promoted],
    ["Suppresses", data.suppressed],
  ].map(([title, rows]) => {
    const box = h("div");
    bars.mount(
      box,
      { rows: rows.map((r) => ({ label: token(r.token), value: r.score, text: signed(r.score), r })) },
      { onpick: ({ r }) => chosen?.({ id: r.id, token: r.token }) },
    );
    return h("div", h("b", title), box);
  });
  const { host } = noted(
    el,
    `Layer ${data.layer}, memory ${data.index}: its value projected by W_U, without the final norm; value norm ` +
      `${data.norm.toPrecision(4)}`,
  );
  host.className = "columns";
  fill(host, lists);
}

function pattern(el, data) {
  const { host } = noted(el, `Layer ${data.layer}, head ${data.head}: each row is a destination and adds up to one`);
  heads.pattern(host, data);
}

function scores(el, data, chosen) {
  const { host } = noted(el, data.note);
  heads.matrix(host, data, { onpick: (layer, head) => chosen?.({ layer, head }) });
}

/** Values from -1 to 1 as shaded cells. */
function heat(el, data, chosen) {
  const { host } = noted(el, data.note);
  patches.mount(
    host,
    {
      values: data.values,
      numbers: data.shown,
      rows: data.rows,
      columns: data.columns.map((text) => ({ text })),
      label: data.note,
      name: (r, c) => `${data.rows[r]}, ${data.columns[c]}: ${data.unit} ${data.shown[r][c].toPrecision(3)}`,
    },
    { onpick: (row, column) => chosen?.({ row: data.rows[row], column: data.columns[column] }) },
  );
}

/** Labelled numbers of either sign. */
function barred(el, data, chosen) {
  const { host } = noted(el, data.note);
  const rows = data.rows.map((row) => ({ ...row, text: signed(row.value), row }));
  return bars.mount(host, { rows, signed: true }, { onpick: ({ row }) => chosen?.({ label: row.label }) });
}

/** The rank of tokens by layer, a line for each. */
function ranks(el, data, chosen) {
  const { host } = noted(el, data.note);
  return lines.mount(host, data, { onpick: (layer) => chosen?.({ layer }) });
}
