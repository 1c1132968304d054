/** Attention heads as circuits: where they look (QK) and what they write (OV). */

import { contexts, lengths } from "../contexts.js";
import { button, fill, h, num, numberBox, percent, segmented, signed } from "../dom.js";
import * as arcs from "../islands/arcs.js";
import { matrix, pattern, thumbnails } from "../islands/heads.js";
import { mount as strip, token, visible } from "../islands/tokens.js";
import { labels } from "../labels.js";
import { nameOf } from "../names.js";
import { about, asTable, card, link, pane, prompt, tokenBars } from "../parts.js";
import { activeEdits, go, idOf, parseId, state } from "../state.js";
import * as tray from "../tray.js";

const KINDS = [
  ["induction", "Induction"],
  ["previous_token", "Previous token"],
  ["duplicate_token", "Duplicate"],
  ["copying", "Copying"],
  ["resting", "First token"],
  ["eigenvalues", "OV eigenvalues"],
  ["effect", "Effect, prompt"],
  ["own", "Self-attention, prompt"],
  ["entropy", "Entropy, prompt"],
];

/** The words for what names a head. */
const ROLES = {
  previous_token: "previous token",
  duplicate_token: "duplicate token",
  induction: "induction",
  resting: "first token",
};

export function render(root, page) {
  const { api, model } = page;
  let scores = null;
  let here = null;
  let chosen = [0, 0];
  let hideFirst = true;
  let kind = "induction";
  let dst = null;
  let measure = "weights";
  const grid = h("div");
  const small = h("div");
  const roles = h("p", { class: "faint" });
  const said = h("p", { class: "faint" });
  const table = h("div");
  const title = h("span", {}, "Choose a head");
  const [circuitBox, called, named] = ["stack", "", "row"].map((name) => h("div", { class: name }));
  const total = model.n_layers * model.n_heads;
  const few = h("input", {
    type: "range",
    min: 1,
    max: total,
    value: String(total),
    "aria-label": "Show top n heads",
    oninput: () => drawMatrix(),
  });
  const own = h("input", {
    type: "text",
    "aria-label": "Text for the pattern",
    value: prompt(),
    onchange: () => ((dst = null), open(), drawSmall()),
  });
  const [twice, texts] = [0, 1].map(() => h("div", { class: "stack" }));
  const read = new Set();
  const length = numberBox("Tokens before the repetition", 16, { min: 2, max: 64, onchange: () => repeat() });
  const seed = numberBox("Seed of the random tokens", 0, { onchange: () => repeat() });
  const said2 = h("input", {
    type: "text",
    "aria-label": "Text to repeat",
    placeholder: "random tokens, or your own text",
    style: { flex: "1 1 200px" },
    onchange: () => repeat(),
  });
  fill(
    root,
    h(
      "div",
      { class: "stack" },
      h("h1", {}, "Heads"),
      h(
        "div",
        { class: "two" },
        card(
          "All heads",
          segmented("Score", KINDS, kind, (v) => ((kind = v), drawMatrix())),
          grid,
          h("label", { class: "row faint" }, "show top", h("span", { style: { flex: "1" } }, few)),
          said,
          about("heads"),
          table,
          model.can.shared_keys &&
            h(
              "p",
              { class: "note" },
              `Grouped queries: ${model.n_heads} heads share ${model.n_kv_heads} sets of keys and values.`,
            ),
        ),
        card("Patterns on the prompt", null, small, roles),
      ),
      card(title, named, circuitBox),
      h(
        "div",
        { class: "two" },
        h(
          "div",
          { class: "stack" },
          card(
            "Repeated-token (induction) test",
            null,
            h(
              "div",
              { class: "row" },
              said2,
              h("label", { class: "row faint" }, "length", length),
              h("label", { class: "row faint" }, "seed", seed),
            ),
            twice,
            about("twice"),
          ),
        ),
        h(
          "div",
          { class: "stack" },
          card(
            "Top contexts in the corpus",
            button("Find examples", () => examples(true), { class: "btn small" }),
            texts,
            about("examples"),
          ),
          card("Labels", null, called),
        ),
      ),
    ),
  );

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
    await Promise.all([open(), repeat(), call(), drawSmall()]);
  }

  /** The head that the address names, chosen. */
  function wish() {
    const found = parseId(state().head);
    if (found) chosen = [found.layer, found.index];
    return found;
  }

  /** What a head is called by people, or else by its scores. */
  const role = (layer, head) => ROLES[scores?.roles[layer][head]] ?? "";
  const calledBy = (layer, head) => nameOf({ layer, index: head }, "head") || role(layer, head);

  /** Small pictures of all patterns on the text. */
  const drawSmall = () =>
    pane(small, async () => {
      const found = await api.post(
        "/heads/patterns",
        { prompt: own.value || prompt(), edits: activeEdits() },
        { channel: "patterns" },
      );
      thumbnails(
        small,
        { ...found, chosen, name: calledBy },
        { onpick: (layer, index) => go({ head: idOf({ layer, index }, "head") }) },
      );
      fill(
        roles,
        found.n_tokens > found.side &&
          `Each picture shows ${found.n_tokens} tokens in ${found.side} blocks by their largest weight. `,
        scores &&
          `A head is named by its largest score on repeated random tokens, where the lower end of the 95 % interval is ${scores.role_threshold} or more.`,
      );
    });

  const repeat = () =>
    pane(twice, async () => {
      const [layer, head] = chosen;
      const found = await api.get(
        `/heads/${layer}/${head}/induction`,
        {
          length: Math.max(2, Math.min(64, Number(length.value) || 16)),
          seed: Math.max(0, Number(seed.value) || 0),
          text: said2.value,
        },
        { channel: "induction" },
      );
      const map = h("div");
      const looked = new Map(found.stripe);
      pattern(map, { ...found, marked: (dst, src) => looked.get(dst) === src });
      fill(
        twice,
        h(
          "p",
          { role: "status" },
          h("b", {}, percent(found.score)),
          ` of the attention of L${layer}H${head} is on the outlined cells; uniform attention would give ${percent(found.chance)}.`,
        ),
        map,
        asTable("As a table", ["destination", "source", "weight"], () =>
          found.stripe.map(([dst, src]) => [
            `${dst} ${visible(found.tokens[dst])}`,
            `${src} ${visible(found.tokens[src])}`,
            found.weights[dst][src],
          ]),
        ),
      );
    });

  const call = () =>
    labels(
      called,
      named,
      { layer: chosen[0], index: chosen[1], of: "head" },
      () => scores && (drawMatrix(), drawSmall()),
    );

  /** Texts in which the head does most: one reading of the corpus serves all heads of its layer. */
  const examples = (asked) =>
    pane(texts, async () => {
      const [layer, head] = chosen;
      fill(texts);
      api.cancel("examples");
      if (!asked && !read.has(layer)) return;
      let found = null;
      await api.stream(
        `/heads/${layer}/${head}/examples`,
        {},
        (line) =>
          line.examples
            ? (found = line)
            : fill(texts, h("p", { class: "faint" }, `${line.done} of ${line.of} windows read`)),
        { channel: "examples", what: "Finding examples" },
      );
      read.add(layer);
      const list = h("div");
      contexts(
        list,
        found.examples.map((one) => ({ ...one, coefficient: one.value, coefficients: one.carried })),
        5,
        "carries",
      );
      fill(
        texts,
        lengths(),
        list,
        h(
          "p",
          { class: "faint" },
          `L${layer}H${head} in ${found.windows} windows (${found.tokens.toLocaleString("en")} tokens) of ${found.corpus}: ${found.measure}.`,
        ),
      );
    });

  const drawMatrix = () =>
    pane(grid, async () => {
      const local = KINDS.findIndex(([k]) => k === kind) > 5;
      if (local)
        here = await api.post(
          "/heads/prompt",
          {
            prompt: prompt(),
            edits: activeEdits(),
            ...(state().position && { position: Number(state().position) }),
            ...(state().token && { token: state().token }),
          },
          { channel: "prompt-heads" },
        );
      const rows = kind === "eigenvalues" ? scores.eigenvalues : (local ? here : scores).scores[kind];
      if (!rows) return fill(grid, h("p", { class: "note" }, "This score is not defined for this model."));
      const what =
        kind === "eigenvalues"
          ? "sum of the real parts of the full OV circuit's eigenvalues over the sum of their sizes: +1 copies, −1 does the opposite"
          : (local ? here : scores).definitions[kind];
      const top = Number(few.value);
      matrix(
        grid,
        { scores: rows, chosen, definition: what, top, names: (layer, index) => nameOf({ layer, index }, "head") },
        { onpick: (l, n) => go({ head: idOf({ layer: l, index: n }, "head") }) },
      );
      fill(
        said,
        top < total && `Top ${top} of ${total} heads: `,
        `${what}. `,
        kind === "eigenvalues"
          ? "From the weights alone."
          : local
            ? ""
            : `${scores.n_sequences} sequences of 2 × ${scores.length} random tokens, seed ${scores.seed}.`,
      );
      fill(
        table,
        asTable("As a table", ["head", "score", "± 95 %"], () =>
          rows.flatMap((row, l) =>
            row.map((x, n) => [
              [`L${l}H${n}`, nameOf({ layer: l, index: n }, "head")].join(" "),
              x,
              scores.intervals[kind]?.[l][n] ?? "",
            ]),
          ),
        ),
      );
    });

  async function open() {
    const [layer, head] = chosen;
    title.textContent = `L${layer}H${head}${role(layer, head) ? ` · ${role(layer, head)} head` : ""}`;
    await pane(circuitBox, async () => {
      const found = await api.post(
        `/heads/${layer}/${head}/attention`,
        { prompt: own.value || prompt(), edits: activeEdits() },
        { channel: "pattern" },
      );
      const at = dst === null || dst >= found.tokens.length ? found.tokens.length - 1 : dst;
      const best = found.weights[at].reduce((a, w, i, row) => (w > row[a] ? i : a), 0);
      const circuit = await api.get(
        `/heads/${layer}/${head}`,
        { source: `#${found.ids[best]}`, destination: `#${found.ids[at]}` },
        { channel: "head" },
      );
      if (chosen[0] === layer && chosen[1] === head) drawCard(found, circuit, at, best);
    });
  }

  function drawCard(found, circuit, at, best) {
    const [map, words, told] = ["div", "div", "p"].map((name) => h(name));
    told.className = "faint";
    told.setAttribute("role", "status");
    /** Warm where a token looks, cool which later tokens look at it. */
    const shades = (from) =>
      found.tokens.map((_, i) => {
        const w = i <= from ? found.weights[from][i] : found.weights[i][from];
        return w > 0.01 ? `${i <= from ? "w" : "c"}${Math.max(1, Math.min(6, Math.ceil(w * 6)))}` : "";
      });
    const chips = strip(
      words,
      {
        tokens: found.tokens,
        selected: at,
        classes: shades(at),
        titles: found.tokens.map((_, i) =>
          i <= at ? `read: ${percent(found.weights[at][i])}` : `reads it: ${percent(found.weights[i][at])}`,
        ),
      },
      { onpick: (i) => ((dst = i), open()), onhover: (i) => chips.shade(shades(i ?? at)) },
    );
    const drawMap = () => {
      const rows = found[measure];
      const least = hideFirst ? 1 : 0;
      const unit = measure === "norms" ? Math.max(...rows.flatMap((r) => r.slice(least)), 1e-9) : 1;
      pattern(map, {
        tokens: found.tokens,
        weights: rows.map((r) => r.map((x) => x / unit)),
        hideFirst,
        format: measure === "norms" ? (x) => `carries ${num(x * unit)}` : undefined,
      });
      fill(
        told,
        hideFirst &&
          `The first column is hidden; the last row gives it ${measure === "norms" ? num(rows.at(-1)[0]) : percent(rows.at(-1)[0])}. `,
        measure === "norms" &&
          `Weight times the length of the value as the head writes it, in units of the stream; the darkest is ${num(unit)}.`,
      );
    };
    const parts = h("p", { class: "faint" });
    if (!activeEdits().length)
      api
        .post(
          `/heads/${chosen.join("/")}/terms`,
          { prompt: own.value || prompt(), destination: at, source: best },
          { channel: "terms" },
        )
        .then(
          ({ score, terms }) =>
            fill(
              parts,
              `Score before the softmax ${signed(score)}: `,
              Object.entries(terms)
                .map(([name, x]) => `${name} ${signed(x)}`)
                .join(", "),
            ),
          () => {},
        );
    const lists = (pairs) =>
      h(
        "div",
        { class: "three" },
        pairs.map(([name, rows]) => h("div", {}, h("h3", {}, name), tokenBars(rows.slice(0, 8)))),
      );
    const [layer, head] = chosen;
    const bow = h("div");
    const bowSaid = h("p", { class: "faint" });
    drawSources(bow, bowSaid, found, at);
    const patternPart = [
      h("label", { class: "row faint" }, "on", h("span", { style: { flex: "1", display: "grid" } }, own)),
      h(
        "div",
        {},
        h("h3", {}, "Reading from ", token(found.tokens[at]), ` (${at})`),
        words,
        h(
          "p",
          { class: "faint" },
          `looks most at ${visible(found.tokens[best])} (${percent(found.weights[at][best])}); warm: what a token reads, cool: which later ones read it; click one to stay there`,
        ),
        parts,
      ),
      h(
        "div",
        {},
        segmented(
          "Shade by",
          [
            ["weights", "Attention weight"],
            ["norms", "Contribution"],
          ],
          measure,
          (v) => ((measure = v), drawMap()),
        ),
        map,
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "checkbox",
            checked: hideFirst,
            onchange: (e) => ((hideFirst = e.target.checked), drawMap()),
          }),
          "leave out the first position",
        ),
        told,
        asTable("As a table", ["destination", "source", "weight", "contribution"], () =>
          found.weights.flatMap((r, d) =>
            r.map((w, i) => [
              `${d} ${visible(found.tokens[d])}`,
              `${i} ${visible(found.tokens[i])}`,
              w,
              found.norms[d][i],
            ]),
          ),
        ),
      ),
      h("div", {}, h("h3", {}, "Contribution to the logit, by source token"), bow, bowSaid),
    ];
    const circuitPart = [
      h(
        "div",
        { class: "row" },
        button("Knock out", () => tray.off({ layer, index: head }, "head"), { class: "btn small" }),
        h("span", { class: "faint" }, "adds the edit: this head writes nothing"),
      ),
      h(
        "div",
        {},
        h("h3", {}, "OV: output when attending to ", token(circuit.source)),
        lists([
          ["Raises", circuit.raises],
          ["Lowers", circuit.lowers],
        ]),
      ),
      h(
        "div",
        {},
        h("h3", {}, "QK: tokens that ", token(circuit.destination), " attends to"),
        circuit.looks_for.length
          ? lists([
              ["Attended to", circuit.looks_for],
              ["Avoided", circuit.ignores],
            ])
          : h("p", { class: "note" }, circuit.notes.join(" ")),
      ),
      circuit.partners.length
        ? h(
            "div",
            {},
            h("h3", {}, "Reads from earlier heads"),
            h(
              "div",
              { class: "row" },
              circuit.partners
                .slice(0, 12)
                .map((p) =>
                  h(
                    "span",
                    {},
                    `${p.mode.toUpperCase()} `,
                    link({ layer: p.layer, index: p.head }, "head"),
                    ` ${num(p.composition)}`,
                  ),
                ),
            ),
            h(
              "p",
              { class: "faint" },
              "composition: how much of the earlier head's output lies in what this head reads, as query, key or value",
            ),
          )
        : null,
      circuit.notes.length && circuit.looks_for.length ? h("p", { class: "faint" }, circuit.notes.join("; ")) : null,
    ];
    fill(
      circuitBox,
      h("div", { class: "two" }, h("div", { class: "stack" }, patternPart), h("div", { class: "stack" }, circuitPart)),
    );
    drawMap();
  }

  /** What the head adds to the target's logit at a position, as arcs over the text. */
  const drawSources = (el, note, found, at) =>
    pane(el, async () => {
      const [layer, head] = chosen;
      const answer = await api.post(
        `/heads/${layer}/${head}/sources`,
        {
          prompt: own.value || prompt(),
          edits: activeEdits(),
          position: at,
          ...(state().token && own.value === prompt() && { token: state().token }),
        },
        { channel: "sources" },
      );
      const of = visible(answer.token.token);
      const total = answer.contributions.reduce((sum, x) => sum + x, 0);
      arcs.mount(
        el,
        {
          tokens: found.tokens,
          from: at,
          values: answer.contributions,
          label: `What L${layer}H${head} adds to the logit of ${of} at position ${at}, by source token`,
          format: (x) => `${signed(x)} to the logit of ${of}`,
        },
        { onpick: (i) => ((dst = i), open()) },
      );
      const order = answer.contributions.map((x, i) => [x, i]).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]));
      fill(
        note,
        `Adds ${signed(total)} to the logit of ${of}: `,
        order.slice(0, 3).map(([x, i], n) => `${n ? ", " : ""}${signed(x)} from ${visible(found.tokens[i])} (${i})`),
        ". Blue raises it, orange lowers it.",
        asTable("As a table", ["source", "contribution"], () =>
          answer.contributions.map((x, i) => [`${i} ${visible(found.tokens[i])}`, x]),
        ),
      );
    });

  return {
    update(now, before) {
      if (before.screen !== now.screen) return load();
      if (now.head !== before.head) {
        wish();
        if (scores) drawMatrix();
        return Promise.all([open(), repeat(), examples(), call(), drawSmall()]);
      }
      if (now.prompt !== before.prompt || now.edits !== before.edits || now.disabled !== before.disabled) {
        if (now.prompt !== before.prompt) own.value = prompt();
        if (scores) drawMatrix();
        return Promise.all([open(), drawSmall()]);
      }
    },
    key(event) {
      if (event.key === "i") return (tray.off({ layer: chosen[0], index: chosen[1] }, "head"), true);
      return false;
    },
    exported: () =>
      scores && {
        name: "heads",
        json: scores,
        rows: [
          ["kind", "layer", "head", "score"],
          ...Object.entries(scores.scores).flatMap(([k, rows]) =>
            rows.flatMap((row, l) => row.map((x, n) => [k, l, n, x])),
          ),
        ],
      },
  };
}
