/** The card of one memory: its value and key, and what it does on the prompt and on a corpus. */
import { lengths } from "../contexts.js";
import { afterPaint, boxes, fill, grouped, h, num } from "../dom.js";
import { token, visible } from "../islands/tokens.js";
import { labels } from "../labels.js";
import { descriptionOf } from "../names.js";
import { card, loading, pane } from "../parts.js";
import { categories, cluster, neighbours } from "./memory-alike.js";
import { distribution, quantiles, topExamples } from "./memory-corpus.js";
import { effectOf, onPrompt, percentile, percentileText, usualOf } from "./memory-here.js";
import { steering } from "./memory-steering.js";
import { textTest } from "./memory-text.js";
import { figures, vocabularyCard } from "./memory-value.js";
import { wiring } from "./memory-wiring.js";

export function drawCard(t, names) {
  const { view, page, model, api } = t;
  const [triggers, concepts, near, called, alike, wired] = Array.from({ length: 6 }, () => h("div.stack"));
  const [here, effect, density, clustered] = boxes("dd", "dd", "dd", "dd");
  const [usual, bands] = boxes("div", "div");
  fill(here, "…"); // the prompt is being run
  t.boxes = { here, effect, density, usual, bands };
  t.steer = steering(api, view);
  // The card is drawn first; its other panes are requested after that frame.
  afterPaint(() =>
    setTimeout(() => {
      if (!isShown(t, view)) return;
      const here = loadHere(t);
      const texts = () => isShown(t, view) && topExamples(triggers, page, { ...view, pole: poleOf(t) });
      if (view.pole || !model.can.gated) texts();
      else fill(triggers, loading("Reading triggers", 10)), here.then(texts);
      labels(called, names, view);
      neighbours(near, page, view);
      loadUsual(t);
      categories(concepts, page, view);
      cluster(alike, clustered, page, view);
      wiring(wired, api, view);
    }),
  );
  const tested = (largest) => {
    t.tried = largest;
    drawUsual(t);
  };
  return [
    figures(model, view, { here, effect, density, cluster: clustered }),
    h("div.two.memory", [
      h("div.stack", [
        card("Top activating examples", lengths(), triggers, bands),
        card("Test on your own text", null, textTest(page, view, tested)),
        card("Activation distribution", null, usual),
        card("Connections by weights", null, wired),
      ]),
      h("div.stack", [
        vocabularyCard(view, api),
        card("Edit and steer", null, t.steer.el),
        card("Labels", null, called),
        card("Nearest neighbours", h("span.faint", "Shift-click: side by side"), near),
        card("Cluster", null, alike),
        card("Shared categories (WordNet)", null, concepts),
      ]),
    ]),
  ];
}

/** Whether the memory is still shown; if not, a late response is dropped. */
const isShown = ({ view, host }, memory) => view === memory && host.isConnected;

/** The sign of the coefficient that the card is about: that of its id; else positive, unless it is negative on the prompt and no description is shown. */
const poleOf = ({ view, here, model }) =>
  view.pole ?? (model.can.gated && !descriptionOf(view) && here?.here.coefficient < 0 ? "negative" : "positive");

/** Load its coefficient and effect at the chosen position of the prompt. */
export const loadHere = (t) =>
  pane(t.boxes.here, async () => {
    const { view } = t;
    const found = await onPrompt(t.api, view);
    if (!isShown(t, view)) return;
    t.here = found;
    drawHere(t);
  });

function drawHere(t) {
  const { here, usual, boxes, steer } = t;
  if (!here) return;
  const m = here.here.coefficient;
  const share = percentile(usual, m);
  const title = share === null ? "" : `of ${grouped(usual.sampled)} sampled tokens`;
  const size = m === 0 ? " not active, " : share === null ? " " : ` ${percentileText(share)}, `;
  const where = ["at ", token(here.tokens[here.position]), ` (${here.position})`];
  fill(boxes.here, num(m), h("small", { title }, size, where));
  fill(boxes.effect, effectOf(here), here.here.always_on && h("span.tag", "always on"));
  steer.draw(here, usual, poleOf(t));
  drawUsual(t);
}

/** Draw the histogram, with the coefficient on the prompt and the largest on the tested text marked. */
function drawUsual(t) {
  const { usual, here, tried, boxes } = t;
  if (!usual) return;
  fill(boxes.density, activeOn(usual.statistics, poleOf(t)));
  const where = here && `${visible(here.tokens[here.position])} (${here.position})`;
  const marks = [
    here && { value: here.here.coefficient, name: `at ${where}`, what: `At ${where}` },
    tried !== null && { value: tried, name: "tested", what: "Largest on the tested text" },
  ];
  distribution(boxes.usual, usual, marks.filter(Boolean), () => loadUsual(t, true));
}

/** On what share of tokens the memory fires; in gated layers also, on what share with the card's sign. */
function activeOn(statistics, pole) {
  const signed = statistics[`${pole}_share`];
  const some = signed === undefined ? "" : ` (${num(100 * signed)} % ${pole})`;
  return [`${num(100 * statistics.active_fraction)} %`, h("small", ` of tokens${some}`)];
}

/** Load what its coefficient usually is; `sampled`: by running the model on a sample of the corpus, by default if that is quick. */
function loadUsual(t, sampled) {
  const { view, boxes, page, model } = t;
  if (!model.can.index)
    return fill(boxes.usual, h("p.faint", "The usual size of a coefficient is stored in an index, and none is open."));
  fill(boxes.usual, loading("Sampling the corpus", 5));
  return pane(boxes.usual, async () => {
    const found = await usualOf(page, view, "sample", sampled);
    if (!isShown(t, view)) return;
    t.usual = found;
    drawUsual(t);
    if (found.counts) quantiles(boxes.bands, found);
    drawHere(t);
  });
}
