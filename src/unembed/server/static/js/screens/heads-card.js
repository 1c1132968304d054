/** One head: its attention pattern on a text, its contributions by source token, and its OV and QK circuits. */
import { button, fill, fixed, h, num, percent, places, segmented, signed, tickBox } from "../dom.js";
import * as arcs from "../islands/arcs.js";
import { pattern } from "../islands/heads.js";
import { mount as strip, token, visible } from "../islands/tokens.js";
import { asTable, link, pane, positionHere, prompt, tokenLists } from "../parts.js";
import { asText, inWords } from "../question.js";
import { activeEdits } from "../state.js";
import * as tray from "../tray.js";

/** What an earlier head's output can be read as. */
const MODES = [
  ["q", "query"],
  ["k", "key"],
  ["v", "value"],
];

const part = (title, ...body) => h("div", h("h3", title), body);

/**
 * `own`: the text box. Returns `{el, title, named, open, anew}`; `anew` is for a new text, in which no position is
 * selected.
 */
export function headCard(t, own) {
  const { api } = t;
  const el = h("div.stack");
  const title = h("span", "Choose a head");
  const named = h("div.row");
  let chosen = null; // the destination position; null: that of the prompt
  let hideFirst = true;
  let measure = "weights";

  const read = (position) => {
    chosen = position;
    return open();
  };
  const anew = () => read(null);

  async function open() {
    const [layer, head] = t.chosen;
    const role = t.role(layer, head);
    title.textContent = `${t.id()}${role ? ` · ${role} head` : ""}`;
    await pane(el, async () => {
      const found = await api.post(
        `/heads/${layer}/${head}/attention`,
        { prompt: t.text, edits: activeEdits() },
        { channel: "pattern" },
      );
      const last = found.tokens.length - 1;
      const at = Math.min(chosen ?? (t.text === prompt() ? positionHere(last + 1) : last), last);
      const best = found.weights[at].reduce((a, w, i, row) => (w > row[a] ? i : a), 0);
      const circuit = await api.get(
        `/heads/${layer}/${head}`,
        { source: `#${found.ids[best]}`, destination: `#${found.ids[at]}` },
        { channel: "head" },
      );
      if (t.chosen[0] === layer && t.chosen[1] === head) draw(found, circuit, at, best);
    });
  }

  function draw(found, circuit, at, best) {
    const [sources, terms] = [h("div"), h("p.faint")];
    fill(el, [
      h("div.two", [
        h("div.stack", [
          h("label.row.faint", "text", h("span", { style: { flex: "1", display: "grid" } }, own)),
          part(
            ["Attention from ", token(found.tokens[at]), ` (${at})`],
            [
              looks(found, at),
              h("p.faint", [
                `Attends most to ${visible(found.tokens[best])} (${percent(found.weights[at][best])}). Orange: tokens ` +
                  "that it attends to; blue: later tokens that attend to it. Click a token to select it.",
              ]),
              terms,
            ],
          ),
          weights(found),
          part("Contribution by source token", sources),
        ]),
        h("div.stack", circuits(circuit)),
      ]),
    ]);
    drawSources(sources, found, at);
    drawTerms(terms, at, best);
  }

  /** The tokens of the text: orange where this position attends to them, blue where they attend to it. */
  function looks(found, at) {
    const shades = (from) =>
      found.tokens.map((_, i) => {
        const w = i <= from ? found.weights[from][i] : found.weights[i][from];
        return w > 0.01 ? `${i <= from ? "w" : "c"}${Math.max(1, Math.min(6, Math.ceil(w * 6)))}` : "";
      });
    const words = h("div");
    const chips = strip(
      words,
      {
        tokens: found.tokens,
        selected: at,
        classes: shades(at),
        titles: found.tokens.map((_, i) =>
          i <= at ? `attended to: ${percent(found.weights[at][i])}` : `attends to it: ${percent(found.weights[i][at])}`,
        ),
      },
      { onpick: read, onhover: (i) => chips.shade(shades(i ?? at)) },
    );
    return words;
  }

  /** The pattern as a triangle, by weight or by contribution. */
  function weights(found) {
    if (!found.norms) measure = "weights";
    const [map, statusLine] = [h("div"), h("p.faint", { role: "status" })];
    const drawMap = () => {
      const rows = found[measure];
      const norms = measure === "norms";
      const unit = norms ? Math.max(...rows.flatMap((r) => r.slice(hideFirst ? 1 : 0)), 1e-9) : 1;
      pattern(map, {
        tokens: found.tokens,
        weights: rows.map((r) => r.map((x) => x / unit)),
        hideFirst,
        format: norms ? (x) => `contribution ${num(x * unit)}` : undefined,
      });
      fill(statusLine, [
        hideFirst &&
          "The first column is hidden; the last row gives it " +
            `${norms ? num(rows.at(-1)[0]) : percent(rows.at(-1)[0])}. `,
        norms && `Weight times the norm of the value as the head writes it; the darkest is ${num(unit)}.`,
      ]);
    };
    drawMap();
    const named = (i) => `${i} ${visible(found.tokens[i])}`;
    return h("div", [
      segmented(
        "Shade by",
        [["weights", "Attention weight"], ...(found.norms ? [["norms", "Contribution"]] : [])],
        measure,
        (value) => ((measure = value), drawMap()),
      ),
      map,
      tickBox("Leave out the first position", hideFirst, (on) => ((hideFirst = on), drawMap())),
      statusLine,
      asTable("As a table", ["destination", "source", "weight", "contribution"], () =>
        found.weights.flatMap((r, d) => r.map((w, i) => [named(d), named(i), w, found.norms[d][i]])),
      ),
    ]);
  }

  /** The attention score of the pair with the largest weight as a sum of terms; with edits there is no such sum. */
  function drawTerms(box, at, best) {
    if (activeEdits().length) return;
    api
      .post(
        `/heads/${t.chosen.join("/")}/terms`,
        { prompt: t.text, destination: at, source: best },
        { channel: "terms" },
      )
      .then(
        ({ score, terms }) => {
          const digits = places(Object.values(terms));
          const each = Object.entries(terms).map(
            ([name, x]) => `${name.replace(" x ", " × ")} ${fixed(x, digits, true)}`,
          );
          fill(box, `Score before the softmax ${signed(score)}: ${each.join(", ")}`);
        },
        () => {}, // in some families the score is not a sum of such terms
      );
  }

  /** What the head adds to the question's logits at a position, as arcs over the text. */
  const drawSources = (box, found, at) =>
    pane(box, async () => {
      const answer = await api.post(`/heads/${t.chosen.join("/")}/sources`, t.question(at), { channel: "sources" });
      const { contributions } = answer;
      const of = asText(answer);
      const digits = places(contributions);
      const number = (x) => fixed(x, digits, true);
      const bow = h("div");
      const note = h("p.faint");
      arcs.mount(
        bow,
        {
          tokens: found.tokens,
          from: at,
          values: contributions,
          label: `What ${t.id()} adds to ${of} at position ${at}, by source token`,
          format: (x) => `${number(x)} to ${of}`,
        },
        { onpick: read },
      );
      const order = contributions.map((x, i) => [x, i]).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]));
      fill(note, [
        `Adds ${number(contributions.reduce((sum, x) => sum + x, 0))} logits to `,
        inWords(answer),
        ": ",
        order.slice(0, 3).map(([x, i], n) => `${n ? ", " : ""}${number(x)} from ${visible(found.tokens[i])} (${i})`),
        ". Blue promotes the target, orange suppresses it.",
      ]);
      fill(box, [
        bow,
        note,
        asTable("As a table", ["source", "contribution"], () =>
          contributions.map((x, i) => [`${i} ${visible(found.tokens[i])}`, x]),
        ),
      ]);
    });

  /** From the weights alone: the OV and QK circuits, and composition with earlier heads. */
  function circuits(circuit) {
    const lists = (pairs) => h("div.three", tokenLists(pairs.map(([name, rows]) => [name, rows.slice(0, 8)])));
    const [layer, index] = t.chosen;
    return [
      h("div.row", [
        button("Knock out", () => tray.off({ layer, index }, "head"), { class: "btn small" }),
        h("span.faint", "adds the edit: this head writes nothing"),
      ]),
      part(
        ["OV: output when attending to ", token(circuit.source)],
        [
          lists([
            ["Promotes", circuit.raises],
            ["Suppresses", circuit.lowers],
          ]),
        ],
      ),
      part(
        ["QK: tokens that ", token(circuit.destination), " attends to"],
        [
          circuit.looks_for.length
            ? lists([
                ["Attended to", circuit.looks_for],
                ["Avoided", circuit.ignores],
              ])
            : h("p.note", circuit.notes.join(" ")),
        ],
      ),
      circuit.partners.length > 0 &&
        part("Composition with earlier heads", [
          MODES.map(([mode, name]) => {
            const partners = circuit.partners.slice(0, 12).filter((p) => p.mode === mode);
            return (
              partners.length > 0 &&
              h("div.row", [
                h("span.faint.mode", name),
                partners.map((p) =>
                  h("span", link({ layer: p.layer, index: p.head }, "head"), ` ${fixed(p.composition, 3)}`),
                ),
              ])
            );
          }),
          h("p.faint", "How much of an earlier head's output lies in what this head reads as query, key or value."),
        ]),
      circuit.notes.length > 0 &&
        circuit.looks_for.length > 0 &&
        h("p.faint", `OV and QK from the weights alone: ${circuit.notes.join("; ")}.`),
    ];
  }

  return { el, title, named, open, anew };
}
