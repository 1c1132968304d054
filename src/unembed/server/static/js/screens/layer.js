/** One layer at one position: the readings before and after, and the updates between them. */
import { architecture } from "../architecture.js";
import { button, fill, h, many, percent, segmented, selectBox, within } from "../dom.js";
import { mount as strip, token } from "../islands/tokens.js";
import { isLabelled, lastUpdate } from "../names.js";
import {
  about,
  asTable,
  attribution,
  candidates,
  card,
  failure,
  layerHere,
  pane,
  positionHere,
  prompt,
  waiting,
  written,
} from "../parts.js";
import { inWords, QUESTION, questionPicker, questionQuery } from "../question.js";
import { activeEdits, asksAnew, differ, go, state, turn } from "../state.js";
import { span } from "../timing.js";
import { dropPositionBeyond } from "../unread.js";
import { isHead, ORDERS, PLAIN_HEAD, plainRows, ranked, updatesTable } from "../updates.js";

const PARTS = [
  ["ffn", "Memories"],
  ["heads", "Heads"],
  ["both", "Both"],
];
const SIDES = [
  ["all", "All"],
  ["for", "Promotes the target"],
  ["against", "Suppresses the target"],
  ["named", "Labelled"],
  ["unnamed", "Not labelled"],
];
const called = (u) => isLabelled(u, isHead(u) ? "head" : "memory");

/** The most sub-updates that the server lists at once. */
const MOST = 500;

/** The fewest rows, largest first, that reach this share of the update's size; all rows if they do not. */
function until(all, size) {
  let share = 0;
  return ranked(all, "size").filter((u) => share < size && ((share += u.share), true));
}

export function render(root, page) {
  const { api, model } = page;
  let data = null;
  let view = null;
  let wanted = 20;
  const title = h("h1");
  const between = h("span", "Before and after");
  const crumbs = h("div.soft");
  const tokens = h("div", { "aria-label": "Positions" });
  const three = h("div.sandwich.wide");
  const list = h("div");
  const why = questionPicker();
  const where = h("div");
  const listNote = h("p.faint");
  const attributionBox = h("div");
  const table = h("div");
  const move = (n) => turn({ layer: String(within(layer() + n, model.n_layers)) });
  const choice = (label, name, options) => segmented(label, options, state()[name], (value) => turn({ [name]: value }));
  fill(root, [
    h("div.stack", [
      h("div.row", [
        title,
        crumbs,
        h("span.spacer"),
        button("Layer below", () => move(-1), { class: "btn small", title: "[" }),
        button("Layer above", () => move(1), { class: "btn small", title: "]" }),
      ]),
      h("div.row", why.el, tokens),
      where,
      h("div.layer-panes", [
        card(
          "Sub-updates and heads",
          [
            model.can.memories && choice("Writers", "part", PARTS),
            selectBox(
              "Rank by",
              Object.entries(ORDERS).map(([name, [text]]) => [name, `by ${text.toLowerCase()}`]),
              state().sort,
              { onchange: (e) => turn({ sort: e.target.value }) },
            ),
            selectBox("Show", SIDES.slice(0, model.can.index ? 5 : 3), state().side, {
              onchange: (e) => turn({ side: e.target.value }),
            }),
          ],
          [list, listNote, about("writers"), table],
        ),
        h("div.stack", card(between, null, three, about("between")), card("Logit attribution", null, attributionBox)),
      ]),
    ]),
  ]);

  const layer = () => layerHere(model.n_layers);
  const partOf = () => (model.can.memories ? state().part : "heads");

  async function load() {
    const settled = waiting(root);
    await pane(three, async () => {
      data = await api.trace(prompt(), activeEdits());
      dropPositionBeyond(data.tokens.length);
      await open();
    });
    settled();
  }

  async function open() {
    try {
      view = await api.get(
        `/traces/${data.id}/layers/${layer()}`,
        {
          position: positionHere(data.tokens.length),
          ...questionQuery(),
          order: state().coverage ? "size" : state().sort,
          memories: !model.can.memories ? 0 : state().coverage ? MOST : wanted,
          top: 10,
          heads: partOf() !== "ffn" || null,
        },
        { channel: "layer", what: "Reading the layer" },
      );
    } catch (error) {
      return error.message.startsWith("trace") ? reload() : failure(three, error, open);
    }
    draw();
  }

  /** The trace is no longer in the server's cache: post the prompt again. */
  const reload = () => (api.forget("trace "), load());

  function draw() {
    const one = view.layers[0];
    page.tokens = data.tokens.map((t) => t.token);
    page.crumbs();
    title.textContent = `Layer ${one.layer}`;
    between.textContent = one.middle ? `Before, after ${model.mixers[one.layer]}, after FFN` : "Before and after";
    fill(crumbs, [
      "at ",
      token(data.tokens[view.position].token),
      ` position ${view.position}; effects on `,
      inWords(view),
    ]);
    why.draw(view);
    architecture(where, {
      model,
      view,
      at: { layer: one.layer, part: partOf() === "heads" ? "mixer" : "ffn" },
    });
    strip(
      tokens,
      { tokens: data.tokens.map((t) => t.token), selected: view.position },
      { onpick: (p) => turn({ position: String(p), token: "" }) },
    );
    const pick = (c) => turn({ token: `#${c.id}` });
    fill(three, [
      column("Before", one.before, null, one.rank_before),
      one.middle
        ? column(`After ${model.mixers[one.layer]}`, one.middle, one.middle_from, one.rank_middle)
        : model.ffns[one.layer] && model.mixers[one.layer] && written(h("p.note"), "parallel"),
      column(`After ${lastUpdate(model, one.layer)}`, one.after, one.after_from, one.rank_after),
    ]);
    function column(name, now, from, rank) {
      return h("div", h("h3", name), candidates(now, { from, n: 10, onpick: pick, rank }));
    }
    drawList();
    if (view.attributions[0]) attribution(attributionBox, view.attributions[0], data.tokens);
  }

  function drawList() {
    if (!view) return;
    const { sort, side, coverage: most } = state();
    const part = partOf();
    const one = view.layers[0];
    const updates = most ? until(one.sub_updates, 0.9) : one.sub_updates;
    const done = span("sort");
    const all = ranked([...(part === "heads" ? [] : updates), ...(part === "ffn" ? [] : one.heads)], sort);
    const shown = all.filter(
      (u) => ({ for: u.score > 0, against: u.score <= 0, named: called(u), unnamed: !called(u) })[side] ?? true,
    );
    const sum = (of) => updates.reduce((total, u) => total + of(u), 0);
    const ffn = view.attributions[0]?.rows.find((row) => row.layer === layer() && row.label.startsWith("ffn"));
    const rest = model.memories[layer()] - updates.length;
    const share = sum((u) => u.share);
    const after =
      part !== "heads" && updates.length && rest > 0
        ? [
            [
              `${many(rest, "other memory", "other memories")} with ${percent(Math.max(0, 1 - share))} of the share, ` +
                "and the bias",
              ffn && sort !== "deviation" ? ffn.contribution - sum((u) => u.score) : null,
            ],
          ]
        : [];
    updatesTable(list, shown, view, { order: sort, after });
    if (!updates.length && part !== "heads") list.prepend(written(h("p.note"), "unlisted"));
    done();
    fill(listNote, [
      `Ranked by ${ORDERS[sort][1]}. `,
      part !== "heads" &&
        updates.length > 0 && [
          `The ${many(updates.length, "memory listed has", "memories listed have")} ${percent(share)} of the ` +
            "share. ",
          rest > 0 &&
            !most &&
            wanted < MOST &&
            updates.length >= wanted &&
            button("Show more", () => ((wanted = Math.min(MOST, wanted * 4)), open()), { class: "quiet" }),
          button(most ? `Show the first ${wanted}` : "Show until 90 %", () => turn({ coverage: most ? "" : "90" }), {
            class: "quiet",
          }),
        ],
    ]);
    fill(table, [asTable("As a table", PLAIN_HEAD, () => plainRows(shown))]);
  }

  return {
    update(now, before) {
      if (asksAnew(now, before)) return load();
      const differs = (...names) => differ(now, before, ...names);
      if (
        data &&
        (differs("layer", "position", "coverage", "sort", ...QUESTION) || (differs("part") && now.part !== "ffn"))
      )
        return open();
      if (differs("part", "side")) drawList();
    },
    key(event) {
      const step = { "[": -1, "]": 1 }[event.key];
      if (step) return (move(step), true);
      const aside = { ",": -1, ".": 1 }[event.key];
      if (aside && data)
        return (turn({ position: String(within(view.position + aside, data.tokens.length)), token: "" }), true);
      if (event.key === "Escape") return (go({ screen: "trace" }), true);
      return false;
    },
    exported: () =>
      view && {
        name: `layer-${layer()}`,
        json: view,
        rows: [
          [
            "layer",
            "index",
            "coefficient",
            "norm",
            "contribution",
            "share",
            "score",
            "deviation",
            "always_on",
            "top_tokens",
          ],
          ...view.layers[0].sub_updates.map((u) => [
            u.layer,
            u.index,
            u.coefficient,
            u.norm,
            u.contribution,
            u.share,
            u.score,
            u.deviation,
            u.always_on,
            JSON.stringify(u.top_tokens),
          ]),
        ],
      },
  };
}
