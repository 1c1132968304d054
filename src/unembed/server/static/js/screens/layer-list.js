/** The list of a layer's sub-updates and heads: which ones, in which order, and how much the others amount to. */
import { button, fill, h, many, percent, sumOf } from "../dom.js";
import { isLabelled } from "../names.js";
import { asTable, written } from "../parts.js";
import { state, turn } from "../state.js";
import { span } from "../timing.js";
import { kindOf, ORDERS, PLAIN_HEAD, plainRows, ranked, updatesTable } from "../updates.js";

/** @type {[string, string, (u: any) => boolean][]} */
export const SIDES = [
  ["all", "All", () => true],
  ["for", "Promotes the target", (u) => u.score > 0],
  ["against", "Suppresses the target", (u) => u.score <= 0],
  ["named", "Labelled", (u) => isLabelled(u, kindOf(u))],
  ["unnamed", "Not labelled", (u) => !isLabelled(u, kindOf(u))],
];

/** The most sub-updates that the server lists at once. */
export const MOST = 500;
/** "Show until 90 %" lists as many memories as have this share of the update's size. */
const COVERED = 0.9;

/** What is listed: memories, heads or both. */
export const partOf = ({ model }) => (model.can.memories ? state().part : "heads");

/** The fewest rows, the largest first, that together reach a share of the update's size. */
function until(all, size) {
  let share = 0;
  return ranked(all, "size").filter((u) => share < size && ((share += u.share), true));
}

export function drawList(t) {
  const { view, model, list, listNote, table, layer } = t;
  if (!view) return;
  const { sort, side, coverage } = state();
  const part = partOf(t);
  const [one] = view.layers;
  const memories = coverage ? until(one.sub_updates, COVERED) : one.sub_updates;
  const done = span("sort");
  const all = ranked([...(part === "heads" ? [] : memories), ...(part === "ffn" ? [] : one.heads)], sort);
  const [, , isShown] = SIDES.find(([name]) => name === side) ?? SIDES[0];
  const shown = all.filter(isShown);
  const rest = model.memories[layer()] - memories.length;
  const share = sumOf(memories, (u) => u.share);
  const others = () => {
    const ffn = view.attributions[0]?.rows.find((row) => row.layer === layer() && row.label.startsWith("ffn"));
    const left = percent(Math.max(0, 1 - share));
    const text = `${many(rest, "other memory", "other memories")} with ${left} of the share, and the bias`;
    return [text, ffn && sort !== "deviation" ? ffn.contribution - sumOf(memories, (u) => u.score) : null];
  };
  const after = part !== "heads" && memories.length && rest > 0 ? [others()] : [];
  const none = !memories.length && part !== "heads" && written(h("p.note"), "unlisted");
  fill(list, none, updatesTable(shown, view, { order: sort, after }));
  done();
  fill(listNote, `Ranked by ${ORDERS[sort][1]}. `, part !== "heads" && coveredNote(t, memories, share, rest));
  fill(table, [asTable(PLAIN_HEAD, () => plainRows(shown))]);
}

/** Say how much of the update is listed, with buttons for more of it. */
function coveredNote({ wanted, more }, memories, share, rest) {
  if (!memories.length) return null;
  const { coverage } = state();
  const isLonger = rest > 0 && !coverage && wanted < MOST && memories.length >= wanted;
  const other = coverage ? `Show the first ${wanted}` : "Show until 90 %";
  const listed = many(memories.length, "memory listed has", "memories listed have");
  return [
    `The ${listed} ${percent(share)} of the share. `,
    isLonger && button("Show more", more, "quiet"),
    button(other, () => turn({ coverage: coverage ? "" : "90" }), "quiet"),
  ];
}
