/** Groups of parts in a picture of a circuit: each can be drawn as one box, and has measured effects. */
import { logits, short } from "./flow-words.js";
import { button, fill, h } from "./nodes.js";
import { bySize, percent, sumOf } from "./numbers.js";
import { bareTable, numberCell } from "./table.js";
import { visible } from "./tokens.js";

const MINE = "chosen by hand";
const RULES = { hand: "your groups", role: "by what parts do", values: "by the direction they write", mine: "" };

export const isPart = ({ kind }) => kind === "head" || kind === "memory" || kind === "feature";

/**
 * The data with a further node for each group, after all others, whose indices stay. What flows between the parts of a
 * group is left out: what flows into its box comes from outside. A part of several groups is drawn in the first.
 */
export function withGroups(data, groups) {
  const home = new Map();
  groups.forEach((group, i) => {
    for (const number of group.nodes) if (!home.has(number)) home.set(number, data.nodes.length + i);
  });
  const sums = new Map();
  for (const [source, target, weight] of data.edges) {
    const [from, to] = [home.get(source) ?? source, home.get(target) ?? target];
    if (from === to) continue;
    const key = `${from} ${to}`;
    sums.set(key, [from, to, (sums.get(key)?.[2] ?? 0) + weight]);
  }
  const edges = [...sums.values()];
  const hidden = data.nodes.map((node, i) =>
    home.has(i) ? { ...node, kind: "grouped", relevance: null, removed: null } : node,
  );
  return {
    ...data,
    edges,
    nodes: [...hidden, ...groups.map((group, i) => box(data, group, data.nodes.length + i, edges))],
  };
}

/** The node of a group, at the place of its most relevant part. */
function box(data, group, number, edges) {
  const members = group.nodes.map((i) => data.nodes[i]);
  const [first] = bySize(members, (node) => node.relevance);
  const into = edges.filter(([, target]) => target === number);
  const own = { name: group.name, kind: "group", label: members.map(short).join(", "), group };
  const none = { index: null, reads: null, promotes: [], removed: null };
  return { ...first, ...own, ...none, relevance: sumOf(into, ([, , weight]) => weight) };
}

/** Draw a button for each group, which shows it as one box. `f`: the picture; `f.closed`: the groups shown as boxes. */
export function groupBar(f, redraw) {
  const all = allGroups(f);
  const toggle = (group) => () => {
    f.closed.has(key(group)) ? f.closed.delete(key(group)) : f.closed.add(key(group));
    redraw();
  };
  const one = (group) =>
    button(`${group.name} (${group.nodes.length})`, toggle(group), "flow-group", {
      "aria-pressed": String(f.closed.has(key(group))),
    });
  const rules = [...new Set(all.map(({ by }) => by))].map((by) => [
    h("span.flow-by", RULES[by]),
    all.filter((group) => group.by === by).map(one),
  ]);
  fill(f.bar, all.length ? [h("span", "Draw as one box"), rules] : []);
}

const key = ({ by, name }) => `${by} ${name}`;

function allGroups({ base, mine }) {
  const own = mine.size > 1 ? [{ name: MINE, by: "mine", nodes: [...mine], effects: [] }] : [];
  return [...(base.groups ?? []), ...own];
}

/** The data with the chosen groups as boxes. */
export function drawnData(f) {
  const closed = allGroups(f).filter((group) => f.closed.has(key(group)));
  return withGroups(f.base, closed);
}

/** What the card says of a group: its parts, and the prediction with the group changed. */
export function aboutGroup(data, { group, label, relevance }) {
  return [
    h("p", `${group.nodes.length} parts as one box: ${label}.`),
    h("p", h("b", logits(relevance)), " pass through the group, from other parts to other parts."),
    group.effects.length > 0 && effects(data, group.effects),
  ];
}

const CHANGES = {
  patch: ({ without }) => without,
  silence: () => "0 in place of each",
  scale: (_data, factor) => (factor === 0 ? "0 in place of each" : `each times ${factor}`),
};

/** A table of the prediction as it is, and as it was measured with the group changed in several ways. */
export function effects(data, rows) {
  const { target, against, metric, probabilities } = data;
  const row = (name, p, value) => [
    h("th", { scope: "row" }, name),
    numberCell(percent(p)),
    numberCell(h("b", logits(value))),
  ];
  const head = ["measured with", visible(target), against === null ? "logit" : "difference"];
  const changed = rows.map(({ change, factor, found }) =>
    row(CHANGES[change](data, factor), found.probabilities[0], found.metric),
  );
  return bareTable("table.flow-table", head, [row("no change", probabilities[0], metric), ...changed]);
}
