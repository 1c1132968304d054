/** One layer at one position: what was there, what was added, what is there now. */
import { button, fill, h, percent, segmented, signed, textBox, within, worded } from "../dom.js";
import { mount as strip, token, visible } from "../islands/tokens.js";
import { nameOf } from "../names.js";
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
  subUpdate,
  waiting,
  written,
} from "../parts.js";
import { activeEdits, asksAnew, differ, go, state, turn } from "../state.js";
import { span } from "../timing.js";

/** What a row is ranked by, as a number and as a formula. A head has no coefficient; its size is the length of what it adds. */
const SORTS = {
  share: [
    "By size",
    (u) => u.contribution ?? u.norm,
    "|coefficient| × length of the value, or the length of what a head adds",
  ],
  effect: ["By effect on the target", (u) => Math.abs(u.score), "|what it adds to the target's logit|"],
  coefficient: ["By coefficient", (u) => Math.abs(u.coefficient ?? 0), "|coefficient|"],
};
const PARTS = [
  ["ffn", "FFN sub-updates"],
  ["heads", "Heads"],
  ["both", "Both"],
];
const isHead = (u) => u.coefficient === undefined;
const called = (u) => !!nameOf(u, isHead(u) ? "head" : "memory");

/** As many sub-updates as the server lists at once. */
const MOST = 500;

/** The fewest, largest first, that hold so much of the update's size; all of them when they hold less. */
function until(all, size) {
  let held = 0;
  return all.filter((u) => held < size && ((held += u.share), true));
}

export function render(root, page) {
  const { api, model } = page;
  let data = null;
  let view = null;
  let wanted = 20;
  let made = {};
  const title = h("h1", {});
  const crumbs = h("div", { class: "soft" });
  const tokens = h("div", { "aria-label": "Positions" });
  const three = h("div", { class: "sandwich wide" });
  const list = h("ol", {});
  const listNote = h("p", { class: "faint" });
  const books = h("div");
  const table = h("div");
  const move = (n) => turn({ layer: String(within(layer() + n, model.n_layers)) });
  const target = textBox("Target token", {
    placeholder: "a token",
    title: "a token, its space included",
    onchange: () => turn({ token: target.value }),
  });
  const choice = (label, name, options) => segmented(label, options, state()[name], (value) => turn({ [name]: value }));
  fill(
    root,
    h(
      "div",
      { class: "stack" },
      h(
        "div",
        { class: "row" },
        title,
        h("span", { class: "spacer" }),
        button("Layer below", () => move(-1), { class: "btn small", title: "[" }),
        button("Layer above", () => move(1), { class: "btn small", title: "]" }),
      ),
      crumbs,
      tokens,
      card("Before, between, after", worded("Target", target), three, about("between")),
      h(
        "div",
        { class: "two" },
        card(
          "What was added",
          [
            choice("Writers", "part", PARTS),
            choice(
              "Order",
              "sort",
              Object.entries(SORTS).map(([name, [text]]) => [name, text]),
            ),
            choice("Show", "side", [
              ["all", "All"],
              ["for", "For the target"],
              ["against", "Against"],
              ...(model.can.index
                ? [
                    ["named", "Named"],
                    ["unnamed", "Not named"],
                  ]
                : []),
            ]),
          ],
          listNote,
          list,
          about("writers"),
          table,
        ),
        card("The attribution of the target's logit", null, books),
      ),
    ),
  );

  const layer = () => layerHere(model.n_layers);

  async function load() {
    const settled = waiting(root);
    await pane(three, async () => {
      data = await api.trace(prompt(), activeEdits());
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
          token: state().token,
          memories: state().coverage ? MOST : wanted,
          top: 10,
          heads: state().part !== "ffn" || null,
        },
        { channel: "layer", what: "Reading the layer" },
      );
    } catch (error) {
      return error.message.startsWith("trace") ? reload() : failure(three, error, open);
    }
    draw();
  }

  /** The server has forgotten the trace: ask it anew. */
  const reload = () => (api.forget("trace "), load());

  function draw() {
    const one = view.layers[0];
    page.tokens = data.tokens.map((t) => t.token);
    page.crumbs();
    title.textContent = `Layer ${one.layer}`;
    fill(
      crumbs,
      "at ",
      token(data.tokens[view.position].token),
      ` position ${view.position}; target `,
      token(view.target.token),
    );
    target.value = state().token.startsWith("#") ? view.target.token : state().token;
    strip(
      tokens,
      { tokens: data.tokens.map((t) => t.token), selected: view.position },
      { onpick: (p) => turn({ position: String(p), token: "" }) },
    );
    const pick = (c) => turn({ token: `#${c.id}` });
    fill(
      three,
      column("Entering", one.before, null, one.rank_before),
      one.middle
        ? column("After attention", one.middle, one.middle_from, one.rank_middle)
        : written(h("p", { class: "note" }), "parallel"),
      column("After the FFN", one.after, one.after_from, one.rank_after),
    );
    function column(name, now, from, rank) {
      return h("div", {}, h("h3", {}, name), candidates(now, { from, n: 10, onpick: pick, rank }));
    }
    made = {};
    drawList();
    if (view.attributions[0]) attribution(books, view.attributions[0], data.tokens);
  }

  function drawList() {
    if (!view) return;
    const { part, sort, side, coverage: most } = state();
    const one = view.layers[0];
    const updates = most ? until(one.sub_updates, 0.9) : one.sub_updates;
    const all = [...(part === "heads" ? [] : updates), ...(part === "ffn" ? [] : one.heads)];
    const [, by, formula] = SORTS[sort] || SORTS.share;
    const done = span("sort");
    const shown = all
      .filter((u) => ({ for: u.score > 0, against: u.score <= 0, named: called(u), unnamed: !called(u) })[side] ?? true)
      .sort((a, b) => by(b) - by(a));
    const value =
      sort === "effect" || part === "both" ? (u) => u.score : (u) => (u.coefficient < 0 ? -u.share : u.share);
    const largest = Math.max(...all.map((u) => Math.abs(value(u))), 1e-9);
    // A row is made once: sorted anew it only moves, and what was open in it stays open.
    const row = (u) =>
      (made[[isHead(u), u.index, value(u) / largest]] ??= subUpdate(u, {
        most: largest,
        target: view.target.token,
        value: value(u),
      }));
    fill(list, shown.map(row));
    if (!updates.length && part !== "heads") list.prepend(written(h("li", { class: "note" }), "unlisted"));
    done();
    const sum = (of) => updates.reduce((total, u) => total + of(u), 0);
    const ffn = view.attributions[0]?.rows.find((row) => row.layer === layer() && row.label.startsWith("ffn"));
    const rest = model.d_mlp - updates.length;
    const held = sum((u) => u.share);
    if (part !== "heads" && updates.length && rest > 0)
      list.append(
        h(
          "li",
          { class: "faint" },
          `${rest.toLocaleString("en")} other memories: ${percent(Math.max(0, 1 - held))} of the update's size`,
          ffn && `, ${signed(ffn.contribution - sum((u) => u.score))} to the logit with the FFN's bias`,
        ),
      );
    fill(
      listNote,
      `Ranked by ${formula}. `,
      part !== "heads" &&
        updates.length > 0 && [
          `The ${updates.length} memories listed are ${percent(held)} of the FFN's update. `,
          rest > 0 &&
            !most &&
            wanted < MOST &&
            button("Show more", () => ((wanted = Math.min(MOST, wanted * 4)), open()), { class: "quiet" }),
          button(most ? `Show the first ${wanted}` : "Show until 90 %", () => turn({ coverage: most ? "" : "90" }), {
            class: "quiet",
          }),
        ],
    );
    fill(
      table,
      asTable("As a table", ["writer", "coefficient", "length", "share", "effect on target", "promotes"], () =>
        shown.map((u) => [
          `L${u.layer}${isHead(u) ? "H" : "M"}${u.index}`,
          u.coefficient ?? "",
          u.norm,
          u.share,
          u.score,
          u.top_tokens.slice(0, 6).map(visible).join(" "),
        ]),
      ),
    );
  }

  return {
    update(now, before) {
      if (asksAnew(now, before)) return load();
      const differs = (...names) => differ(now, before, ...names);
      if (data && (differs("layer", "position", "token", "coverage") || (differs("part") && now.part !== "ffn")))
        return open();
      if (differs("part", "sort", "side")) drawList();
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
          ["layer", "index", "coefficient", "norm", "contribution", "share", "score", "top_tokens"],
          ...view.layers[0].sub_updates.map((u) => [
            u.layer,
            u.index,
            u.coefficient,
            u.norm,
            u.contribution,
            u.share,
            u.score,
            JSON.stringify(u.top_tokens),
          ]),
        ],
      },
  };
}
