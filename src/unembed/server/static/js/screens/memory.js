/** One memory: what its value promotes and suppresses, what sets its key off, its labels; or two side by side. */

import { architecture } from "../architecture.js";
import { contexts, lengths, shade } from "../contexts.js";
import { afterPaint, button, fill, fixed, h, num, say, segmented, signed, textBox } from "../dom.js";
import * as histogram from "../islands/histogram.js";
import { mount as strip, token, visible } from "../islands/tokens.js";
import { labels, noIndex } from "../labels.js";
import { describedIds, descriptionOf } from "../names.js";
import { about, asTable, card, empty, memoryLink, pane, prompt, tokenBars, toks, trail, waiting } from "../parts.js";
import { QUESTION } from "../question.js";
import { differ, go, idOf, parseId, state, turn } from "../state.js";
import * as tray from "../tray.js";
import { effectOf, onPrompt, percentile, percentileText, steering } from "./memory-here.js";
import { wiring } from "./memory-wiring.js";

const TOP = 50;
export function render(root, page) {
  const { api, model } = page;
  if (!model.can.memories) {
    fill(
      root,
      empty("This model has no memories to show", "It has no feed-forward layers, or its memories belong to experts."),
    );
    return { update() {} };
  }
  const host = h("div", { class: "stack" });
  fill(root, host);
  let view = null;
  let tried = null;
  let usual = null;
  let more = false;
  let here = null;
  let steer = null;
  const [usualBox, bandsBox, density, hereBox, effectBox, clusterBox] = ["div", "div", "dd", "dd", "dd", "dd"].map(
    (name) => h(name),
  );

  /** The API's path of a memory by its id. */
  const pathOf = (id) => {
    const { layer, index } = parseId(id);
    return `/memories/${layer}/${index}`;
  };

  async function load() {
    if (!parseId(state().memory)) return chooser();
    // What was asked about the memory before would hold the few connections that a browser makes.
    ["contexts0", "contexts1", "concepts", "sample", "connections", "here", "next"].forEach(api.cancel);
    const settled = waiting(host);
    await pane(host, async () => {
      const [found, other] = await Promise.all(
        [state().memory, state().compared].map(
          (id, i) =>
            parseId(id) && api.get(pathOf(id), { top: TOP }, { channel: `memory${i}`, what: "Reading the value" }),
        ),
      );
      view = found;
      tried = usual = here = null;
      for (const el of [usualBox, bandsBox, density, hereBox, effectBox, clusterBox]) fill(el);
      draw(other);
    });
    settled();
  }

  /** A box for a memory, written as L4M17. */
  const chosen = (label, on) =>
    textBox(label, {
      placeholder: "L4M17",
      size: 8,
      onkeydown: (e) => e.key === "Enter" && parseId(e.target.value) && on(idOf(parseId(e.target.value))),
    });

  function chooser() {
    const box = chosen("Layer and index", (m) => go({ memory: m }));
    const open = () => parseId(box.value) && go({ memory: idOf(parseId(box.value)) });
    const described = describedIds().slice(0, 8);
    const some = Array.from({ length: 6 }, (_, i) => ({
      layer: Math.floor((i * model.n_layers) / 6),
      index: (i * 137) % model.d_mlp,
    }));
    fill(
      host,
      empty(
        "Choose a memory",
        `A memory (FFN neuron) is a layer (0 to ${model.n_layers - 1}) and an index (0 to ${model.d_mlp - 1}). Click one in Trace or Layer, search for a word, or write one here.`,
        h("div", { class: "row" }, box, button("Open", open, { class: "btn main" })),
        described.length
          ? h(
              "ul",
              { class: "described", "aria-label": "Memories with a description, the best first" },
              described.map((id) => h("li", {}, memoryLink(parseId(id)))),
            )
          : h(
              "div",
              { class: "row" },
              some.map((m) => memoryLink(m, { class: "btn small tok" })),
            ),
      ),
    );
  }

  function draw(other) {
    const { layer, index } = view;
    const names = h("div", { class: "row" });
    const at = trail.indexOf(idOf(view));
    fill(
      host,
      h(
        "div",
        { class: "row" },
        h("h1", {}, `L${layer}M${index}`, other && ` beside L${other.layer}M${other.index}`),
        !other && title(view),
        names,
        h("span", { class: "spacer" }),
        other
          ? button("One only", () => go({ compared: "" }), { class: "btn small" })
          : h(
              "label",
              { class: "row faint" },
              "beside",
              chosen("Compare with", (mv) => go({ compared: mv })),
            ),
        at >= 0 && h("span", { class: "faint" }, `${at + 1} of ${trail.length} found`),
        button("Previous", () => step(-1), { class: "btn small", title: "[" }),
        button("Next", () => step(1), { class: "btn small", title: "]" }),
        button("Switch off", () => tray.off(view), { class: "btn small", title: "Add to the edits (i)" }),
        button("Set to 3", () => tray.set(view), { class: "btn small", title: "Add to the edits" }),
      ),
      other ? both(other) : one(names),
    );
  }

  /** The automatic description; a label, if there is one, stands beside it as a tag. */
  const title = (v) =>
    descriptionOf(v) &&
    h(
      "span",
      { class: "described-as", title: "made by rule from its triggers and promoted tokens" },
      descriptionOf(v),
      " ",
      h("small", { class: "faint" }, "automatic description"),
    );

  /** To the next memory of the search that led here, else of the layer. */
  function step(n) {
    const { layer, index } = view;
    const at = trail.indexOf(idOf(view));
    turn({
      memory:
        at < 0
          ? idOf({ layer, index: (index + n + model.d_mlp) % model.d_mlp })
          : trail[(at + n + trail.length) % trail.length],
    });
  }

  function one(names) {
    const { layer, index } = view;
    const [triggers, concepts, near, called, cluster, wired] = Array.from({ length: 6 }, () =>
      h("div", { class: "stack" }),
    );
    const result = h("div", { class: "stack" });
    const vocabulary = h("div");
    const drawEnds = () =>
      fill(
        vocabulary,
        ends(view, more ? TOP : 10),
        h(
          "p",
          { class: "row" },
          button(more ? "Fewer" : `Show ${TOP}`, () => ((more = !more), drawEnds()), { class: "quiet" }),
          ["promoted", "suppressed"].map((end) =>
            button(`Copy ${end}`, () => copy(view[end].map((r) => r.token).join("\n")), { class: "quiet" }),
          ),
        ),
      );
    drawEnds();
    const scores = h("div");
    histogram.mount(scores, {
      edges: view.edges,
      counts: view.counts,
      marks: [],
      label: `Scores of all ${view.counts.reduce((a, b) => a + b, 0).toLocaleString("en")} tokens, heights logarithmic`,
    });
    steer = steering(api, view);
    const shown = view;
    // The card first: what more is known of it is asked for when it stands.
    afterPaint(() =>
      setTimeout(() => {
        if (view !== shown) return;
        loadHere();
        loadTriggers(triggers, view);
        labels(called, names, view);
        loadNear(near);
        loadUsual();
        loadConcepts(concepts);
        loadCluster(cluster);
        wiring(wired, api, view);
      }),
    );
    return [
      figures(view),
      h(
        "div",
        { class: "layer-panes" },
        h(
          "div",
          { class: "stack" },
          card("Top activating examples", lengths(), triggers, bandsBox),
          card("Test on your own text", null, tryForm(result, layer, index), result),
          card("Activation distribution", null, usualBox),
          card("Connections by weights", null, wired),
        ),
        h(
          "div",
          { class: "stack" },
          card(
            "Effect of the value on the vocabulary",
            h("span", { class: "faint" }, "projected by W_U, without the final norm; click a token to pin it in Trace"),
            h("div", { class: "compact" }, vocabulary),
            h("h3", {}, "Scores of all tokens"),
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
          ),
          card("Edit and steer", null, steer.el),
          card("Labels", null, called),
          card("Nearest neighbours", h("span", { class: "faint" }, "Shift-click: side by side"), near),
          card("Cluster", null, cluster),
          card("Shared categories (WordNet)", null, concepts),
        ),
      ),
    ];
  }

  /** Its coefficient and effect at the chosen position of the prompt. */
  const loadHere = () =>
    pane(hereBox, async () => {
      const of = view;
      const found = await onPrompt(api, of);
      if (view !== of) return;
      here = found;
      drawHere();
    });

  function drawHere() {
    if (!here) return;
    const m = here.here.coefficient;
    const share = percentile(usual, m);
    fill(
      hereBox,
      num(m),
      h(
        "small",
        { title: share === null ? "" : `of ${usual.sampled.toLocaleString("en")} sampled tokens` },
        share === null ? " " : ` ${percentileText(share)}, `,
        "at ",
        token(here.tokens[here.position]),
        ` ${here.position}`,
      ),
    );
    fill(effectBox, effectOf(here), here.here.always_on && h("span", { class: "tag" }, "always on"));
    steer.draw(here, usual);
  }

  /** Two memories in two columns, and what their lists have in common. */
  function both(other) {
    const shared = (end) => view[end].map((r) => r.token).filter((t) => other[end].some((r) => r.token === t));
    const line = (name, list) =>
      h("p", {}, h("span", { class: "soft" }, `Both ${name} ${list.length} of ${TOP}: `), toks(list, 24));
    return [
      card("Shared tokens", null, line("promote", shared("promoted")), line("suppress", shared("suppressed"))),
      h(
        "div",
        { class: "two" },
        [view, other].map((v, i) => {
          const triggers = h("div");
          loadTriggers(triggers, v, i);
          return h(
            "div",
            { class: "stack" },
            card(`L${v.layer}M${v.index}`, null, h("div", { class: "stack" }, figures(v), ends(v))),
            card("Top activating examples", null, triggers),
          );
        }),
      ),
    ];
  }

  const figure = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  const place_ = (v) => {
    const picture = h("span", { class: "spark" });
    architecture(picture, { model, at: { layer: v.layer, part: "ffn" } });
    return [`${v.layer} of 0 to ${model.n_layers - 1}`, picture];
  };
  const figures = (v) => {
    const whole = v === view && !state().compared;
    return h(
      "dl",
      { class: "figures" },
      whole && h("div", {}, h("dt", {}, "coefficient on the prompt"), hereBox),
      whole && h("div", {}, h("dt", {}, "effect"), effectBox),
      whole && model.can.index && h("div", {}, h("dt", {}, "activation density"), density),
      figure("value norm", num(v.norm)),
      whole && model.can.index && h("div", {}, h("dt", {}, "cluster"), clusterBox),
      figure("layer", place_(v)),
    );
  };
  const ends = (v, n = 12) =>
    h(
      "div",
      { class: "two" },
      [
        ["Promotes", v.promoted],
        ["Suppresses", v.suppressed],
      ].map(([title, rows]) =>
        h("div", {}, h("h3", {}, title), tokenBars(rows.slice(0, n), { onpick: (r) => pin(r.id) })),
      ),
    );
  const copy = (text) => navigator.clipboard.writeText(text).then(() => say("copied"), api.fail);

  function pin(id) {
    const pins = state().pins.split(" ").filter(Boolean);
    turn({ pins: [...new Set([...pins, String(id)])].slice(-5).join(" ") });
    say("pinned");
  }

  function loadTriggers(box, { layer, index }, slot = 0) {
    if (!model.can.index) return noIndex(box, "Triggers are the texts of a corpus on which the key fires most.");
    const at = `/memories/${layer}/${index}`;
    let pole = "positive";
    fill(box, h("p", { class: "faint" }, "Reading triggers …"));
    const list = h("div");
    const again = () =>
      pane(box, async () => {
        // Texts first, from the index alone; then each token's own coefficient, for which the model is asked.
        const { rows } = await api.get(
          `${at}/triggers`,
          { top: 25, context: 24, pole },
          { channel: `triggers${slot}` },
        );
        if (!rows.length) return fill(box, h("p", { class: "note" }, "The key never fired on this corpus."));
        contexts(
          list,
          rows.map((r) => ({ ...r, tokens: [r.prefix, r.token], coefficients: [] })),
          10,
        );
        fill(
          box,
          model.can.gated &&
            segmented(
              "Coefficients",
              [
                ["positive", "Positive"],
                ["negative", "Negative"],
              ],
              pole,
              (v) => ((pole = v), again()),
            ),
          list,
          h(
            "p",
            { class: "faint" },
            `The ${rows.length} strongest, which index ${model.index} keeps; the marked token is where the key fires.`,
          ),
        );
        contexts(
          list,
          (await api.get(`${at}/contexts`, { top: 25, pole }, { channel: `contexts${slot}` })).contexts,
          10,
        );
      });
    return again();
  }

  const loadConcepts = (box) =>
    pane(box, async () => {
      fill(box, h("p", { class: "faint" }, "Looking …"));
      const found = await api.get(`/memories/${view.layer}/${view.index}/concepts`, {}, { channel: "concepts" });
      fill(
        box,
        found.rows.length
          ? h(
              "ul",
              { class: "stack" },
              found.rows
                .slice(0, 8)
                .map((row) =>
                  h(
                    "li",
                    {},
                    h("span", { class: "tag" }, row.kind),
                    " ",
                    h("b", {}, row.concept),
                    h("span", { class: "faint" }, ` ${row.n_tokens} of 30: `),
                    toks(row.tokens),
                  ),
                ),
            )
          : h("p", { class: "faint" }, "No class is shared by at least 4 of the 30 top tokens."),
      );
    });

  function loadNear(box) {
    if (!model.can.index) return noIndex(box, "Neighbours are found with an index.");
    return pane(box, async () => {
      const found = await api.get(`/memories/${view.layer}/${view.index}/similar`, { top: 6 }, { channel: "similar" });
      fill(
        box,
        h(
          "ul",
          { class: "near" },
          found.rows.map((row) =>
            h(
              "li",
              {},
              h("div", { class: "head" }, memoryLink(row), h("span", { class: "faint" }, `cosine ${num(row.cosine)}`)),
              h("div", { class: "toks" }, toks(row.top_tokens)),
            ),
          ),
        ),
      );
    });
  }

  /** The group of alike values that it is in; the values of the model are grouped when that is asked for. */
  const loadCluster = (box) =>
    pane(box, async () => {
      const {
        size,
        values,
        n_clusters: n,
        coherence,
        shared,
        counted: among,
        members,
      } = await api.get(`/memories/${view.layer}/${view.index}/cluster`, {}, { channel: "cluster", fresh: true });
      const all = `${values.toLocaleString("en")} values`;
      fill(clusterBox, size ? [`${size}`, h("small", {}, " alike values")] : h("small", {}, "not computed"));
      if (!size)
        return fill(
          box,
          h(
            "p",
            {},
            `The ${all} of the model are not grouped yet. `,
            button(
              "Compute clusters",
              () =>
                pane(box, async () => {
                  const tell = ({ done = 0, of = 0 }) =>
                    fill(box, h("p", { class: "faint" }, `${done} of ${of || "all"} steps of grouping`));
                  tell({}); // other long work may come first
                  await api.stream("/clusters", {}, tell, { what: "Grouping values" }).catch(api.fail);
                  await loadCluster(box);
                }),
              { class: "btn small" },
            ),
          ),
        );
      fill(
        box,
        h("p", {}, `${size} of ${all}, in one of ${n} clusters`, size > 1 && `; mean cosine ${num(coherence)}`),
        shared.length > 0 &&
          h(
            "p",
            {},
            h("span", { class: "soft" }, `Promoted by several of ${among}: `),
            shared.map(([t, n]) => [token(t), h("small", { class: "faint" }, ` ${n}  `)]),
          ),
        h(
          "div",
          { class: "row" },
          members.map((m) => memoryLink(m, { class: "btn small tok", title: `cosine ${num(m.cosine)}` })),
        ),
        about("cluster"),
      );
    });

  function loadUsual() {
    if (!model.can.index) return noIndex(usualBox, "How large a coefficient usually is comes from a corpus.");
    fill(usualBox, h("p", { class: "faint" }, "Sampling the corpus …"));
    return pane(usualBox, async () => {
      usual = await api.get(`/memories/${view.layer}/${view.index}/coefficients`, {}, { channel: "sample" });
      drawUsual();
      const spark = h("span", { class: "spark" });
      histogram.sparkline(spark, usual.counts);
      fill(density, `${num(100 * usual.statistics.active_fraction)} %`, spark);
      drawHere();
      let above = 0; // sampled tokens with a larger coefficient than this band's
      fill(
        bandsBox,
        h("h3", {}, `Examples by quantile, among ${usual.sampled.toLocaleString("en")} sampled tokens`),
        usual.bands.map((b) => {
          const list = h("div");
          const [high, low] = [1 - above / usual.sampled, 1 - (above + b.tokens) / usual.sampled];
          above += b.tokens;
          return h(
            "details",
            { ontoggle: () => !list.firstChild && contexts(list, b.contexts, 4) },
            h(
              "summary",
              {},
              `${num(b.above)} to ${num(b.up_to)}: ${b.tokens.toLocaleString("en")} token${b.tokens === 1 ? "" : "s"}, quantiles ${fixed(Math.max(0, low), 3)} to ${fixed(high, 3)}`,
            ),
            list,
          );
        }),
      );
    });
  }

  /** The histogram, with the largest coefficient of the text that was tried, and how many are smaller. */
  function drawUsual() {
    if (!usual) return;
    const { mean, variance, least, largest, active_fraction: active } = usual.statistics;
    const box = h("div");
    const below = tried !== null && usual.counts.reduce((sum, n, i) => sum + (usual.edges[i + 1] <= tried ? n : 0), 0);
    const said = `Coefficients of ${usual.sampled.toLocaleString("en")} sampled tokens, heights logarithmic`;
    histogram.mount(box, {
      ...usual,
      marks: tried === null ? [] : [{ value: tried, name: `here ${num(tried)}` }],
      label: said,
    });
    fill(
      usualBox,
      box,
      below !== false && h("p", {}, "Here ", h("b", {}, num(tried)), `, above ${below.toLocaleString("en")} of them.`),
      h(
        "p",
        { class: "faint" },
        `${said}. Over all ${usual.tokens.toLocaleString("en")} tokens of the index: mean ${num(mean)}, deviation ${num(Math.sqrt(variance))}, from ${num(least)} to ${num(largest)}; active at ${num(100 * active)} %.`,
      ),
      asTable("As a table", ["from", "to", "tokens"], () =>
        usual.counts.map((n, i) => [usual.edges[i], usual.edges[i + 1], n]),
      ),
    );
  }

  function tryForm(box, layer, index) {
    const input = h("input", {
      type: "text",
      "aria-label": "Text to test",
      value: state().text || prompt(),
      style: { flex: 1 },
      onkeydown: (e) => e.key === "Enter" && run(),
    });
    const run = () =>
      pane(box, async () => {
        if (input.value !== prompt()) turn({ text: input.value });
        const found = await api.post(
          `/memories/${layer}/${index}/activations`,
          { prompt: input.value || " " },
          { channel: "activations" },
        );
        const { tokens, coefficients } = found;
        const most = Math.max(...coefficients.map(Math.abs), 1e-9);
        const cells = h("div");
        strip(cells, {
          tokens,
          classes: coefficients.map((m) => shade(m, most)),
          titles: coefficients.map((m) => `coefficient ${m.toPrecision(4)}`),
        });
        const best = coefficients.reduce((a, m, i) => (Math.abs(m) > Math.abs(coefficients[a]) ? i : a), 0);
        tried = coefficients[best];
        drawUsual();
        fill(
          box,
          cells,
          h(
            "p",
            { class: "faint" },
            "largest ",
            signed(tried),
            " at ",
            token(tokens[best]),
            "; blue positive, orange negative",
          ),
          asTable("As a table", ["token", "coefficient"], () => tokens.map((t, i) => [visible(t), coefficients[i]])),
        );
      });
    run();
    return h("div", { class: "row" }, input, button("Test", run, { class: "btn" }));
  }

  return {
    update(now, before) {
      if (before.screen !== now.screen || now.memory !== before.memory || now.compared !== before.compared)
        return load();
      if (view && !now.compared && differ(now, before, "prompt", "position", "edits", "disabled", ...QUESTION))
        return loadHere();
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
