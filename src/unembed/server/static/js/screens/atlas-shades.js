/** The colours of the atlas, and its legend, which shows or hides the points of a colour. */
import { button, fill, grouped, h, percent } from "../dom.js";
import { state } from "../state.js";

export const COLOURS = { kind: "Kind of tokens", layer: "Layer", density: "Activation density" };
/** Ten classes of activation density, evenly spaced in its logarithm from 1e-4 on. */
const STEPS = 10;
const stepOf = (density) =>
  density <= 0 ? 0 : Math.max(0, Math.min(STEPS - 1, Math.floor((1 + Math.log10(density) / 4) * STEPS)));

export const colour = () => (state().colour in COLOURS ? state().colour : "kind");

/** The ways to colour: `groups` has a number for every point, `classes` the CSS class of each number, `text` its name. */
const SHADINGS = {
  kind: ({ atlas }) => ({
    groups: atlas.kind,
    classes: atlas.kinds.map((_, i) => `map-${i}`),
    text: (i) => atlas.kinds[i],
  }),
  layer: ({ atlas, model: { n_layers: n } }) => ({
    groups: atlas.layer,
    classes: Array.from({ length: n }, (_, layer) => `map-layer${Math.round((8 * layer) / Math.max(1, n - 1))}`),
    text: (i) => `Layer ${i}`,
  }),
  density: ({ atlas }) => ({
    groups: atlas.density.map(stepOf),
    classes: Array.from({ length: STEPS }, (_, i) => `q${7 + i}`),
    text: (i) => (i ? `from ${percent(10 ** (4 * (i / STEPS - 1)))}` : "below 0.03 %"),
  }),
};

/** Colour the map; points that a search, a selection or the legend leaves out are faint. */
export function paint(t) {
  if (!t.map) return;
  const { atlas, matched, hidden, brushed } = t;
  const shading = SHADINGS[colour()](t);
  const { groups, classes } = shading;
  const inBrush = new Set(brushed);
  const isFaint = (_, i) =>
    (matched && !matched.has(i)) || hidden.has(groups[i]) || (inBrush.size > 0 && !inBrush.has(i));
  const faint = matched || hidden.size || brushed.length ? atlas.x.map(isFaint) : null;
  const rings = atlas.best.slice(0, 40).flatMap((b) => (faint?.[b.point] ? [] : [b.point]));
  t.map.paint({ groups, classes, faint, rings, chosen: t.at.get(state().memory) ?? -1 });
  drawLegend(t, shading);
}

function drawLegend(t, { groups, classes, text }) {
  const counts = new Array(classes.length).fill(0);
  for (const g of groups) counts[g]++;
  const flip = (i) => {
    if (!t.hidden.delete(i)) t.hidden.add(i);
    paint(t);
  };
  const sign = (name, i) =>
    button([h("i", { class: name }), text(i), h("small.faint", ` ${grouped(counts[i])}`)], () => flip(i), "quiet", {
      "aria-pressed": String(!t.hidden.has(i)),
      title: "Show or hide",
    });
  const ringed = t.atlas.best.length > 0 && h("span.faint", "ringed: best memories");
  fill(t.legend, [classes.map((name, i) => counts[i] > 0 && sign(name, i)), ringed]);
}
