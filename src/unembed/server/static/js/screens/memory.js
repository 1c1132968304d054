/** One memory: the tokens of its value, the top activating examples of its key, its labels; or two side by side. */
import { architecture } from "../architecture.js";
import { lengths } from "../contexts.js";
import { afterPaint, announce, button, fill, h, num, textBox } from "../dom.js";
import * as histogram from "../islands/histogram.js";
import { token, visible } from "../islands/tokens.js";
import { labels } from "../labels.js";
import { describedIds, descriptionOf } from "../names.js";
import {
  about,
  asTable,
  card,
  empty,
  loading,
  memoryLink,
  noMemories,
  pane,
  tokenLists,
  toks,
  trail,
  waiting,
} from "../parts.js";
import { QUESTION } from "../question.js";
import { differ, go, idOf, parseId, state, turn } from "../state.js";
import * as tray from "../tray.js";
import { categories, cluster, neighbours } from "./memory-alike.js";
import { distribution, quantiles, topExamples } from "./memory-corpus.js";
import { effectOf, onPrompt, percentile, percentileText, steering } from "./memory-here.js";
import { textTest } from "./memory-text.js";
import { wiring } from "./memory-wiring.js";

/** Tokens at either end of a value's scores. */
const TOP = 50;
const PROMPT_CHANGES = ["prompt", "position", "edits", "disabled", ...QUESTION];

export function render(root, page) {
  const { api, model } = page;
  if (!model.can.memories) return noMemories(root);
  const host = h("div.stack");
  fill(root, host);
  let view = null;
  let tried = null;
  let usual = null;
  let here = null;
  let steer = null;
  const [usualBox, bandsBox, density, hereBox, effectBox, clusterBox] = ["div", "div", "dd", "dd", "dd", "dd"].map(
    (name) => h(name),
  );
  /** False after the screen was left or another memory was opened: a late response is then dropped. */
  const isShown = (memory) => view === memory && host.isConnected;

  async function load() {
    const wanted = parseId(state().memory);
    const exists = wanted && wanted.index < (model.memories[wanted.layer] ?? 0);
    if (!exists) return chooser(wanted && `There is no memory ${idOf(wanted)} in ${model.name}.`);
    // Requests for the previous memory would occupy the few connections that a browser opens.
    ["contexts0", "contexts1", "concepts", "sample", "connections", "here", "next"].forEach(api.cancel);
    const settled = waiting(host);
    if (!view) fill(host, loading("Reading the value", 14));
    await pane(host, async () => {
      const [found, other] = await Promise.all(
        [state().memory, state().compared].map(parseId).map((one, i) => {
          const at = one && `/memories/${one.layer}/${one.index}`;
          const card = at && api.get(at, { top: TOP }, { channel: `memory${i}`, what: "Reading the value" });
          return i ? card?.catch(notCompared) : card;
        }),
      );
      view = found;
      tried = usual = here = null;
      for (const el of [usualBox, bandsBox, density, hereBox, effectBox, clusterBox]) fill(el);
      draw(other);
    });
    settled();
  }

  /** A memory to compare with that this model does not have: report it, and show the other alone. */
  function notCompared(error) {
    if (error.code !== "superseded") {
      api.fail(error);
      turn({ compared: "" });
    }
    return null;
  }

  /** A box for a memory, written as L4M17. */
  const chosen = (label, on) =>
    textBox(label, {
      placeholder: "L4M17",
      size: 8,
      onkeydown: (e) => e.key === "Enter" && parseId(e.target.value) && on(idOf(parseId(e.target.value))),
    });

  function chooser(missing) {
    view = null;
    const box = chosen("Layer and index", (m) => go({ memory: m }));
    const open = () => parseId(box.value) && go({ memory: idOf(parseId(box.value)) });
    const kindOf = (id) => descriptionOf(parseId(id)).replace(/ \(.*/, ""); // without the examples
    const described = describedIds()
      .filter((id, i, all) => all.findIndex((other) => kindOf(other) === kindOf(id)) === i)
      .slice(0, 8);
    const layers = model.memories.flatMap((n, layer) => (n ? [layer] : []));
    const some = Array.from({ length: 6 }, (_, i) => {
      const layer = layers[Math.floor((i * layers.length) / 6)];
      return { layer, index: (i * 137) % model.memories[layer] };
    });
    fill(host, [
      empty(
        "Choose a memory",
        `${missing ? `${missing} ` : ""}A memory (FFN neuron) is a layer (0 to ${model.n_layers - 1}) and an ` +
          `index (0 to ${Math.max(...model.memories) - 1}). Click one in Trace or Layer, search for a word, or write one here.`,
        h("div.row", box, button("Open", open, { class: "btn main" })),
        described.length
          ? h("ul.described", { "aria-label": "Memories with a description, the best first" }, [
              described.map((id) => h("li", memoryLink(parseId(id)))),
            ])
          : h("div.row", [some.map((m) => memoryLink(m, { class: "btn small tok" }))]),
      ),
    ]);
  }

  function draw(other) {
    const names = h("div.row");
    const at = trail.indexOf(idOf(view));
    fill(host, [
      h("div.row", [
        h("h1", idOf(view), other && ` and ${idOf(other)}`),
        !other && title(view),
        names,
        h("span.spacer"),
        h("div.row", [
          other
            ? button("One only", () => go({ compared: "" }), { class: "btn small" })
            : h("label.row.faint", ["compare with", chosen("Compare with", (m) => go({ compared: m }))]),
          at >= 0 && h("span.faint", `${at + 1} of ${trail.length} found`),
          button("Previous", () => step(-1), { class: "btn small", title: "[" }),
          button("Next", () => step(1), { class: "btn small", title: "]" }),
          button("Switch off", () => tray.off(view), { class: "btn small", title: "Add to the edits (i)" }),
          button("Set to 3", () => tray.set(view), { class: "btn small", title: "Add to the edits" }),
        ]),
      ]),
      other ? both(other) : one(names),
    ]);
  }

  /** The automatic description; labels follow it as tags. */
  const title = (v) =>
    descriptionOf(v) &&
    h("span.described-as", { title: "made by rule from its triggers and promoted tokens" }, [
      descriptionOf(v),
      " ",
      h("small.faint", "automatic description"),
    ]);

  /** To the next memory of the search that led here, else of the layer. */
  function step(n) {
    const { layer, index } = view;
    const at = trail.indexOf(idOf(view));
    turn({
      memory:
        at < 0
          ? idOf({ layer, index: (index + n + model.memories[layer]) % model.memories[layer] })
          : trail[(at + n + trail.length) % trail.length],
    });
  }

  function one(names) {
    const shown = view;
    const [triggers, concepts, near, called, alike, wired] = Array.from({ length: 6 }, () => h("div.stack"));
    steer = steering(api, view);
    // The card is drawn first; its other panes are requested after that frame.
    afterPaint(() =>
      setTimeout(() => {
        if (!isShown(shown)) return;
        loadHere();
        topExamples(triggers, page, shown);
        labels(called, names, shown);
        neighbours(near, page, shown);
        loadUsual();
        categories(concepts, page, shown);
        cluster(alike, clusterBox, page, shown);
        wiring(wired, api, shown);
      }),
    );
    const tested = (largest) => {
      tried = largest;
      if (usual) distribution(usualBox, usual, tried);
    };
    return [
      figures(view),
      h("div.two.memory", [
        h("div.stack", [
          card("Top activating examples", lengths(), triggers, bandsBox),
          card("Test on your own text", null, textTest(page, view, tested)),
          card("Activation distribution", null, usualBox),
          card("Connections by weights", null, wired),
        ]),
        h("div.stack", [
          vocabulary(),
          card("Edit and steer", null, steer.el),
          card("Labels", null, called),
          card("Nearest neighbours", h("span.faint", "Shift-click: side by side"), near),
          card("Cluster", null, alike),
          card("Shared categories (WordNet)", null, concepts),
        ]),
      ]),
    ];
  }

  /** Both ends of the value's scores, and the scores of all tokens. */
  function vocabulary() {
    let more = false;
    const lists = h("div.compact");
    const copy = (end) =>
      navigator.clipboard.writeText(view[end].map((r) => r.token).join("\n")).then(() => announce("copied"), api.fail);
    const drawEnds = () =>
      fill(lists, [
        ends(view, more ? TOP : 10),
        h("p.row", [
          button(more ? "Fewer" : `Show ${TOP}`, () => ((more = !more), drawEnds()), { class: "quiet" }),
          ["promoted", "suppressed"].map((end) => button(`Copy ${end}`, () => copy(end), { class: "quiet" })),
        ]),
      ]);
    drawEnds();
    const scores = h("div");
    const counted = view.counts.reduce((a, b) => a + b, 0).toLocaleString("en");
    histogram.mount(scores, { ...view, marks: [], label: `Scores of all ${counted} tokens, heights logarithmic` });
    return card(
      "Effect of the value on the vocabulary",
      h("span.faint", "projected by W_U, without the final norm; click a token to pin it in Trace"),
      [
        lists,
        h("h3", "Scores of all tokens"),
        scores,
        about("memory"),
        asTable("All as a table", ["promoted", "score", "suppressed", "score"], () =>
          view.promoted.map((p, i) => [
            visible(p.token),
            p.score,
            visible(view.suppressed[i].token),
            view.suppressed[i].score,
          ]),
        ),
      ],
    );
  }

  /** Its coefficient and effect at the chosen position of the prompt. */
  const loadHere = () =>
    pane(hereBox, async () => {
      const of = view;
      const found = await onPrompt(api, of);
      if (!isShown(of)) return;
      here = found;
      drawHere();
    });

  function drawHere() {
    if (!here) return;
    const m = here.here.coefficient;
    const share = percentile(usual, m);
    fill(hereBox, [
      num(m),
      h("small", { title: share === null ? "" : `of ${usual.sampled.toLocaleString("en")} sampled tokens` }, [
        m === 0 ? " not active, " : share === null ? " " : ` ${percentileText(share)}, `,
        "at ",
        token(here.tokens[here.position]),
        ` (${here.position})`,
      ]),
    ]);
    fill(effectBox, effectOf(here), here.here.always_on && h("span.tag", "always on"));
    steer.draw(here, usual);
  }

  function loadUsual() {
    if (!model.can.index) return withoutIndex(usualBox);
    fill(usualBox, loading("Sampling the corpus", 5));
    const of = view;
    return pane(usualBox, async () => {
      const found = await api.get(`/memories/${of.layer}/${of.index}/coefficients`, {}, { channel: "sample" });
      if (!isShown(of)) return;
      usual = found;
      distribution(usualBox, usual, tried);
      quantiles(bandsBox, usual);
      const spark = h("span.spark");
      histogram.sparkline(spark, usual.counts);
      fill(density, `${num(100 * usual.statistics.active_fraction)} %`, spark);
      drawHere();
    });
  }
  const withoutIndex = (box) =>
    fill(box, h("p.faint", "The usual size of a coefficient is stored in an index, and none is open."));

  /** Two memories in two columns, and what their lists have in common. */
  function both(other) {
    const shared = (end) => view[end].map((r) => r.token).filter((t) => other[end].some((r) => r.token === t));
    const line = (name, list) => h("p", h("span.soft", `Both ${name} ${list.length} of ${TOP}: `), toks(list, 24));
    return [
      card("Shared tokens", null, line("promote", shared("promoted")), line("suppress", shared("suppressed"))),
      h("div.two", [
        [view, other].map((v, i) => {
          const triggers = h("div");
          topExamples(triggers, page, v, i);
          return h("div.stack", [
            card(idOf(v), null, h("div.stack", figures(v), ends(v))),
            card("Top activating examples", null, triggers),
          ]);
        }),
      ]),
    ];
  }

  /** The row of numbers; of two memories side by side only those from the weights. */
  function figures(v) {
    const alone = v === view && !state().compared;
    const place = h("span.spark");
    architecture(place, { model, at: { layer: v.layer, part: "ffn" } });
    /** @type {[string, any, boolean][]} */
    const all = [
      ["coefficient on the prompt", hereBox, alone],
      ["effect (logits)", effectBox, alone],
      ["activation density", density, alone && model.can.index],
      ["value norm", num(v.norm), true],
      ["cluster", clusterBox, alone && model.can.index],
      ["layer", [v.layer, h("small", ` (0 to ${model.n_layers - 1})`), place], true],
    ];
    return h("dl.figures", [
      all.map(([name, value, on]) => on && h("div", h("dt", name), value.tagName ? value : h("dd", value))),
    ]);
  }
  const ends = (v, n = 12) =>
    h("div.two", [
      tokenLists(
        [
          ["Promotes", v.promoted.slice(0, n)],
          ["Suppresses", v.suppressed.slice(0, n)],
        ],
        { onpick: (r) => pin(r.id) },
      ),
    ]);

  function pin(id) {
    const pins = state().pins.split(" ").filter(Boolean);
    turn({ pins: [...new Set([...pins, String(id)])].slice(-5).join(" ") });
    announce("pinned");
  }

  return {
    update(now, before) {
      if (differ(now, before, "screen", "memory", "compared")) return load();
      if (view && !now.compared && differ(now, before, ...PROMPT_CHANGES)) return loadHere();
    },
    key(event) {
      const by = { "[": -1, "]": 1 }[event.key];
      if (by && view) return (step(by), true);
      if (event.key === "i" && view) return (tray.off(view), true);
      if (event.key === "Escape") return (history.back(), true);
      return false;
    },
    exported: () =>
      view && {
        name: `memory-${view.layer}-${view.index}`,
        json: view,
        rows: [
          ["end", "id", "token", "score"],
          ...view.promoted.map((r) => ["promoted", r.id, r.token, r.score]),
          ...view.suppressed.map((r) => ["suppressed", r.id, r.token, r.score]),
        ],
      },
  };
}
