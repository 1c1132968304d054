/** The texts of a picture of a circuit. */
import { fixed, percent } from "./numbers.js";
import { visible } from "./tokens.js";

/** Write a number of logits. */
export const logits = (x) => fixed(x, 2, true);

/** Write a sentence with typographic minus signs. */
export const minus = (text) => text.replace(/(?<!\w)-(?=\d)/g, "−");

export const short = (node) => node.name.split("@")[0];

/** The texts of a box: its name, its number, what it does. @returns {[string, string, string]} */
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

/** What a part does; of a head, the token from which its contribution comes, even if it attends more to another. */
const does = (node, data) => (node.kind === "head" ? `from ${at(data, node.reads)}` : moved(node));

/** How a node changes the next token: the tokens measured to rise or fall, else those that it promotes. */
export const moves = ({ removed, promotes }) => {
  const { raised = [], lowered = [] } = removed?.tokens ?? {};
  const found = [raised.length && `raises ${listed(raised)}`, lowered.length && `lowers ${listed(lowered)}`];
  return found.filter(Boolean).join(", ") || (promotes.length ? `promotes ${promotes.join(" ")}` : "");
};

/** The same, shorter, for a box: what the node lowers if it works against the answer, else what it raises. */
const moved = ({ removed, promotes, relevance }) => {
  const { raised = [], lowered = [] } = removed?.tokens ?? {};
  const [verb, tokens] = relevance < 0 && lowered.length ? ["lowers", lowered] : ["raises", raised];
  return tokens.length ? `${verb} ${listed(tokens.slice(0, 2))}` : `promotes ${promotes.slice(0, 2).join(" ")}`;
};

const listed = (tokens) => tokens.map(visible).join(" ");

/** Name a position: by its token, or by its distance from the end where there are several prompts. */
export const at = ({ tokens, n_prompts: many }, position) =>
  many > 1 ? (position === -1 ? "last" : `last−${-1 - position}`) : visible(tokens[position]);

/** The texts of the answer's box, the most important first. */
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

/** Cut a text to at most so many letters. */
export const clipped = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);

/** Break a text into lines of at most so many letters. */
export function wrapped(text, most) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1) && String(lines.at(-1)).length + word.length + 1 > most) lines.push("");
    lines[lines.length - 1] += (lines.at(-1) && " ") + word;
  }
  return lines;
}

/** The sentences that explain the picture. */
export const legend = ({ target, against, other_metric: other }) =>
  `Width: logits${other === null ? "" : " of the difference between the two prompts"}. Blue: for ${visible(target)}` +
  `${against === null ? "" : ` over ${visible(against)}`}; orange: against it. Pointed ends: all parts that are not drawn. ` +
  "What flows into a box adds up to its number, with attention patterns, gates and norms as in the run.";
