/** Attention heads as circuits: where they look (QK) and what they write (OV). */
import { button, fill, h, num, percent, segmented } from "../dom.js";
import { activeEdits, go, state } from "../state.js";
import { about, asTable, card, numberBox, pane, prompt, tokenBars } from "../parts.js";
import { token, visible, mount as strip } from "../islands/tokens.js";
import { matrix, pattern } from "../islands/heads.js";
import * as tray from "../tray.js";

const KINDS = [["induction", "Induction"], ["previous_token", "Previous token"], ["duplicate_token", "Duplicate"], ["copying", "Copying"], ["resting", "First token"], ["eigenvalues", "OV eigenvalues"]];

export function render(root, page) {
  const { api, model } = page;
  let scores = null;
  let data = null;
  let chosen = [0, 0];
  let hideFirst = true;
  let kind = "induction";
  let dst = null;
  const grid = h("div");
  const said = h("p", { class: "faint" });
  const table = h("div");
  const title = h("span", {}, "Choose a head");
  const circuitBox = h("div", { class: "stack" });
  const twice = h("div", { class: "stack" });
  const length = numberBox("Tokens before the repetition", 16, { min: 2, max: 64, onchange: () => repeat() });
  const seed = numberBox("Seed of the random tokens", 0, { onchange: () => repeat() });
  const said2 = h("input", { type: "text", "aria-label": "Text to say twice", placeholder: "random tokens, or a text of your own", style: { flex: "1 1 200px" }, onchange: () => repeat() });
  fill(root, h("div", { class: "stack" },
    h("h1", {}, "Heads"),
    h("div", { class: "two" },
      h("div", { class: "stack" },
        card("All heads", segmented("Score", KINDS, kind, (v) => ((kind = v), drawMatrix())), grid, said, about("Scores of every head on random tokens repeated twice, with the mean over sequences. A head with a high induction score looks back to what followed the same token before: with it, a model continues what it has seen once."), table, model.can.shared_keys && h("p", { class: "note" }, `Grouped queries: ${model.n_heads} heads share ${model.n_kv_heads} sets of keys and values.`)),
        card("Said twice", null, h("div", { class: "row" }, said2, h("label", { class: "row faint" }, "length", length), h("label", { class: "row faint" }, "seed", seed)), twice, about("The same tokens follow themselves. Outlined cells are where an induction head looks: in the repetition, at the token after the earlier occurrence. The induction score is the mean weight of these cells."))),
      card(title, null, circuitBox))));

  async function load() {
    fill(grid, h("p", { class: "faint" }, "Scoring heads on repeated random tokens …"));
    const wanted = wish();
    await pane(grid, async () => {
      scores = await api.get("/heads", {}, { channel: "heads", what: "Scoring heads" });
      if (!wanted) {
        const flat = scores.scores.induction.flat();
        const at = flat.indexOf(Math.max(...flat));
        chosen = [Math.floor(at / model.n_heads), at % model.n_heads];
      }
      drawMatrix();
    });
    await Promise.all([open(), repeat()]);
  }

  /** The head that the address names, chosen. */
  function wish() {
    const found = /^(\d+)\.(\d+)$/.exec(state().h);
    if (found) chosen = [Number(found[1]), Number(found[2])];
    return found;
  }

  const repeat = () => pane(twice, async () => {
    const [layer, head] = chosen;
    const found = await api.get(`/heads/${layer}/${head}/induction`, { length: Math.max(2, Math.min(64, Number(length.value) || 16)), seed: Math.max(0, Number(seed.value) || 0), text: said2.value }, { channel: "induction" });
    const map = h("div");
    const looked = new Map(found.stripe);
    pattern(map, { ...found, marked: (dst, src) => looked.get(dst) === src });
    fill(twice, h("p", { role: "status" }, h("b", {}, percent(found.score)), ` of L${layer}H${head}'s attention lies on the outlined cells; looking everywhere alike would give ${percent(found.chance)}.`), map,
      asTable("As a table", ["destination", "source", "weight"], () => found.stripe.map(([dst, src]) => [`${dst} ${visible(found.tokens[dst])}`, `${src} ${visible(found.tokens[src])}`, found.weights[dst][src]])));
  });

  function drawMatrix() {
    const rows = kind === "eigenvalues" ? scores.eigenvalues : scores.scores[kind];
    if (!rows) return fill(grid, h("p", { class: "note" }, "This score cannot be had for this model."));
    const what = kind === "eigenvalues" ? "sum of the real parts of the full OV circuit's eigenvalues over the sum of their sizes: +1 copies, −1 does the opposite" : scores.said[kind];
    matrix(grid, { scores: rows, chosen, said: what }, { onpick: (l, n) => go({ h: `${l}.${n}` }) });
    fill(said, `${what}. `, kind === "eigenvalues" ? "From the weights alone." : `${scores.n_sequences} sequences of 2 × ${scores.length} random tokens, seed ${scores.seed}.`);
    fill(table, asTable("As a table", ["head", "score", "± 95 %"], () => rows.flatMap((row, l) => row.map((x, n) => [`L${l}H${n}`, x, kind === "eigenvalues" ? "" : scores.intervals[kind][l][n]]))));
  }

  async function open() {
    const [layer, head] = chosen;
    title.textContent = `L${layer}H${head}`;
    await pane(circuitBox, async () => {
      data = await api.trace(prompt(), activeEdits());
      const at = dst === null || dst >= data.tokens.length ? data.tokens.length - 1 : dst;
      const found = await api.get(`/traces/${data.id}/attention/${layer}/${head}`, {}, { channel: "pattern" });
      const row = found.weights[at];
      const best = row.reduce((a, w, i) => (w > row[a] ? i : a), 0);
      const circuit = await api.get(`/heads/${layer}/${head}`, { source: `#${data.tokens[best].id}`, destination: `#${data.tokens[at].id}` }, { channel: "head" });
      if (chosen[0] === layer && chosen[1] === head) drawCard(found, circuit, at, best);
    });
  }

  function drawCard(found, circuit, at, best) {
    const map = h("div");
    const words = h("div");
    const row = found.weights[at];
    strip(words, { tokens: found.tokens, selected: at, classes: found.tokens.map((_, i) => (i <= at && row[i] > 0.01 ? `w${Math.max(1, Math.min(6, Math.ceil(row[i] * 6)))}` : "")), titles: found.tokens.map((_, i) => (i <= at ? percent(row[i]) : "later")) }, { onpick: (i) => ((dst = i), open()) });
    const drawMap = () => pattern(map, { tokens: found.tokens, weights: found.weights, hideFirst });
    const lists = (pairs) => h("div", { class: "two" }, pairs.map(([name, rows]) => h("div", {}, h("h3", {}, name), tokenBars(rows.slice(0, 8)))));
    const [layer, head] = chosen;
    fill(circuitBox,
      h("div", { class: "row" }, button("Knock out", () => tray.off({ layer, index: head }, "head"), { class: "btn small" }), h("span", { class: "faint" }, "adds the edit: this head writes nothing")),
      h("div", {}, h("h3", {}, "On this prompt, reading from ", token(found.tokens[at]), ` (${at})`), words, h("p", { class: "faint" }, `looks most at ${visible(found.tokens[best])} (${percent(row[best])}); click a token to read from it`)),
      h("div", {}, map, h("label", { class: "check" }, h("input", { type: "checkbox", checked: hideFirst, onchange: (e) => ((hideFirst = e.target.checked), drawMap()) }), "leave out the first position"), hideFirst ? h("p", { class: "faint" }, `The first column is hidden; the last row gives it ${percent(found.weights.at(-1)[0])}.`) : null, asTable("As a table", ["destination", "source", "weight"], () => found.weights.flatMap((r, d) => r.map((w, i) => [`${d} ${visible(found.tokens[d])}`, `${i} ${visible(found.tokens[i])}`, w])))),
      h("div", {}, h("h3", {}, "Where it reads ", token(circuit.source), ", it writes (OV)"), lists([["Raises", circuit.raises], ["Lowers", circuit.lowers]])),
      h("div", {}, h("h3", {}, "At ", token(circuit.destination), ", it looks for (QK)"), circuit.looks_for.length ? lists([["Sought", circuit.looks_for], ["Avoided", circuit.ignores]]) : h("p", { class: "note" }, circuit.notes.join(" "))),
      circuit.partners.length ? h("div", {}, h("h3", {}, "Reads from earlier heads"), h("div", { class: "row" }, circuit.partners.slice(0, 12).map((p) => button(`${p.mode.toUpperCase()} L${p.layer}H${p.head} ${num(p.composition)}`, () => go({ h: `${p.layer}.${p.head}` }), { class: "btn small" }))), h("p", { class: "faint" }, "composition: how much of the earlier head's output lies in what this head reads, as query, key or value")) : null,
      circuit.notes.length && circuit.looks_for.length ? h("p", { class: "faint" }, circuit.notes.join("; ")) : null);
    drawMap();
  }

  return {
    update(now, before) {
      if (before.screen !== now.screen) return load();
      if (now.h !== before.h) {
        wish();
        if (scores) drawMatrix();
        return Promise.all([open(), repeat()]);
      }
      if (now.p !== before.p || now.iv !== before.iv || now.off !== before.off) return open();
    },
    key(event) {
      if (event.key === "i") return tray.off({ layer: chosen[0], index: chosen[1] }, "head"), true;
      return false;
    },
    exported: () => scores && { name: "heads", json: scores, rows: [["kind", "layer", "head", "score"], ...Object.entries(scores.scores).flatMap(([k, rows]) => rows.flatMap((row, l) => row.map((x, n) => [k, l, n, x])))] },
  };
}
