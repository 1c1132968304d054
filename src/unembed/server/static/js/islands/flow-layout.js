/**
 * The place of everything in a picture of a circuit: tokens at the bottom, the answer on top, a row for each layer with a
 * box. A ribbon runs upwards in the column of its source, past the boxes of the rows between, and crosses to another
 * column just below its target. Widths of texts are estimated from their letters, so that no page is needed.
 */
import { ANSWER, fold } from "./flow-fold.js";
import { arranged } from "./flow-rows.js";
import { overlap } from "./nodes.js";
import { bySize, sumOf } from "./numbers.js";

export const ROW = 42;
const GAP = 34;
const EDGE = 8;
/** A drawing narrower than this has fewer and narrower parts. */
export const NARROW = 620;

/** The sizes of the parts of a drawing, by its width. */
const sizesOf = (width) =>
  width < NARROW
    ? { margin: 24, box: 78, widest: 108, letter: 6.5, pad: 13, quiet: 9, between: 6, lane: 2, fits: NARROW_FITS }
    : { margin: 70, box: 98, widest: 172, letter: 6.9, pad: 18, quiet: 64, between: 10, lane: 3.5, fits: FITS };
/**
 * The settings that are tried, of which the one with the fewest rows is taken: the thinnest ribbon drawn, as a share of
 * the answer's largest, and the width of the largest in pixels.
 */
const FITS = [
  [0.03, 30],
  [0.05, 26],
  [0.06, 20],
  [0.08, 16],
];
const NARROW_FITS = [
  [0.08, 15],
  [0.12, 12],
  [0.16, 10],
  [0.2, 8],
  [0.3, 7],
  [0.5, 6],
];

/**
 * `data`: `unembed.flow/1`; `n`: how many heads and memories get a box; `width`: of the drawing in pixels; `lines(node)`:
 * the texts of a box. Returns `{width, height, scale, boxes, answer, ribbons, ends, tokens, rows}`, each with its place.
 */
export function layout(data, n, width, lines) {
  const sizes = sizesOf(width);
  const tried = sizes.fits.map(([thin, ribbon]) => fitted(data, n, width, lines, sizes, thin, ribbon));
  const best = tried.reduce((a, b) => (cost(b) < cost(a) ? b : a));
  const { scale, columns, boxes, answer, rows, ribbons } = best;
  spread(columns, width, sizes);
  arranged(rows, columns, answer, boxes, ribbons, sizes);
  const height = heights(rows, ribbons, boxes, answer);
  const whole = Math.max(width, columns.at(-1).right + EDGE);
  return { width: whole, height, scale, ...drawnParts({ ...best, sizes }) };
}

/** Fewer rows are better, and so is a picture that is no wider than its place. */
const cost = ({ rows, wide, width }) => rows.length + (wide > width ? 100 : 0);

function fitted(data, n, width, lines, sizes, thin, ribbon) {
  const folded = fold(data, n, thin);
  const scale = ribbon / folded.most;
  const columns = columnsOf(folded.boxes, data, sizes);
  const boxes = folded.boxes.map((node) => sized(node, folded, scale, sizes, lines(node), columns));
  const answer = sizedAnswer(folded, scale, sizes, width, lines(null));
  const room = width - sizes.margin - EDGE;
  const { rows, ribbons } = split(boxes, folded.ribbons, columns, room, scale, sizes);
  const wide = widthOfAll(columns, sizes);
  return { folded, scale, columns, boxes, answer, rows, ribbons, wide, width: room };
}

/** The position in whose column a node is drawn: its own, else the one that it reads. */
const placeOf = (node) => node.position ?? node.reads;

/** The columns: one for each position with boxes, one for each run of positions without. */
function columnsOf(boxes, { tokens, n_prompts: many }, sizes) {
  const last = many > 1 ? -1 : tokens.length - 1;
  const used = new Set([...boxes.map(placeOf).filter((p) => p !== null), last]);
  const first = many > 1 ? Math.min(...used) : 0;
  const found = [];
  for (let p = first; p <= last; p++) {
    const open = used.has(p);
    if (open || !found.length || found.at(-1).open) found.push({ open, from: p, to: p });
    else found.at(-1).to = p;
  }
  return found.map((column) => ({
    ...column,
    text: textsOf(column, tokens, many),
    least: column.open ? sizes.box : sizes.quiet,
  }));
}

const MOST_QUIET = 6;
function textsOf({ open, from, to }, tokens, many) {
  const at = (p) => (many > 1 ? (p === -1 ? "last" : `last−${-1 - p}`) : tokens[p]);
  const all = Array.from({ length: to - from + 1 }, (_, i) => at(from + i));
  if (open || all.length <= MOST_QUIET) return all;
  return [all[0], all[1], `… ${all.length - 4} tokens …`, all.at(-2), all.at(-1)];
}

const columnAt = (columns, p) =>
  p === null ? columns.length - 1 : columns.findIndex(({ open, from }) => open && from === p);

/** The width that the ribbons at one end of a box need side by side. */
const portsOf = (ribbons, end, i, scale) => sumOf(ribbons, (r) => (r[end] === i ? Math.abs(r.weight) * scale + 2 : 0));

function sized(node, { ribbons, boxes }, scale, sizes, text, columns) {
  const i = boxes.indexOf(node);
  const side = (end, others) => portsOf(ribbons, end, i, scale) + Math.abs(others) * scale + 2;
  const ports = Math.max(side("target", node.others_in), side("source", node.others_out));
  const letters = Math.max(text[0].length + text[1].length + 2, text[2].length * 0.92) * sizes.letter + sizes.pad;
  const width =
    node.kind === "token" ? 0 : Math.max(ports + sizes.pad - 4, Math.min(sizes.widest, Math.max(sizes.box, letters)));
  return { node, text, width, ports, column: Math.max(0, columnAt(columns, placeOf(node))) };
}

function sizedAnswer({ ribbons }, scale, sizes, width, text) {
  const ports = portsOf(ribbons, "target", ANSWER, scale);
  const letters = Math.max(...text.map((line) => line.length)) * sizes.letter + 26;
  const most = width - sizes.margin - EDGE;
  return { text, ports, width: Math.min(most, Math.max(ports + 24, Math.min(letters, most))) };
}

/** The order of rows from below: tokens, then for each layer its heads and its memories. */
const levelOf = ({ kind, layer }) =>
  kind === "others" ? TOP : kind === "token" || layer === null ? -1 : 2 * layer + (kind === "head" ? 0 : 1);
const TOP = 1e6;

/**
 * The rows from below, whose items are boxes, and lanes for the ribbons that pass. Boxes that do not fit into one row are
 * split into several.
 */
function split(boxes, ribbons, columns, room, scale, sizes) {
  for (let most = 8; ; most--) {
    const rows = rowsOf(boxes, most);
    const all = passing(boxes, ribbons, rows, scale);
    const wide = columns.map((column, c) => Math.max(column.least, ...rows.map((row) => widthOf(row, c, sizes))));
    columns.forEach((column, c) => {
      column.width = wide[c];
    });
    if (most === 1 || widthOfAll(columns, sizes) <= room) return { rows, ribbons: all };
  }
}

const widthOfAll = (columns, { between }) => sumOf(columns, (one) => one.width) + between * (columns.length - 1);

const widthOf = (row, c, { lane, between }) =>
  sumOf(row.items, (item) => (item.column === c ? item.width + (item.isLane ? lane : between) : 0));

function rowsOf(boxes, most) {
  const levels = [...new Set(boxes.map(({ node }) => levelOf(node)))].filter((level) => level >= 0);
  levels.sort((a, b) => a - b);
  return levels.flatMap((level) => {
    const here = boxes.filter(({ node }) => levelOf(node) === level);
    const taken = new Map();
    const chunks = [];
    for (const box of here) {
      const n = taken.get(box.column) ?? 0;
      taken.set(box.column, n + 1);
      (chunks[Math.floor(n / most)] ??= []).push(box);
    }
    return chunks.map((items) => ({ level, layer: Math.floor(level / 2), items: [...items] }));
  });
}

/** Each ribbon with the rows where it starts and ends, and a lane in every row between them. */
function passing(boxes, ribbons, rows, scale) {
  const rowAt = (box) => rows.findIndex((row) => row.items.includes(box));
  const at = boxes.map(rowAt);
  return ribbons.map((ribbon) => {
    const wide = Math.max(1.2, Math.abs(ribbon.weight) * scale);
    const to = ribbon.target === ANSWER ? rows.length : at[ribbon.target];
    const lanes = [];
    for (let row = at[ribbon.source] + 1; row < to; row++) {
      const lane = { isLane: true, width: wide, column: boxes[ribbon.source].column, row };
      rows[row].items.push(lane);
      lanes.push(lane);
    }
    return { ...ribbon, wide, lanes, from: at[ribbon.source], to };
  });
}

/** Widen the columns with boxes until all columns fill the width. */
function spread(columns, width, sizes) {
  const more = Math.max(0, width - sizes.margin - EDGE - widthOfAll(columns, sizes));
  const whole = sumOf(columns, (column) => (column.open ? column.width : 0));
  let x = sizes.margin;
  for (const column of columns) {
    const wide = column.width + (column.open ? (more * column.width) / whole : 0);
    Object.assign(column, { left: x, right: x + wide, middle: x + wide / 2 });
    x += wide + sizes.between;
  }
}

/** Set the height of every row from above; a gap is taller where wide ribbons cross in it. */
function heights(rows, ribbons, boxes, answer) {
  let y = 8;
  answer.y = y;
  answer.tall = 18 * answer.text.length + 12;
  y += answer.tall;
  for (let row = rows.length; row >= 0; row--) {
    let gap = GAP;
    for (const ribbon of ribbons) {
      if (ribbon.from >= row || ribbon.to < row) continue;
      const lane = (at) => ribbon.lanes.find((one) => one.row === at);
      const target = ribbon.target === ANSWER ? answer : boxes[ribbon.target];
      const upper = ribbon.to === row ? target : lane(row);
      const lower = ribbon.from === row - 1 ? boxes[ribbon.source] : lane(row - 1);
      if (!upper || !lower) continue;
      const shift = Math.abs(upper.x - lower.x);
      gap = Math.max(gap, Math.min(84, ribbon.wide * 1.1 + shift * 0.08 + 20));
    }
    y += gap;
    if (row > 0) {
      rows[row - 1].y = y;
      y += ROW;
    }
  }
  rows.floor = y;
  return y;
}

/** The paths of ribbons between the edges of boxes, ends for what is not drawn, and labels of rows. */
function drawnParts({ folded, boxes, answer, ribbons, rows, columns, scale, sizes }) {
  for (const box of boxes) {
    const row = rows.find((one) => one.items.includes(box));
    Object.assign(box, row ? { y: row.y, tall: ROW } : { y: rows.floor, tall: 0, x: columns[box.column].middle });
  }
  const xBelow = (ribbon) => ribbon.lanes.at(-1)?.x ?? boxes[ribbon.source].x;
  const xAbove = (ribbon) => ribbon.lanes[0]?.x ?? (ribbon.target === ANSWER ? answer.x : boxes[ribbon.target].x);
  const ends = [];
  const port = (box, list, key, xs, other, up) => {
    const wide = Math.abs(other) * scale;
    const isDrawn = wide >= 1.2;
    const total = sumOf(list, (r) => r.wide + 2) + (isDrawn ? wide : -2);
    let at = box.x - total / 2;
    for (const ribbon of list.sort((a, b) => xs(a) - xs(b))) {
      ribbon[key] = { x: at + ribbon.wide / 2, y: up ? box.y : box.y + box.tall };
      at += ribbon.wide + 2;
    }
    if (isDrawn) ends.push({ x: at + wide / 2, y: up ? box.y : box.y + box.tall, wide, weight: other, up, box });
  };
  const into = (i) => ribbons.filter((r) => r.target === i);
  const outOf = (i) => ribbons.filter((r) => r.source === i);
  boxes.forEach((box, i) => {
    port(box, into(i), "end", xBelow, box.node.others_in, false);
    port(box, outOf(i), "start", xAbove, box.node.others_out, true);
  });
  port(answer, into(ANSWER), "end", xBelow, 0, false);
  const paths = ribbons.map((ribbon) => traced(ribbon, rows));
  const solid = [...boxes.filter((b) => b.tall), answer].map(rectOf);
  return {
    boxes,
    answer,
    ribbons: numbered(paths, solid, folded.most, sizes),
    ends,
    tokens: columns,
    rows: labelled(rows),
    floor: rows.floor,
  };
}

const rectOf = ({ x, y, width, tall }) => ({ left: x - width / 2, right: x + width / 2, top: y, bottom: y + tall });

/** The path of a ribbon, straight where it passes a row, and the spots where its number could be written. */
function traced(ribbon, rows) {
  const stops = [ribbon.start];
  for (const { x, row } of ribbon.lanes) stops.push({ x, y: rows[row].y + ROW }, { x, y: rows[row].y });
  stops.push(ribbon.end);
  let path = `M${px(stops[0].x)} ${px(stops[0].y)}`;
  const spots = [];
  for (let i = 1; i < stops.length; i++) {
    const [a, b] = [stops[i - 1], stops[i]];
    const middle = (a.y + b.y) / 2;
    path += a.x === b.x ? `V${px(b.y)}` : `C${px(a.x)} ${px(middle)} ${px(b.x)} ${px(middle)} ${px(b.x)} ${px(b.y)}`;
    for (const t of [0.5, 0.35, 0.65, 0.22, 0.78]) spots.push(between(a, b, t));
  }
  return { ...ribbon, path, spots };
}

const px = (x) => x.toFixed(1);

/** A point of the curve between two stops. */
function between(a, b, t) {
  const s = 1 - t;
  const x = a.x * (s ** 3 + 3 * s * s * t) + b.x * (t ** 3 + 3 * s * t * t);
  const middle = (a.y + b.y) / 2;
  return { x, y: a.y * s ** 3 + 3 * s * t * middle + b.y * t ** 3 };
}

const NUMBERED = 0.06;
/** Write the number on each large ribbon, where it covers neither a box nor another number. */
function numbered(ribbons, solid, most, sizes) {
  const taken = [...solid];
  for (const ribbon of bySize(ribbons, (r) => r.wide)) {
    if (Math.abs(ribbon.weight) < NUMBERED * most) continue;
    const wide = 5 * sizes.letter + 4;
    for (const { x, y } of ribbon.spots) {
      const rect = { left: x - wide / 2, right: x + wide / 2, top: y - 9, bottom: y + 9 };
      if (taken.some((other) => overlap(rect, other))) continue;
      taken.push(rect);
      ribbon.number = { x, y, wide };
      break;
    }
  }
  return ribbons;
}

/** The label of every row, and which layers are left out below it. */
function labelled(rows) {
  return rows.map(({ y, layer }, i) => {
    if (layer >= TOP / 2) return { y };
    const below = i ? rows[i - 1].layer : -1;
    const again = i < rows.length - 1 && rows[i + 1].layer === layer;
    return {
      y,
      layer,
      isFirst: !again,
      quiet: layer - below > 1 ? [below + 1, layer - 1] : null,
      floor: i ? rows[i - 1].y : null,
    };
  });
}
