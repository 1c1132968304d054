/** The texts of a picture of a circuit. */
import { fixed, percent } from "./numbers.js";
import { visible } from "./tokens.js";

/** A number of logits, as everywhere in the picture. */
export const logits = (x) => fixed(x, 2, true);

/** A sentence with the minus sign of the picture. */
export const minus = (text) => text.replace(/(?<!\w)-(?=\d)/g, "−");

export const short = (node) => node.name.split("@")[0];

/** What a box says: its name, its number, what it does. @returns {[string, string, string]} */
export function boxLines(node, data, /** @type {(node: any) => string} */ named = () => "") {
  const { kind, layer, relevance } = node;
  if (kind === "others") return ["others", logits(relevance), "parts that are not drawn"];
  if (kind === "group") return [`${node.group.nodes.length} parts`, logits(relevance), node.name];
  if (kind === "token") return ["", logits(relevance), ""];
  if (kind === "rest" || kind === "bias") {
    const name = layer === null ? short(node) : kind === "bias" ? `biases L${layer}` : `layer ${layer}`;
    return [name, logits(relevance), kind === "rest" ? "all other parts" : "constants"];
  }
  return [short(node), logits(relevance), named(node) || does(node, data)];
}

/** Not what a head attends to: that may be equal after both prompts, and add nothing to the difference. */
const does = (node, data) => (node.kind === "head" ? `from ${at(data, node.reads)}` : moved(node));

/** What a node does to the next token: measured where it was, else by reading. */
export const moves = ({ removed, promotes }) => {
  const { raised = [], lowered = [] } = removed?.tokens ?? {};
  const found = [raised.length && `raises ${listed(raised)}`, lowered.length && `lowers ${listed(lowered)}`];
  return found.filter(Boolean).join(", ") || (promotes.length ? `promotes ${promotes.join(" ")}` : "");
};

/** The same in a box: what the node lowers where it works against the answer. */
const moved = ({ removed, promotes, relevance }) => {
  const { raised = [], lowered = [] } = removed?.tokens ?? {};
  const [verb, tokens] = relevance < 0 && lowered.length ? ["lowers", lowered] : ["raises", raised];
  return tokens.length ? `${verb} ${listed(tokens.slice(0, 2))}` : `promotes ${promotes.slice(0, 2).join(" ")}`;
};

const listed = (tokens) => tokens.map(visible).join(" ");

/** A position in words: its token in one prompt, else how far from the end. */
export const at = ({ tokens, n_prompts: many }, position) =>
  many > 1 ? (position === -1 ? "last" : `last−${-1 - position}`) : visible(tokens[position]);

/** The answer's lines, the most important first. */
export function answerLines(data, isNarrow) {
  const { target, against, probabilities: p, metric, other_metric: other, counterfactual, n_prompts: many } = data;
  const shown = (text, i) => (p.length ? `${visible(text)} ${percent(p[i])}` : visible(text));
  const first = against === null ? shown(target, 0) : `${shown(target, 0)} over ${shown(against, 1)}`;
  const gap = `${logits(metric)} logits${many > 1 ? ` in ${many} prompts` : ""}`;
  const rest =
    other === null
      ? []
      : [`${logits(other)} after ${counterfactual === null ? "the counterfactuals" : `“${counterfactual}”`}`];
  return isNarrow ? [first, gap, ...rest.map((text) => clipped(text, 44))] : [first, [gap, ...rest].join("; ")];
}

/** A text of at most so many letters. */
export const clipped = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);

/** A text in lines of at most so many letters. */
export function wrapped(text, most) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1) && String(lines.at(-1)).length + word.length + 1 > most) lines.push("");
    lines[lines.length - 1] += (lines.at(-1) && " ") + word;
  }
  return lines;
}

/** How to read the picture. */
export const legend = ({ target, against, other_metric: other }) =>
  `Width: logits${other === null ? "" : " of the difference between the two prompts"}. Blue: for ${visible(target)}` +
  `${against === null ? "" : ` over ${visible(against)}`}; orange: against it. Pointed ends: all parts that are not drawn. ` +
  "What flows into a box adds up to its number, with attention patterns, gates and norms as in the run.";
