/** The card next to a picture of a circuit: what is drawn of the chosen box, and what was measured of it. */
import { ANSWER, OTHERS } from "./flow-fold.js";
import { aboutGroup, isPart } from "./flow-groups.js";
import { at, boxLines, logits, moves, short } from "./flow-words.js";
import { button, h } from "./nodes.js";
import { bySize, percent, sumOf } from "./numbers.js";
import { bareTable, numberCell } from "./table.js";
import { visible } from "./tokens.js";

const LISTED = 6;

/**
 * The contents of the card. `number`: the index of the chosen node, `ANSWER` or `OTHERS`; `drawn`: the nodes with a
 * ribbon to the answer; `onpick(number)` chooses another; `named(node)`: its label; `more(node)`: what stands below.
 */
export function card(data, number, { drawn, onpick, named, more = /** @type {(node: any) => any} */ (() => null) }) {
  const title = (text) => h("h3.flow-title", text);
  const edges = (of) => data.edges.filter(of);
  const into = edges(([, target]) => target === number);
  if (number === OTHERS) {
    const direct = edges(([source, target]) => target === ANSWER && !drawn.has(source));
    const text = h("p", "What they write to the answer directly. The largest:");
    return [title("All parts that are not drawn"), text, listed(data, direct, 0, "", onpick, 12)];
  }
  if (number === ANSWER)
    return [title(asText(data)), aboutAnswer(data), listed(data, into, 0, "Adds up from", onpick), more(null)];
  const node = data.nodes[number];
  if (node.kind === "grouped") return [title(short(node)), h("p", "It is in a group, which is drawn as one box.")];
  const out = edges(([source]) => source === number);
  return [
    title(nodeTitle(data, node)),
    aboutNode(data, node, named),
    listed(data, into, 0, "Comes from", onpick),
    listed(data, out, 1, "Goes to", onpick),
    more(node),
  ];
}

/** The explained token, and the one that it is compared with. */
export const asText = ({ target, against }) =>
  `${visible(target)}${against === null ? "" : ` over ${visible(against)}`}`;

/** What a node adds to the answer directly. */
export const directOf = ({ edges }, number) => edges.find(([s, t]) => s === number && t === ANSWER)?.[2] ?? 0;

const nodeTitle = (data, node) =>
  node.kind === "group"
    ? node.name
    : isPart(node)
      ? `${short(node)} at ${at(data, node.position)}`
      : boxLines(node, data)[0] || at(data, node.position);

function aboutAnswer({ metric, other_metric: other, explained, counterfactual }) {
  const than = counterfactual === null ? "the counterfactuals" : `“${counterfactual}”`;
  const first =
    other === null
      ? `${logits(metric)} logits.`
      : `${logits(metric)} logits, and ${logits(other)} after ${than}: the picture adds up to the difference, ${logits(explained)}.`;
  return h("p", first);
}

function aboutNode(data, node, named) {
  if (node.kind === "group") return aboutGroup(data, node);
  const { kind, index, layer } = node;
  const what = {
    head: () => `head ${index} of layer ${layer}; most of what it adds comes from ${at(data, node.reads)}`,
    memory: () => `memory (FFN neuron) ${index} of layer ${layer}`,
    feature: () => `feature ${index} of the dictionary at layer ${layer}`,
  };
  const about = [what[kind]?.() ?? node.label, moves(node)].filter(Boolean);
  const name = named?.(node);
  const direct = directOf(data, data.nodes.indexOf(node));
  return [
    name && h("p.flow-name", name),
    h("p", `${about.join("; ")}.`),
    node.relevance !== null &&
      h("p", "Drawn: ", h("b", logits(node.relevance)), ` along all paths, ${logits(direct)} directly.`),
    node.removed && removed(data, node),
  ];
}

/** The prediction as it is and as it was measured with a part changed; `without` says how. */
export function removed(data, { removed: found }, without = data.without) {
  const { target, against, metric, probabilities: p } = data;
  const row = (name, now, then) => [h("th", { scope: "row" }, name), numberCell(now), numberCell(h("b", then))];
  const rows = [row(visible(target), percent(p[0]), percent(found.probabilities[0]))];
  if (against !== null) rows.push(row(visible(against), percent(p[1]), percent(found.probabilities[1])));
  rows.push(row(against === null ? "logit" : "difference", logits(metric), logits(found.metric)));
  return [
    h("p", "Measured: ", h("b", logits(metric - found.metric)), `, with ${without} and all else free to react.`),
    bareTable("table.flow-table", [h("span.flow-hidden", "answer"), "now", "without"], rows),
  ];
}

/** Some edges, the largest first, each named by the node at one of its ends: 0, its source; 1, its target. */
function listed(data, edges, end, title, onpick, most = LISTED) {
  const weight = (edge) => edge[2];
  const all = bySize(edges, weight);
  if (!all.length) return null;
  const item = (edge) => {
    const other = edge[end];
    const name = other === ANSWER ? "the answer" : nameOf(data, data.nodes[other]);
    return h("li", [button([h("span", name), h("b", logits(weight(edge)))], () => onpick(other))]);
  };
  return h("div.flow-list", [
    title && h("h4", title),
    h("ul", all.slice(0, most).map(item)),
    all.length > most && h("p", `${all.length - most} others ${logits(sumOf(all.slice(most), weight))}`),
  ]);
}

/** Name a node within a sentence. */
export function nameOf(data, node) {
  if (node.kind === "group") return `group ${node.name}`;
  if (isPart(node)) return `${short(node)} at ${at(data, node.position)}`;
  if (node.kind === "token") return `token ${at(data, node.position)}`;
  if (node.kind === "rest" && node.name.startsWith("rest")) return `all else of layer ${node.layer}`;
  return node.kind === "changes" ? "changes of patterns, gates, norms" : boxLines(node, data)[0];
}
