/** What several screens show: candidates, attributions, cards, tables, links; and how a pane is filled. */

import * as api from "./api.js";
import {
  bareTable,
  button,
  bySize,
  drawn,
  fill,
  fixed,
  folded,
  grouped,
  h,
  icon,
  many,
  num,
  numberCell,
  part,
  percent,
  places,
  segmented,
  signed,
  sumOf,
  within,
} from "./dom.js";
import * as bars from "./islands/bars.js";
import { token } from "./islands/tokens.js";
import { nameOf } from "./names.js";
import { cardOf, go, idOf, state, turn, watch } from "./state.js";

/**
 * A list of candidates for the next token, the likeliest first. Changes of rank are shown where the earlier ones are
 * given: `from`, the earlier rank of each candidate, or `before`, the earlier list.
 */
export function candidates(list, /** @type {any} */ { before, from, onpick, rank, n = 6 } = {}) {
  const was = new Map((before || []).map((c, i) => [c.id, i + 1]));
  const moved = (old, now) => {
    if (!(from || before) || old === now) return "";
    return old === undefined ? "new" : `${old > now ? "▲" : "▼"}${grouped(Math.abs(old - now))}`;
  };
  const row = (c, i) => {
    const move = moved(from ? from[i] : was.get(c.id), i + 1);
    const text = [h("span", token(c.token), " ", move && h("span.delta", move)), h("small", percent(c.probability))];
    const props = {
      data: { id: c.id },
      style: { "--p": `${Math.max(1, c.probability * 100)}%` },
      title: `logit ${num(c.logit)}`,
      onpointerenter: () => same(c.id, true),
      onpointerleave: () => same(c.id, false),
    };
    return h("li", [button(text, () => onpick?.(c), "cand", props)]);
  };
  return h("div", [
    h("ol", list.slice(0, n).map(row)),
    (rank ?? null) !== null && h("p.faint", `target at rank ${grouped(rank)}`),
  ]);
}

function same(id, on) {
  for (const el of document.querySelectorAll(`.cand[data-id="${id}"]`)) el.classList.toggle("same-token", on);
}

const KINDS = ["attention", "mixer", "embedding", "positions", "head", "memory"];

/** The name of a writer: a part of the model that adds to the logits. */
function writer(row) {
  const kind = row.label.split(" ")[0];
  const named = kind === "ffn" ? "FFN" : KINDS.includes(kind) && kind[0].toUpperCase() + kind.slice(1);
  if (row.layer === null) return named || row.label;
  const name = named && !row.label.includes("bias") ? named : row.label.replace(/ L?\d.*$/, "");
  const where = row.index === null ? row.layer : idOf(row, kind);
  const called = row.index !== null && nameOf(row, kind);
  return `${name} ${where}${called ? `, ${called}` : ""}${row.source === null ? "" : ` from ${row.source}`}`;
}

/** More writers than this are a list of the largest, with the others folded. */
const MANY_WRITERS = 24;
const LARGEST_WRITERS = 10;

/** Draw a logit as bars, one for what each writer adds, with their sum and its error below. */
export function attribution(el, a, tokens = []) {
  const digits = places([...a.rows.map((row) => row.contribution), a.others_contribution ?? 0]);
  const bar = (label, value, more) => ({ label, value, text: fixed(value, digits, true), ...more });
  const barOf = (row) => {
    const from = row.source !== null && tokens[row.source];
    const label = from ? h("span", writer(row), " ", token(from.token)) : writer(row);
    return bar(label, row.contribution, { row, pick: row.layer !== null });
  };
  const chart = (list, others, sum) => {
    const rest = others ? [bar(many(others, "other"), sum, { cls: "rest", pick: false })] : [];
    const rows = [...list.map(barOf), ...rest];
    return drawn(bars.mount, { rows, signed: true }, { onpick: ({ row }) => follow(row) });
  };
  const of =
    a.against === null ? [h("span", "logit of "), token(a.token)] : [token(a.token), " over ", token(a.against)];
  const large = bySize(a.rows, (row) => row.contribution);
  const small = a.rows.length > MANY_WRITERS ? large.splice(LARGEST_WRITERS) : [];
  const rest = sumOf(small, (row) => row.contribution) + (a.others_contribution ?? 0);
  const every = chart(a.rows, a.others, a.others_contribution);
  const all = h("summary.faint", `All ${a.rows.length}, in the order of the model`);
  fill(el, [
    small.length ? [chart(large, small.length + a.others, rest), h("details", all, every)] : every,
    h("p.row.soft", [
      h("span", "Sum ", h("b", num(a.total)), " = ", of, ` ${num(a.logit)} logits`),
      h("span.faint", `relative error ${a.error.toExponential(1)}`),
    ]),
  ]);
}

/** Direct and total effects of writers, as `with_effects` returns them. */
export function effectsTable(rows) {
  const number = (x) => numberCell(x === null ? "" : signed(x));
  const lines = rows.map((row) => [row.writer, number(row.direct_effect), number(row.total_effect), row.note]);
  const head = ["writer", "direct effect", "total effect", "where they differ"];
  return table(head, lines, "Direct and total effects");
}

function follow(row) {
  const kind = row.label.split(" ")[0];
  go(kind === "memory" || kind === "head" ? cardOf(row, kind) : { screen: "layer", layer: String(row.layer) });
}

/** A titled card of a screen; `controls` are in its header. */
export function card(title, controls, ...body) {
  const id = `card${++cards}`;
  return h("section.card", { "aria-labelledby": id }, h("header", h("h2", { id }, title), controls), body, saver());
}
let cards = 0;

/** A button for saving the card around it as a figure: it tells the page, which opens a menu. */
const saver = () =>
  button(icon("save"), save, "icon-btn save", {
    "aria-label": "Download this figure",
    title: "Download this figure",
    "aria-haspopup": "menu",
  });
const save = (e) => e.currentTarget.dispatchEvent(new CustomEvent("figure", { bubbles: true }));

/** A row of buttons for a choice that the address stores under a name. */
export function choice(label, name, options) {
  const group = segmented(label, options, state()[name], (value) => turn({ [name]: value }));
  follows(group, (now) => group.show(now[name]));
  return group;
}

/** Call `on(state)` at every change while an element is on the page. */
export function follows(el, on) {
  let wasShown = false;
  const end = watch((now) => {
    wasShown ||= el.isConnected;
    if (wasShown && !el.isConnected) return end();
    return on(now);
  });
}

/** A table in a box of its own, which scrolls if the table is too wide, and takes the focus for that. */
export const table = (head, rows, caption = "") =>
  h("div.scroll", { tabindex: 0, role: "group", "aria-label": caption || "Table" }, [
    bareTable("table", head, rows, caption && h("caption", caption)),
  ]);

/** The rows of a CSV file from a list: a column is the name of a property, or [name, of], which computes it. */
export const columns = (list, named) => [
  named.map((one) => (Array.isArray(one) ? one[0] : one)),
  ...list.map((x) => named.map((one) => (Array.isArray(one) ? one[1](x) : x[one]))),
];
export const topTokens = ["top_tokens", (x) => JSON.stringify(x.top_tokens)];

/** A folded table of the numbers of a chart; a click on a column's name sorts by it. */
export function asTable(head, rows, title = "As a table") {
  /** @type {any} */ let body = null;
  let by = -1;
  let descends = false;
  const name = (text, i) =>
    button([text, i === by && (descends ? " ▼" : " ▲")], () => sort(i), "quiet", { title: "Sort by this column" });
  function draw(list) {
    fill(body, table(head.map(name), list));
    if (by >= 0) body.querySelectorAll("th")[by].setAttribute("aria-sort", descends ? "descending" : "ascending");
  }
  function sort(i) {
    descends = i === by && !descends;
    by = i;
    const sign = descends ? -1 : 1;
    const compared = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en"));
    draw(rows().sort((a, b) => sign * compared(a[i], b[i])));
    body.querySelectorAll("th button")[i].focus();
  }
  return folded(title, (el) => {
    body = el;
    draw(rows());
  });
}

/** A link to the card of a memory or head, and its name; Shift and a click compare it with the open memory. */
export function link(one, kind = "memory", props = {}) {
  const head = kind === "head";
  const id = idOf(one, kind);
  const follow = (e) => {
    e.preventDefault();
    if (head) go(cardOf(one, kind));
    else go(e.shiftKey && state().screen === "memory" ? { compared: id } : { ...cardOf(one), compared: "" });
  };
  const name = nameOf(one, kind);
  return [
    h("a.tok", { href: head ? `#/heads?head=${id}` : `#/memory?memory=${id}`, onclick: follow, ...props }, id),
    name && h("span.tag", { dir: "auto", title: "label" }, name),
  ];
}

/** The ids of the memories of the last search, through which Previous and Next go. */
export const trail = [];

/** Some tokens, one after the other. @param {string[]} list */
export const toks = (list, n = 8) => list.slice(0, n).map((t) => [token(t), " "]);

/** Draw lists of tokens, [title, rows] each, with their scores as bars of one scale. */
export function tokenLists(lists, options) {
  const scores = lists.flatMap(([, rows]) => rows.map((r) => r.score));
  const digits = places(scores);
  const least = Math.max(...scores.map(Math.abs), 1e-12);
  return lists.map(([title, rows]) => {
    const bar = (r) => ({ label: token(r.token), value: r.score, text: fixed(r.score, digits, true), id: r.id });
    return part(title, drawn(bars.mount, { rows: rows.map(bar), least }, options));
  });
}

/** Run `work`, which fills a pane; a failure is shown in the pane, with a button to try again. */
export async function pane(el, work) {
  try {
    await work();
  } catch (error) {
    failure(el, error, () => pane(el, work));
  }
}

/** The same, with the old content of `els` dimmed meanwhile, or a skeleton in a pane that is empty. */
export async function dimming(els, el, work) {
  const settled = waiting(...els);
  if (!el.firstChild) fill(el, loading("Loading"));
  await pane(el, work);
  settled();
}

/** Fill a pane with what `draw` makes of the answer to a request. */
export const answered = (el, ask, draw) => pane(el, async () => fill(el, draw(await ask())));

/** Grey lines in place of content that is being loaded, which appear after a short delay. */
export const loading = (what, lines = 4) =>
  h("div.skeleton", { role: "status", "aria-label": what }, [Array.from({ length: lines }, () => h("i"))]);

/** Dim old content, after a short delay, until the returned function is called. */
export function waiting(...els) {
  const dim = (on) => {
    for (const el of els) el.classList.toggle("waiting", on);
  };
  const timer = setTimeout(dim, 150, true);
  return () => {
    clearTimeout(timer);
    dim(false);
  };
}

/** Whether a request failed because the address names a token that the model does not have; then the default is used. */
function dropped(error) {
  const isOfToken = error.code === "not_one_token" || /^token \d+$| against itself$/.test(error.message);
  if (!isOfToken || !(state().token || state().against)) return false;
  api.fail(error);
  turn({ token: "", against: "", single: "" });
  return true;
}

/** Show a failure in a pane: what failed, why, what to do, and a button to try again. */
export function failure(el, error, again) {
  if (error.code === "superseded" || dropped(error)) return;
  if (!error.code) console.error(error);
  const what = h("p", h("b", error.message), error.why ? `: ${error.why}` : "");
  const repeat = again && error.code !== "unsupported" && h("div", button("Try again", again, "btn small"));
  fill(el, h("div.warn.stack", what, error.fix && h("p.soft", error.fix), repeat));
}

export const inOneLine = (error) => [error.message, error.why, error.fix].filter(Boolean).join(". ");

export const empty = (title, text, ...more) => h("div.empty", h("h2", title), h("p", text), ...more);

/** Say on a screen about memories that this model has none. */
export function noMemories(root) {
  fill(root, empty("This model has no memories", "It has no feed-forward layers, and a memory is an FFN neuron."));
  return { update() {} };
}

/** Fill an element with a text of about.json. */
export function written(el, name) {
  api.file("about").then((texts) => (el.textContent = texts[name]), api.fail);
  return el;
}

/** The folded help of a pane, a text of about.json. */
export const about = (name) =>
  folded(h("summary.faint", "What am I looking at?"), (body) => body.append(written(h("p.why"), name)));

/** The selected layer of n, or position of n tokens; the last by default. */
export const layerHere = (n) => (state().layer === "" ? n - 1 : within(Number(state().layer), n));
export function positionHere(n) {
  const position = state().position === "" ? -1 : Number(state().position);
  return within(position < 0 ? position + n : position, n);
}

export const prompt = () => state().prompt || FIRST;
export const FIRST = "He was born on 16";

/** The two prompts that are compared: the default ones, unless the user has entered one; then the other may be empty. */
export function comparedPrompts() {
  const { prompt: entered, other } = state();
  if (!other && (!entered || entered === FIRST)) return ["The blue car and the red", "The blue sky and the red"];
  return [entered || "The blue car and the red", other];
}
