/** The card beside a picture of a circuit: what is known of the chosen box, drawn and measured. */
import { ANSWER, OTHERS } from "./flow-fold.js";
import { aboutGroup, isPart } from "./flow-groups.js";
import { at, boxLines, logits, moves, short } from "./flow-words.js";
import { h } from "./nodes.js";
import { percent } from "./numbers.js";
import { visible } from "./tokens.js";

const LISTED = 6;

/**
 * `number`: the node's place in the data, `ANSWER` or `OTHERS`; `drawn`: the nodes with a ribbon to the answer;
 * `onpick(number)`; `more(node)`: elements below.
 */
export function card(data, number, { drawn, onpick, named, more = /** @type {(node: any) => any} */ (() => null) }) {
  if (number === OTHERS)
    return [
      h("h3.flow-title", "All parts that are not drawn"),
      h("p", "What they write to the answer directly. The largest:"),
      listed(
        data,
        data.edges.filter(([source, target]) => target === ANSWER && !drawn.has(source)),
        0,
        "",
        onpick,
        12,
      ),
    ];
  const title = number === ANSWER ? answerTitle(data) : nodeTitle(data, data.nodes[number]);
  const about = number === ANSWER ? aboutAnswer(data) : aboutNode(data, data.nodes[number], named);
  if (data.nodes[number]?.kind === "grouped")
    return [h("h3.flow-title", short(data.nodes[number])), h("p", "It is in a group, which is drawn as one box.")];
  return [
    h("h3.flow-title", title),
    about,
    flows(data, number, 1, number === ANSWER ? "Adds up from" : "Comes from", onpick),
    number !== ANSWER && flows(data, number, 0, "Goes to", onpick),
    more(data.nodes[number] ?? null),
  ];
}

const answerTitle = ({ target, against }) => `${visible(target)}${against === null ? "" : ` over ${visible(against)}`}`;
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
  const parts = [];
  if (node.kind === "head")
    parts.push(`head ${node.index} of layer ${node.layer}; most of what it adds comes from ${at(data, node.reads)}`);
  else if (node.kind === "memory") parts.push(`memory (FFN neuron) ${node.index} of layer ${node.layer}`);
  else if (node.kind === "feature") parts.push(`feature ${node.index} of the dictionary at layer ${node.layer}`);
  else parts.push(node.label);
  parts.push(...[moves(node)].filter(Boolean));
  const name = named?.(node);
  const number = data.nodes.indexOf(node);
  const direct = data.edges.find(([s, t]) => s === number && t === ANSWER)?.[2] ?? 0;
  return [
    name && h("p.flow-name", name),
    h("p", `${parts.join("; ")}.`),
    node.relevance !== null &&
      h("p", "Drawn: ", h("b", logits(node.relevance)), ` along all paths, ${logits(direct)} directly.`),
    node.removed && removed(data, node),
  ];
}

/** The measured effect beside the drawn one. */
export function removed(data, { removed: found }, without = data.without) {
  const { target, against, metric, probabilities: p } = data;
  const row = (name, now, then) => h("tr", h("th", { scope: "row" }, name), h("td.n", now), h("td.n", h("b", then)));
  return [
    h("p", "Measured: ", h("b", logits(metric - found.metric)), `, with ${without} and all else free to react.`),
    h("table.flow-table", [
      h("thead", h("tr", h("th", h("span.flow-hidden", "answer")), h("th.n", "now"), h("th.n", "without"))),
      h("tbody", [
        row(visible(target), percent(p[0]), percent(found.probabilities[0])),
        against !== null && row(visible(against), percent(p[1]), percent(found.probabilities[1])),
        row(against === null ? "logit" : "difference", logits(metric), logits(found.metric)),
      ]),
    ]),
  ];
}

/** The largest edges into a node (`end` 1) or out of it (0). */
const flows = (data, number, end, title, onpick) =>
  listed(
    data,
    data.edges.filter((edge) => edge[end] === number),
    1 - end,
    title,
    onpick,
  );

/** Edges, the largest first, by their node at one end. */
function listed(data, edges, end, title, onpick, most = LISTED) {
  const all = [...edges].sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]));
  if (!all.length) return null;
  const item = (edge) => {
    const other = edge[end];
    const name = other === ANSWER ? "the answer" : nameOf(data, data.nodes[other]);
    return h(
      "li",
      h("button", { type: "button", onclick: () => onpick(other) }, h("span", name), h("b", logits(edge[2]))),
    );
  };
  const rest = all.slice(most).reduce((sum, edge) => sum + edge[2], 0);
  return h(
    "div.flow-list",
    title && h("h4", title),
    h("ul", all.slice(0, most).map(item)),
    all.length > most && h("p", `${all.length - most} others ${logits(rest)}`),
  );
}

/** What a node is called in a sentence. */
export function nameOf(data, node) {
  if (node.kind === "group") return `group ${node.name}`;
  if (isPart(node)) return `${short(node)} at ${at(data, node.position)}`;
  if (node.kind === "token") return `token ${at(data, node.position)}`;
  if (node.kind === "rest" && node.name.startsWith("rest")) return `all else of layer ${node.layer}`;
  return node.kind === "changes" ? "changes of patterns, gates, norms" : boxLines(node, data)[0];
}
