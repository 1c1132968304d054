/** One layer at one position: the readings before and after, and the updates between them. */
import { architecture } from "../architecture.js";
import { button, fill, h, namedBoxes, part, selectBox, within } from "../dom.js";
import { mount as strip, token } from "../islands/tokens.js";
import { lastUpdate } from "../names.js";
import {
  about,
  attribution,
  candidates,
  card,
  choice,
  columns,
  dimming,
  failure,
  layerHere,
  positionHere,
  prompt,
  topTokens,
  written,
} from "../parts.js";
import { inWords, QUESTION, questionPicker, questionQuery } from "../question.js";
import { activeEdits, asksAnew, differ, go, state, turn } from "../state.js";
import { dropPositionBeyond } from "../unread.js";
import { ORDERS } from "../updates.js";
import { drawList, MOST, partOf, SIDES } from "./layer-list.js";

const PARTS = { ffn: "Memories", heads: "Heads", both: "Both" };

export function render(root, page) {
  const { api, model } = page;
  const panes = {
    ...namedBoxes({ title: "h1", crumbs: "div.soft", three: "div.sandwich.wide", where: "div", attributed: "div" }),
    ...namedBoxes({ list: "div", listNote: "p.faint", table: "div" }),
    between: h("span", "Before and after"),
    tokens: h("div", { "aria-label": "Positions" }),
  };
  const layer = () => layerHere(model.n_layers);
  /** `wanted`: the number of memories to list. */
  const begun = { data: null, view: null, wanted: 20 };
  const t = { ...panes, page, api, model, root, layer, why: questionPicker(), ...begun, more: () => more(t) };
  fill(root, frame(t));
  return {
    update: (now, before) => update(t, now, before),
    key: ({ key }) => act(t, key),
    exported: () => t.view && { name: `layer-${layer()}`, json: t.view, rows: rowsOf(t.view) },
  };
}

function more(t) {
  t.wanted = Math.min(MOST, t.wanted * 4);
  return open(t);
}

const move = ({ model, layer }, by) => turn({ layer: String(within(layer() + by, model.n_layers)) });

function frame(t) {
  const { model } = t;
  const orders = Object.entries(ORDERS).map(([name, [text]]) => [name, `by ${text.toLowerCase()}`]);
  const sides = SIDES.slice(0, model.can.index ? 5 : 3);
  const controls = [
    model.can.memories && choice("Writers", "part", PARTS),
    selectBox("Rank by", orders, state().sort, (sort) => turn({ sort })),
    selectBox("Show", sides, state().side, (side) => turn({ side })),
  ];
  return h("div.stack", [
    h("div.row", [
      t.title,
      t.crumbs,
      h("span.spacer"),
      button("Layer below", () => move(t, -1), "btn small", { title: "[" }),
      button("Layer above", () => move(t, 1), "btn small", { title: "]" }),
    ]),
    h("div.row", t.why.el, t.tokens),
    t.where,
    h("div.layer-panes", [
      card("Sub-updates and heads", controls, t.list, t.listNote, about("writers"), t.table),
      h("div.stack", card(t.between, null, t.three, about("between")), card("Logit attribution", null, t.attributed)),
    ]),
  ]);
}

function update(t, now, before) {
  if (asksAnew(now, before)) return load(t);
  const differs = (...names) => differ(now, before, ...names);
  const writers = differs("part") && now.part !== "ffn";
  if (t.data && (writers || differs("layer", "position", "coverage", "sort", ...QUESTION))) return open(t);
  if (differs("part", "side")) drawList(t);
  return undefined;
}

function act(t, key) {
  const step = { "[": -1, "]": 1 }[key];
  const aside = t.data && { ",": -1, ".": 1 }[key];
  if (step) move(t, step);
  else if (aside) turn({ position: String(within(t.view.position + aside, t.data.tokens.length)), token: "" });
  else if (key === "Escape") go({ screen: "trace" });
  else return false;
  return true;
}

async function load(t) {
  await dimming([t.root], t.three, async () => {
    t.data = await t.api.trace(prompt(), activeEdits());
    dropPositionBeyond(t.data.tokens.length);
    await open(t);
  });
}

async function open(t) {
  const { coverage, sort } = state();
  const query = {
    position: positionHere(t.data.tokens.length),
    ...questionQuery(),
    order: coverage ? "size" : sort,
    memories: !t.model.can.memories ? 0 : coverage ? MOST : t.wanted,
    top: 10,
    heads: partOf(t) !== "ffn" || null,
  };
  const path = `/traces/${t.data.id}/layers/${t.layer()}`;
  try {
    t.view = await t.api.get(path, query, { channel: "layer", what: "Reading the layer" });
  } catch (/** @type {any} */ error) {
    if (!error.message.startsWith("trace")) return failure(t.three, error, () => open(t));
    t.api.forget("trace "); // it is no longer in the server's cache: post the prompt again
    return load(t);
  }
  draw(t);
}

function draw(t) {
  const { view, data, model, page } = t;
  const one = view.layers[0];
  const mixer = model.mixers[one.layer];
  page.tokens = data.tokens.map((word) => word.token);
  page.crumbs();
  t.title.textContent = `Layer ${one.layer}`;
  t.between.textContent = one.middle ? `Before, after ${mixer}, after FFN` : "Before and after";
  const at = view.position;
  fill(t.crumbs, "at ", token(page.tokens[at]), ` position ${at}; effects on `, inWords(view));
  t.why.draw(view);
  architecture(t.where, { model, view, at: { layer: one.layer, part: partOf(t) === "heads" ? "mixer" : "ffn" } });
  const onpick = (p) => turn({ position: String(p), token: "" });
  strip(t.tokens, { tokens: page.tokens, selected: at }, { onpick });
  const column = (name, now, from, rank) =>
    part(name, candidates(now, { from, n: 10, onpick: (c) => turn({ token: `#${c.id}` }), rank }));
  const parallel = () => model.ffns[one.layer] && mixer && written(h("p.note"), "parallel");
  fill(t.three, [
    column("Before", one.before, null, one.rank_before),
    one.middle ? column(`After ${mixer}`, one.middle, one.middle_from, one.rank_middle) : parallel(),
    column(`After ${lastUpdate(model, one.layer)}`, one.after, one.after_from, one.rank_after),
  ]);
  drawList(t);
  if (view.attributions[0]) attribution(t.attributed, view.attributions[0], data.tokens);
}

function rowsOf(view) {
  const numbers = ["coefficient", "norm", "contribution", "share", "score", "deviation", "always_on"];
  return columns(view.layers[0].sub_updates, ["layer", "index", ...numbers, topTokens]);
}
