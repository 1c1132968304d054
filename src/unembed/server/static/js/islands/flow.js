/**
 * A circuit as a picture that adds up: the answer on top, the prompt's tokens below, heads and memories between them, and
 * ribbons as wide as the logits that they carry. Groups of parts can be drawn as one box each; the user can add
 * parts to a group with a button on the cards of its parts.
 *
 * mount(el, data, {boxes, chosen, onpick(node or null), more(node or null), named(node)}) -> {draw, destroy}
 *   `data`: `unembed.flow/1`; `boxes`: how many heads and memories get a box; `chosen`: the name of the chosen node;
 *   `more(node)`: elements at the end of its card; `named(node)`: its label.
 */
import { card, directOf, nameOf } from "./flow-card.js";
import { ANSWER, OTHERS } from "./flow-fold.js";
import { drawnData, groupBar, isPart } from "./flow-groups.js";
import { layout, NARROW } from "./flow-layout.js";
import { answerLines, at, boxLines, clipped, legend, logits, minus, moves, short, wrapped } from "./flow-words.js";
import { button, consume, fill, h, s, svgText } from "./nodes.js";
import { bareTable, numberCell } from "./table.js";
import { visible } from "./tokens.js";

export const BOXES = 10;
const BOXES_NARROW = 6;

export function mount(el, data, options = {}) {
  const picture = h("div.flow-picture");
  const side = h("div.flow-card", { role: "region", "aria-label": "The chosen part", "aria-live": "polite" });
  const table = h("details.flow-all", h("summary", "As a table"), h("div.flow-scroll"));
  const bar = h("div.flow-groups", { role: "group", "aria-label": "Groups of parts" });
  const number = data.nodes.findIndex(({ name }) => name === options.chosen);
  const shown = { data, base: data, boxes: options.boxes, number: number < 0 ? ANSWER : number, width: 0 };
  const f = { el, bar, picture, side, table, options, ...shown, closed: new Set(), mine: new Set() };
  fill(el, h("div.flow", bar, h("div.flow-both", picture, side), table));
  table.addEventListener("toggle", () => table.open && fillTable(f));
  const redraw = () => picture.clientWidth && picture.clientWidth !== f.width && draw(f);
  const watched = new ResizeObserver(redraw);
  watched.observe(picture);
  groupBar(f, () => regroup(f));
  draw(f);
  return {
    /** Draw again, with other data or another number of boxes. */
    draw(change = {}) {
      Object.assign(f, change);
      if (f.number >= f.data.nodes.length || f.number === OTHERS) f.number = ANSWER;
      draw(f);
    },
    destroy() {
      watched.disconnect();
      fill(el);
    },
  };
}

function regroup(f) {
  f.data = drawnData(f);
  if (f.number >= f.data.nodes.length || f.data.nodes[f.number]?.kind === "grouped") f.number = ANSWER;
  groupBar(f, () => regroup(f));
  draw(f);
}

function draw(f) {
  f.width = f.picture.clientWidth || 900;
  const isNarrow = f.width < NARROW;
  const lines = (node) => (node ? boxLines(node, f.data, f.options.named) : answerLines(f.data, isNarrow));
  const n = f.boxes ?? (isNarrow ? BOXES_NARROW : BOXES);
  const place = layout(f.data, n, f.width, lines);
  const direct = place.ribbons.filter((r) => r.target === ANSWER);
  f.drawn = new Set(direct.map((r) => place.boxes[r.source].node.number));
  const letter = 6.5;
  const captions = [...f.data.test.map(minus), legend(f.data)].flatMap((text) => [
    ...wrapped(text, Math.floor((place.width - 16) / letter)),
    "",
  ]);
  const floor = place.floor + tokensTall(place.tokens);
  const height = floor + 22 + captions.length * 15;
  const props = {
    viewBox: `0 0 ${place.width} ${height}`,
    width: place.width,
    height,
    role: "group",
    "aria-label": `${f.data.title}. ${place.boxes.length} parts; arrow keys move between them, and the table below has all numbers.`,
    onkeydown: (event) => moved(f, event),
  };
  const focused = !!f.picture.querySelector(":focus");
  f.svg = s(`svg.flow-svg${isNarrow ? ".narrow" : ""}`, props, [
    rowLabels(place),
    streams(place),
    place.ribbons.map((ribbon) => ribbonOf(f, place, ribbon)),
    place.ends.map(endOf),
    tokens(place),
    place.boxes.filter((box) => box.tall).map((box) => boxOf(f, place, box)),
    place.boxes.filter((box) => !box.tall).map((box) => tokenNode(f, box)),
    answerOf(f, place.answer),
    place.ribbons.map(numberOf),
    captions.map((line, i) => line && svgText(isNarrow ? 1 : 8, floor + 22 + i * 15, line, "start", "flow-caption")),
  ]);
  fill(f.picture, f.svg);
  mark(f);
  if (focused) current(f)?.focus();
  if (f.table.open) fillTable(f);
}

const current = (f) => f.svg.querySelector(`[data-number="${f.number}"]`);

/** Mark the chosen box and its ribbons, and show its card. */
function mark(f) {
  const on = f.number !== ANSWER;
  f.svg.classList.toggle("chosen", on);
  for (const el of f.svg.querySelectorAll("[data-ends]")) {
    const ends = el.dataset.ends.split(" ").map(Number);
    el.classList.toggle("on", ends.includes(f.number));
  }
  let taken = false;
  for (const el of f.svg.querySelectorAll("[data-number]")) {
    const here = Number(el.dataset.number) === f.number;
    el.classList.toggle("on", here);
    el.setAttribute("aria-pressed", String(here));
    el.setAttribute("tabindex", here ? "0" : "-1");
    taken ||= here;
  }
  if (!taken) f.svg.querySelector("[data-number]")?.setAttribute("tabindex", "0");
  const { named, more } = f.options;
  const below = (node) => [more?.(node), node && isPart(node) && byHand(f)];
  fill(f.side, card(f.data, f.number, { drawn: f.drawn, onpick: (number) => pick(f, number), named, more: below }));
}

/** A button that adds the chosen part to the user's group, or takes it out. */
function byHand(f) {
  const isIn = f.mine.has(f.number);
  const change = () => {
    isIn ? f.mine.delete(f.number) : f.mine.add(f.number);
    regroup(f);
  };
  const count = f.mine.size;
  return h("p.flow-hand", [
    button(isIn ? "Take out of the group by hand" : "Add to a group by hand", change, "flow-group"),
    count > 0 && h("span", ` ${count} ${count > 1 ? "parts are" : "part is"} in it`),
  ]);
}

function pick(f, number) {
  f.number = number;
  mark(f);
  f.options.onpick?.(f.data.nodes[number] ?? null);
}

/** The attributes that make a part of the picture a button. */
const pressed = (f, number, label) => ({
  role: "button",
  tabindex: -1,
  "aria-label": label,
  data: { number },
  onclick: () => pick(f, f.number === number ? ANSWER : number),
});

/** Arrow keys move to the nearest box in a direction; Enter and Space choose it. */
function moved(f, event) {
  const all = [...f.svg.querySelectorAll("[data-number]")];
  /** @type {any} */ const here = f.svg.getRootNode().activeElement;
  if (!all.includes(here)) return;
  if (event.key === "Enter" || event.key === " ") return (consume(event), pick(f, Number(here.dataset.number)));
  const by = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
  if (!by) return;
  consume(event);
  const middle = (el) => {
    const { left, top, width, height } = el.getBoundingClientRect();
    return [left + width / 2, top + height / 2];
  };
  const [x, y] = middle(here);
  /** @type {any} */ let best = null;
  let least = Number.POSITIVE_INFINITY;
  for (const el of all) {
    const [dx, dy] = [middle(el)[0] - x, middle(el)[1] - y];
    const ahead = dx * by[0] + dy * by[1];
    const aside = Math.abs(dx * by[1] + dy * by[0]);
    if (ahead < 8 || (by[1] === 0 && aside > 8)) continue;
    const away = ahead * (by[1] ? 3 : 1) + aside;
    if (away < least) [best, least] = [el, away];
  }
  if (!best) return;
  for (const el of all) el.setAttribute("tabindex", el === best ? "0" : "-1");
  best.focus();
}

const sign = (x) => (x < 0 ? "minus" : "plus");

function ribbonOf(f, place, ribbon) {
  const from = place.boxes[ribbon.source].node;
  const to = ribbon.target === ANSWER ? null : place.boxes[ribbon.target].node;
  const name = `${label(f, from)} to ${to ? label(f, to) : "the answer"}: ${logits(ribbon.weight)}`;
  const props = {
    d: ribbon.path,
    class: `flow-ribbon ${sign(ribbon.weight)}`,
    "stroke-width": ribbon.wide.toFixed(2),
    data: { ends: `${from.number} ${to ? to.number : ANSWER}` },
  };
  return s("path", props, s("title", name));
}

const label = (f, node) => (node.kind === "others" ? "all parts that are not drawn" : nameOf(f.data, node));

const END = 20;
/** Draw the pointed end that stands for all parts that are not drawn. */
function endOf({ x, y, wide, weight, up, box }) {
  const tip = up ? y - END : y + END;
  const props = {
    d: `M${x - wide / 2} ${y}L${x + wide / 2} ${y}L${x} ${tip}Z`,
    class: `flow-end ${sign(weight)}`,
    data: { ends: String(box.node ? box.node.number : ANSWER) },
  };
  return s("path", props, s("title", `${up ? "to" : "from"} parts that are not drawn: ${logits(weight)}`));
}

function boxOf(f, place, { node, x, y, width, tall, text }) {
  const [name, value, does] = text;
  const narrow = place.width < NARROW;
  const inset = narrow ? 5 : 8;
  const most = Math.floor((width - 2 * inset + 2) / (narrow ? 5.8 : 6.2));
  const aria = `${label(f, node)}, ${does}: adds ${value}`;
  const [left, right] = [x - width / 2, x + width / 2];
  return s("g.flow-box", pressed(f, node.number, aria), [
    s("title", [aria, moves(node)].filter(Boolean).join("; ")),
    s("rect", { x: left, y, width, height: tall, rx: 8 }),
    svgText(left + inset, y + 17, name, "start", "flow-id"),
    svgText(right - inset, y + 17, value, "end", `flow-value ${sign(node.relevance)}`),
    svgText(left + inset, y + 33, clipped(does, most), "start", "flow-does"),
  ]);
}

function answerOf(f, { x, y, width, tall, text }) {
  return s("g.flow-box.flow-answer", pressed(f, ANSWER, `The answer: ${text.join("; ")}`), [
    s("rect", { x: x - width / 2, y, width, height: tall, rx: 8 }),
    text.map((line, i) => svgText(x, y + 20 + i * 18, line, "middle", i ? "flow-does" : "flow-id")),
  ]);
}

function tokenNode(f, { node, x, y }) {
  const name = visible(f.data.tokens[node.position] ?? "");
  const wide = Math.max(30, name.length * 8 + 14);
  return s("g.flow-box.flow-source", pressed(f, node.number, `token ${name}: adds ${logits(node.relevance)}`), [
    s("rect", { x: x - wide / 2, y: y + 2, width: wide, height: 24, rx: 6 }),
    svgText(x, y + 19, name, "middle", "flow-token"),
  ]);
}

/** Write the token of every position; the tokens of a column without boxes are in several lines. */
function tokens({ tokens: columns, boxes, floor }) {
  const drawn = new Set(boxes.filter((box) => !box.tall).map((box) => box.node.position));
  return columns.map(({ open, from, text, middle, right, left }) => {
    const line = (token, i, cls) => svgText(middle, floor + 19 + i * 15, token, "middle", cls);
    if (open) return !drawn.has(from) && line(shownToken(text[0]), 0, "flow-token");
    const most = Math.floor((right - left) / 6.4);
    const lines = most < 4 ? ["…"] : text.map((token) => clipped(shownToken(token), most));
    return lines.map((token, i) => line(token, i, "flow-token quiet"));
  });
}

const shownToken = (text) => (/^(… \d+ tokens …|last.*)$/.test(text) ? text : visible(text));
const tokensTall = (columns) => 12 + 15 * Math.max(...columns.map(({ open, text }) => (open ? 1 : text.length)));

/** Draw the residual stream of each position with boxes as a line. */
const streams = ({ tokens: columns, boxes, floor }) =>
  columns.map(({ open, middle }, c) => {
    const tops = boxes.filter((box) => box.column === c && box.tall).map(({ y }) => y);
    return open && s("line.flow-stream", { x1: middle, x2: middle, y1: floor, y2: Math.min(floor - 12, ...tops) });
  });

function rowLabels({ rows, width }) {
  const narrow = width < NARROW;
  const text = (y, content, cls) => svgText(narrow ? 1 : 8, y, content, "start", cls);
  return rows.map(({ y, layer, isFirst, quiet, floor }) => [
    isFirst && text(y + 25, narrow ? `L${layer}` : `Layer ${layer}`, "flow-row"),
    quiet && text(floor ? (y + floor + 42) / 2 + 8 : y + 64, quietText(quiet, narrow), "flow-quiet"),
  ]);
}

const quietText = ([from, to], narrow) => `${from === to ? from : `${from}–${to}`}${narrow ? "" : " folded"}`;

function numberOf({ number, weight }) {
  if (!number) return null;
  const { x, y, wide } = number;
  return [
    s("rect.flow-back", { x: x - wide / 2, y: y - 8, width: wide, height: 16, rx: 4 }),
    svgText(x, y + 4, logits(weight), "middle", `flow-number ${sign(weight)}`),
  ];
}

/** All nodes in a table, for those who do not see the picture. */
function fillTable({ data, table }) {
  const names = { token: () => "token", rest: (node) => boxLines(node, data)[0], group: (node) => node.name };
  const does = (node) =>
    [node.kind === "head" && `from ${at(data, node.reads)}`, moves(node)].filter(Boolean).join("; ");
  const row = (node, number) => {
    const isGroup = node.kind === "group";
    const numbers = [
      logits(node.relevance),
      logits(directOf(data, number)),
      node.removed ? logits(data.metric - node.removed.metric) : "",
    ];
    return [
      (names[node.kind] ?? short)(node),
      node.position === null || isGroup ? "" : at(data, node.position),
      isPart(node) ? does(node) : node.kind === "token" ? "embedding" : node.label,
      ...numbers.map(numberCell),
    ];
  };
  const head = ["part", "at", "what it does", "adds", "directly", "effect, measured"];
  const rows = data.nodes.flatMap((node, number) => (node.relevance ? [row(node, number)] : []));
  fill(table.lastChild, bareTable("table.flow-table", head, rows));
}
