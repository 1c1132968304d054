/** The map of patched activations by layer and position, and the heads and memories of its chosen cell. */
import { button, bySize, drawn, fill, fixed, h, num, part, signed } from "../dom.js";
import * as bars from "../islands/bars.js";
import * as patches from "../islands/patches.js";
import { token, visible } from "../islands/tokens.js";
import { asTable, pane } from "../parts.js";
import { cardOf, go, idOf, parseId, state, turn } from "../state.js";
import * as tray from "../tray.js";

export const POINTS = [
  ["resid_pre", "Residual stream", "the residual stream that enters layer"],
  ["attn_out", "Attention output", "the attention output of layer"],
  ["mlp_out", "FFN output", "the FFN output of layer"],
];
export const pointOf = (found) => POINTS.find(([point]) => point === found.point) ?? POINTS[0];

/** A recovered fraction below this is shown as none. */
const STILL = 0.0005;

const percent = (x) => `${fixed(100 * x, 1)} %`;

/** The prompt into which activations are patched. */
export const into = () => (state().direction === "denoising" ? "corrupted" : "clean");

/**
 * The chosen cell as [row, column], or null.
 * @returns {[number, number] | null}
 */
export function cell({ layers, positions }) {
  const { layer, position } = state();
  const [row, column] = [layers.indexOf(Number(layer)), positions.indexOf(Number(position))];
  const isNone = layer === "" || position === "" || row < 0 || column < 0;
  return isNone ? null : [row, column];
}

/** The rows of a table: layer, position, token, logit difference and recovered fraction of every cell. */
export const patchingRows = ({ recovered, layers, positions, tokens, values }, shown = (text) => text) =>
  recovered.flatMap((row, n) => row.map((x, c) => [layers[n], positions[c], shown(tokens[c]), values[n][c], x]));

export function drawMap({ view, found, map, scale, cellSentence, mapTable }) {
  const at = cell(found);
  const { values, recovered, layers, positions, tokens } = found;
  const other = into() === "corrupted" ? "clean" : "corrupted";
  const pairs = view.pairs.map(([clean, corrupted]) => (other === "clean" ? [corrupted, clean] : [clean, corrupted]));
  const there = new Map(pairs);
  const isOther = (p) => view[into()].tokens[p].id !== view[other].tokens[there.get(p)]?.id;
  const [, name, what] = pointOf(found);
  const data = {
    values: recovered,
    rows: layers.map((layer) => `Layer ${layer}`),
    columns: positions.map((p, i) => ({ text: tokens[i], differs: isOther(p) })),
    chosen: at,
    label: `${name}: fraction recovered by layer and position`,
    name: (n, c) =>
      `Layer ${layers[n]}, position ${positions[c]} ${visible(tokens[c])}: ${percent(recovered[n][c])} recovered, ` +
      `logit difference ${signed(values[n][c])}`,
  };
  const onpick = (n, c) => turn({ layer: String(layers[n]), position: String(positions[c]), patched: "" });
  patches.mount(map, data, { onpick });
  fill(scale, `Fraction recovered: 0 as with the ${into()} prompt, 1 as with the ${other} one, negative away from it.`);
  const patched = ([n, c]) => [
    [`With ${what} ${layers[n]} at `, token(tokens[c]), ` patched, the logit difference is ${signed(values[n][c])}: `],
    [h("b.whole", percent(recovered[n][c])), " of the way to the other prompt."],
  ];
  const hint = "Each cell is a run with one patched activation; choose one to see its heads and memories.";
  const unpatched = view[into()].tokens.filter((_, p) => !there.has(p)).map((one) => token(one.token));
  const why = " Not patched, because the other prompt has no token in their place: ";
  const list = unpatched.map((one, i) => [i > 0 && ", ", one]);
  const isStill = recovered.every((row) => row.every((x) => Math.abs(x) < STILL));
  const end = isStill ? ". No cell moves the logit difference." : ".";
  fill(cellSentence, at ? patched(at) : hint, unpatched.length > 0 && [why, list, end]);
  const head = ["layer", "position", "token", "logit difference", "fraction recovered"];
  fill(mapTable, [asTable(head, () => patchingRows(found, visible))]);
}

/** Patch each head and memory of the chosen layer, at the chosen position. */
export const openCell = (t, query) =>
  pane(t.parts, async () => {
    t.inside = null;
    const at = cell(t.found);
    if (!at) return fill(t.parts, h("p.faint", "Choose a cell of the map."));
    const [layer, position] = [t.found.layers[at[0]], t.found.positions[at[1]]];
    const body = { ...query, direction: state().direction, layer, position, top: 12 };
    const kinds = [["z", "heads"], ...(t.page.model.can.memories ? [["coefficients", "memories"]] : [])];
    const asked = kinds.map(([point]) => t.api.post("/patching", { ...body, point }, { channel: `patching ${point}` }));
    const answers = await Promise.all(asked);
    t.inside = Object.fromEntries(kinds.map(([, name], i) => [name, answers[i]]));
    drawParts(t);
    return undefined;
  });

/** The heads and memories of a layer as rows of bars. */
function rowsOf({ heads, memories }, layer) {
  const text = (x, of) => ({ value: x, text: percent(x), title: `logit difference ${signed(of)} with it patched` });
  const [of, at] = [heads, memories].map((found) => found?.layers.indexOf(layer) ?? -1);
  const head = ([x], index) => ({ id: idOf({ layer, index }, "head"), ...text(x, heads.values[of][index][0]) });
  const memory = (x, k) => ({
    id: idOf({ layer, index: memories.indices[at][0][k] }),
    ...text(x, memories.values[at][0][k]),
    given: memories.given[at][0][k],
  });
  return [heads.recovered[of]?.map(head) ?? [], memories?.recovered[at]?.[0].map(memory) ?? []];
}

export function drawParts({ inside, found, parts, view }) {
  const [row, column] = /** @type {[number, number]} */ (cell(found));
  const layer = found.layers[row];
  const [heads, memories] = rowsOf(inside, layer);
  const picked = state().patched;
  const least = Math.max(0.05, ...[...heads, ...memories].map((one) => Math.abs(one.value)));
  const list = (title, all) => {
    const largest = bySize(all, (row) => row.value).slice(0, 8);
    const labelled = (row) => ({ ...row, label: h("span.tok.id", row.id), cls: row.id === picked ? "on" : "" });
    const onpick = ({ id }) => turn({ patched: id });
    const data = { signed: true, least, rows: largest.map(labelled) };
    return all.length > 0 && part(title, drawn(bars.mount, data, { onpick }));
  };
  fill(parts, [
    h("p.soft", `Layer ${layer} at `, token(found.tokens[column]), ` (position ${found.positions[column]})`),
    list("Heads", heads),
    list("Memories (FFN neurons) whose sub-updates differ most", memories),
    picked && chosen([...heads, ...memories], view),
  ]);
}

/** Buttons for the chosen head or memory. */
function chosen(rows, view) {
  const row = rows.find((one) => one.id === state().patched);
  const one = parseId(state().patched);
  if (!row || !one) return null;
  const intervene = () => {
    go({ prompt: view[into()].prompt });
    tray.add({ ...tray.edited(one, "set", Number(row.given.toPrecision(4))), positions: [Number(state().position)] });
    go({ screen: "intervene" });
  };
  return h("div.row.note", [
    h("b", row.id),
    button("Open its card", () => go(cardOf(one, one.kind)), "btn small"),
    one.kind === "memory" &&
      button(`Set to ${num(row.given)} and intervene`, intervene, "btn small", {
        title: "Adds an edit that sets the coefficient of the other prompt at this position",
      }),
  ]);
}
