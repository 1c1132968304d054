/**
 * What a picture of a circuit draws of the whole graph: boxes for some nodes and ribbons between them. What else flows
 * into a box is drawn as one pointed end, so that all that flows into it adds up.
 */

import { isPart } from "./flow-groups.js";
import { sumOf } from "./numbers.js";

/** A ribbon below this share of the answer's largest is not drawn. */
const THIN = 0.03;
/** A bias, or the sum of a layer's other parts, has a box if it passes on at least this share of the answer's largest ribbon. */
const LARGE = 0.25;
/** The same share for a token of the prompt, by what it adds. */
const SEEN = 0.08;
export const ANSWER = -1;
/** All that flows into the answer from parts that are not drawn. */
export const OTHERS = -2;

const size = Math.abs;
const isWriter = (node) => isPart(node) || node.kind === "group";

/**
 * `data`: `unembed.flow/1`; `n`: the number of heads and memories with a box; `thin`: ribbons below this share of the
 * answer's largest are left out. Returns `{boxes, ribbons, most}`: a box is a node with `others_in` and `others_out`,
 * the sums of what is left out; a ribbon is `{source, target, weight}` between indices of boxes, or to `ANSWER`.
 */
export function fold(data, n, thin = THIN) {
  const direct = data.edges.filter(([, target]) => target === ANSWER);
  const most = Math.max(...direct.map(([, , weight]) => size(weight)), 1e-9);
  const chosen = boxed(data, n, most);
  const place = new Map([...chosen.map((node, i) => [node.number, i]), [ANSWER, ANSWER]]);
  const drawn = data.edges.filter(
    ([source, target, weight]) => place.has(source) && place.has(target) && size(weight) >= thin * most,
  );
  const ribbons = drawn.map(([source, target, weight]) => ({
    source: place.get(source),
    target: place.get(target),
    weight,
  }));
  const left = (i, end) => -sumOf(ribbons, (r) => (r[end] === i ? r.weight : 0));
  const boxes = chosen.map((node, i) => ({
    ...node,
    others_in: isWriter(node) ? node.relevance + left(i, "target") : 0,
    others_out: node.relevance + left(i, "source"),
  }));
  const others = data.explained + left(ANSWER, "target");
  if (size(others) >= THIN * most) {
    ribbons.push({ source: boxes.length, target: ANSWER, weight: others });
    boxes.push(rest(others));
  }
  return { boxes, ribbons, most: Math.max(most, size(others) / 2) };
}

/** The box for all that flows into the answer from parts that are not drawn. */
function rest(relevance) {
  const none = { layer: null, position: null, reads: null, promotes: [], removed: null, others_in: 0, others_out: 0 };
  const label = "all parts that are not drawn, directly";
  return { ...none, name: "others", kind: "others", number: OTHERS, label, relevance };
}

/** The nodes with a box: n groups, heads and memories, the largest ones, and other nodes that are too large to leave out. */
function boxed({ nodes, edges }, n, most) {
  const numbered = nodes.map((node, number) => ({ ...node, number }));
  const groups = numbered.filter(({ kind }) => kind === "group");
  const parts = numbered.filter(isPart).slice(0, Math.max(0, n - groups.length));
  const writers = new Set([...groups, ...parts].map(({ number }) => number));
  const flow = (number) => {
    const drawn = edges.filter(([source, target]) => source === number && writers.has(target));
    return Math.max(0, ...drawn.map(([, , weight]) => size(weight)));
  };
  const isLarge = ({ kind, number, relevance }) =>
    kind === "token" ? size(relevance) >= SEEN * most : kind !== "changes" && flow(number) >= LARGE * most;
  return numbered.filter((node) => writers.has(node.number) || (!isWriter(node) && isLarge(node)));
}
