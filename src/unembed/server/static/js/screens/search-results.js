/** What a search found: how its words were read, filters, and the table of memories and heads. */
import { button, fill, fixed, grouped, h, many, numberCell, percent, places, segmented, selectBox } from "../dom.js";
import { token, visible } from "../islands/tokens.js";
import { empty, link, table, toks, trail } from "../parts.js";
import { idOf, parseId, state } from "../state.js";

/** How many results are loaded at once. */
const PAGE = 60;
const WHY = { trigger: "example", name: "label", memory: "id" };
const why = (name) => WHY[name] ?? name;
/** Whether a hit was found by a text rather than a token. */
const isText = (x) => ["description", "trigger", "name"].includes(x.why);
/** The filters by the share of tokens on which a memory fires, with their bounds. */
const DENSITIES = {
  rare: ["Active on fewer than 1 % of tokens", { density_below: 0.01 }],
  some: ["Active on 1 % to 10 %", { density_above: 0.01, density_below: 0.1 }],
  common: ["Active on 10 % to 50 %", { density_above: 0.1, density_below: 0.5 }],
  always: ["Active on more than 50 %", { density_above: 0.5 }],
};
const NOTHING =
  "Try another form of the word, *part* for all tokens that contain it, /expression/ for a regular expression, " +
  "or a token above.";

const EXACT =
  "Exact: all values are scored. First are the 1,000 in which the word stands out most, by its score over the standard " +
  "deviation of the value's scores. Ranks are shown up to 100.";

/** The parameters of a request for the hits from `offset` on. */
export function query({ filters: { density, ...rest } }, offset = 0) {
  const bounds = DENSITIES[density]?.[1] ?? {};
  return { q: state().query, top: PAGE, offset: offset || "", ...rest, ...bounds };
}

/** A button that searches for exactly one token. */
const exact = (t, text, cls, props = {}) =>
  button([token(text)], () => t.lookUp(`"${text.replaceAll(" ", "·")}"`), cls, props);

/** Show the tokens that each word of the query is searched as. */
export function drawPieces(t) {
  const piece = (text) => exact(t, text, "quiet", { title: `Search ${visible(text)} alone` });
  const word = ([text, parts]) => {
    const forms = t.found.forms[text];
    const split = () => [many(parts.length, "token"), ": ", parts.map(piece)];
    return h("p", [
      forms.length
        ? [`“${visible(text)}” is searched as `, forms.map(piece)]
        : [`No form of “${visible(text)}” is one token. It is `, split()],
      forms.length > 0 && parts.length > 1 && ["; without a space before it, it is ", split()],
      ".",
    ]);
  };
  const near = t.found.near.map((text) => button([token(text)], () => t.lookUp(text.trim()), "quiet"));
  fill(t.pieces, [
    Object.entries(t.found.tokens).map(word),
    near.length > 0 && h("p", "Near in meaning, by the model's own embedding: ", near),
  ]);
}

/** A switch between promoting and suppressing memories, for a query of one word; a minus before it means suppressing. */
function signs(t) {
  const [, minus, word] = /^\s*(-?)("[^"]*"|[^\s:*/]+)\s*$/.exec(state().query) ?? [];
  if (!word || parseId(word)) return null;
  return segmented("Sign", { "": "Promotes", "-": "Suppresses" }, minus, (sign) => t.lookUp(sign + word));
}

/** Draw the filters, which the server applies to all results. */
export function drawFacets(t) {
  const { filters, found, model } = t;
  const choose = (name) => (value) => {
    filters[name] = value;
    t.show();
  };
  const choice = (label, name, options) => selectBox(label, options, filters[name], choose(name));
  const layers = Object.entries(found.layers).map(([n, hits]) => [n, `Layer ${n} (${hits})`]);
  const reasons = Object.entries(found.reasons).map(([name, hits]) => [name, `${why(name)} (${hits})`]);
  const densities = Object.entries(DENSITIES).map(([name, [text]]) => [name, text]);
  const labelled = { "": "With and without labels", true: "Labelled", false: "Not labelled" };
  const any = Object.values(found.layers).some((n) => n > 0);
  fill(t.facets, [
    signs(t),
    any && [
      choice("Layer", "layer", [["", "All layers"], ...layers]),
      reasons.length > 1 && choice("Found by", "why", [["", "Found by any part"], ...reasons]),
      model.can.index && [
        choice("Share of tokens", "density", [["", "Active on any share of tokens"], ...densities]),
        choice("Labels", "labelled", labelled),
      ],
      isFiltered(t) && button("Clear filters", () => (clearFilters(t), t.show()), "quiet"),
    ],
  ]);
}

/** What the column of shares counts. */
const activeOn = ({ can, index }) =>
  `Active on: the share of index ${index}'s tokens on which ` +
  (can.gated
    ? "the coefficient has the sign that is listed (− negative) and at least half of its usual size."
    : "the coefficient is above 0.");

export const NO_FILTERS = { layer: "", why: "", density: "", labelled: "" };
export const clearFilters = ({ filters }) => Object.assign(filters, NO_FILTERS);
const isFiltered = ({ filters }) => Object.values(filters).some(Boolean);

/** Draw the table of hits; `more()` loads further ones. */
export function drawRows(t, more) {
  const { hits, total, notes, suggestions } = t.found;
  const memories = hits.filter((x) => x.of !== "head");
  trail.splice(0, Infinity, ...memories.map((x) => idOf(x)));
  const what = memories.length < hits.length ? "memories and heads" : total === 1 ? "memory" : "memories";
  const caption = `${grouped(total)} ${what}${hits.length < total ? `, ${grouped(hits.length)} of them shown` : ""}`;
  const density = t.model.can.index ? ["active on"] : [];
  const head = ["memory", "found by", "match", "rank", "score", ...density, "top tokens"];
  const filtered = isFiltered(t) && h("p", "The filters may hide results.");
  fill(t.results, [
    notes.map((n) => h("p.warn", n)),
    suggestions.length > 0 && h("p", "Similar tokens: ", [suggestions.map((text) => exact(t, text, "btn small"))]),
    hits.length
      ? table([t.bulk.tickAll(memories), ...head], rowsOf(t), caption)
      : empty("Nothing found", NOTHING, filtered),
    hits.some((x) => x.why === "promotes" || x.why === "suppresses") && h("p.faint", EXACT),
    hits.some((x) => x.density !== null) && h("p.faint", activeOn(t.model)),
    hits.length < total &&
      button(`Show ${Math.min(PAGE, total - hits.length)} more`, more, "btn", { "aria-describedby": "shown" }),
  ]);
}

function rowsOf({ bulk, model, found: { hits } }) {
  const digits = places(hits.map((x) => x.score));
  const isPassage = (text) => /\S\s+\S/.test(text);
  const one = (x) => (text, i) => {
    const plain = isPassage(text) || (isText(x) && !i);
    return [i > 0 && (isPassage(text) ? h("br") : " "), plain ? text : token(text)];
  };
  const match = (x) =>
    h("span.context", { dir: "auto" }, [
      [x.found, ...x.also.slice(0, 3)].map(one(x)),
      x.also.length > 3 && h("span.faint", ` and ${x.also.length - 3} more`),
    ]);
  return hits.map((x) => [
    x.of === "head" ? "" : bulk.tick(x),
    link(x, x.of).slice(0, x.why === "description" ? 1 : undefined),
    h("span.tag", why(x.why)),
    match(x),
    x.rank ?? "",
    Number.isFinite(x.score) ? numberCell(fixed(x.score, digits)) : "",
    ...(model.can.index ? [x.density === null ? "" : numberCell(percent(x.density))] : []),
    toks(x.top_tokens),
  ]);
}
