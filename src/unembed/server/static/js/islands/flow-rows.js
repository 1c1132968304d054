/** Place the boxes and lanes of every row next to each other, near what they are connected to. */
import { ANSWER } from "./flow-fold.js";
import { clamp, sumOf } from "./numbers.js";

const SWEEPS = 8;
const SWAPS = 4;

/** Set `x` of the answer, of every box and of every lane. */
export function arranged(rows, columns, answer, boxes, ribbons, sizes) {
  const { left, right } = columns.at(-1);
  answer.x = clamp((left + right) / 2, columns[0].left + answer.width / 2, right - answer.width / 2);
  for (const box of boxes) box.x = columns[box.column].middle;
  for (const row of rows) for (const item of row.items) item.x = columns[item.column].middle;
  const links = linked(answer, boxes, ribbons);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const order = sweep % 2 ? rows : [...rows].reverse();
    for (const row of order)
      for (let c = 0; c < columns.length; c++) place(row, c, columns[c], links, sizes, sweep < SWEEPS - 2);
  }
  for (let again = 0; again < SWAPS; again++)
    for (const row of [...rows].reverse())
      for (let c = 0; c < columns.length; c++) untangled(row, c, columns[c], links, sizes);
}

/** Exchange neighbours where that makes the ribbons shorter. */
function untangled(row, c, column, links, sizes) {
  const items = row.items.filter((item) => item.column === c);
  if (items.length < 2) return;
  items.sort((a, b) => a.x - b.x);
  for (let i = 1; i < items.length; i++) {
    const before = items.map(({ x }) => x);
    const was = length(items, links);
    [items[i - 1], items[i]] = [items[i], items[i - 1]];
    pack(items, column, sizes);
    if (length(items, links) < was - 0.5) continue;
    [items[i - 1], items[i]] = [items[i], items[i - 1]];
    items.forEach((item, n) => {
      item.x = before[n];
    });
  }
}

/** How far the ribbons of some items run sideways; wide ribbons count more. */
const length = (items, links) =>
  sumOf(items, (item) => sumOf(links.get(item) ?? [], ([other, weight]) => (weight + 2) * Math.abs(item.x - other.x)));

/** What each item is connected to, above and below, as [item, width of the ribbon]. */
function linked(answer, boxes, ribbons) {
  const links = new Map();
  const add = (a, b, weight) => {
    if (!links.has(a)) links.set(a, []);
    links.get(a).push([b, weight]);
  };
  for (const { source, target, lanes, wide } of ribbons) {
    const chain = [boxes[source], ...lanes, target === ANSWER ? answer : boxes[target]];
    for (let i = 1; i < chain.length; i++) {
      add(chain[i], chain[i - 1], wide);
      add(chain[i - 1], chain[i], wide);
    }
  }
  return links;
}

function place(row, c, column, links, sizes, reorders) {
  const items = row.items.filter((item) => item.column === c);
  if (!items.length) return;
  for (const item of items) {
    const all = links.get(item) ?? [];
    const total = sumOf(all, ([, weight]) => weight);
    item.wish = total ? sumOf(all, ([other, weight]) => other.x * weight) / total : column.middle;
    item.weight = item.isLane ? 2 * item.width : 4 + total / 4;
  }
  items.sort(reorders ? (a, b) => a.wish - b.wish : (a, b) => a.x - b.x);
  pack(items, column, sizes);
}

/** Set `x` of items, whose order stays. */
function pack(items, column, sizes) {
  const space = (a, b) => (a.width + b.width) / 2 + (a.isLane && b.isLane ? sizes.lane : sizes.between - 1);
  const xs = pooled(
    items.map(({ wish }) => wish),
    items.map(({ weight }) => weight),
    items.map((item, i) => (i ? space(items[i - 1], item) : 0)),
    column.left + items[0].width / 2,
    column.right - items.at(-1).width / 2,
  );
  items.forEach((item, i) => {
    item.x = xs[i];
  });
}

/**
 * The places in a given order that are nearest to the wished ones (least squares), each at least a given space after the
 * one before it, and between two bounds if they fit; by the pool-adjacent-violators algorithm.
 */
export function pooled(wishes, weights, spaces, low, high) {
  let at = 0;
  const offsets = spaces.map((space) => (at += space));
  const blocks = [];
  wishes.forEach((wish, i) => {
    blocks.push({ sum: (wish - offsets[i]) * weights[i], weight: weights[i], n: 1 });
    while (blocks.length > 1 && mean(blocks.at(-2)) > mean(blocks.at(-1))) {
      const upper = blocks.pop();
      const lower = blocks.at(-1);
      lower.sum += upper.sum;
      lower.weight += upper.weight;
      lower.n += upper.n;
    }
  });
  const most = high - offsets.at(-1);
  const flat = blocks.flatMap((block) => Array(block.n).fill(clamp(mean(block), low, most)));
  return flat.map((x, i) => x + offsets[i]);
}

const mean = ({ sum, weight }) => sum / weight;
