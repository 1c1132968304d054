/** The controls of one edit: its action, its value with a slider, values to compare it with, and where it acts. */
import { announce, boxes, button, fill, grouped, h, num, numberBox, rangeBox, selectBox, tick } from "../dom.js";
import { link, prompt } from "../parts.js";
import { memoryPath, setEdits } from "../state.js";
import * as tray from "../tray.js";
import { usualOf } from "./memory-here.js";

const SCOPES = {
  all: "everywhere",
  last: "the newest token",
  prompt: "the prompt",
  new: "generated tokens",
  from: "from a position on",
};
const ACTIONS = { set: "set to", scale: "times", add: "plus" };
/** The largest value that the server accepts. */
const LARGEST = 1_000_000;
/** A coefficient larger than this multiple of the layer's largest is called extreme. */
const EXTREME = 10;

/** The controls of edit `i` of `all`. */
export function editor(page, all, i, { preview, generated }) {
  const e = all[i];
  const name = tray.name(e);
  const isHead = e.target === "head";
  const change = (part, push = false) => setEdits(all.with(i, { ...e, ...part }), push);
  const value = valueBox(e, change, () => preview(all));
  const [spots, far] = [h("span.row"), h("p.warn", { hidden: true })];
  if (!isHead) landmarks(page, e, { change, value, spots, far }).catch(page.api.fail);
  return h("div.row", [
    h("label.check", [tick(`${name} on`, e.on, (on) => change({ on }))]),
    link(e, e.target),
    selectBox("How", isHead ? { scale: ACTIONS.scale } : ACTIONS, e.action, (action) => change({ action })),
    value.number,
    h("span.slider", value.slider, value.ticks),
    scopeBoxes(page.api, e, change, generated),
    button("Off", () => change({ action: "scale", value: 0 }), "btn small"),
    !isHead &&
      button("Flip", () => change({ action: "scale", value: -1 }), "btn small", { title: "turn the sign round" }),
    button("×", () => setEdits(all.toSpliced(i, 1)), "btn small", { "aria-label": `Remove ${name}` }),
    spots,
    far,
  ]);
}

/** The value as a number, and as a slider whose steps are fine near zero and large at the ends (a symmetric logarithm). */
function valueBox(e, change, preview) {
  let limit = Math.max(8, Math.abs(e.value) * 2);
  const toSlider = (x) => (Math.sign(x) * Math.log1p(Math.abs(x))) / Math.log1p(limit);
  const fromSlider = (s) => Math.sign(s) * Math.expm1(Math.abs(s) * Math.log1p(limit));
  const number = numberBox("Value", Number(e.value.toPrecision(5)), {
    min: -LARGEST,
    max: LARGEST,
    step: "any",
    onchange() {
      if (number.value && number.validity.valid) change({ value: number.valueAsNumber });
      else announce(`A number from −${grouped(LARGEST)} to ${grouped(LARGEST)}`);
    },
  });
  const slider = rangeBox("Value", {
    min: -1,
    max: 1,
    step: 0.005,
    value: String(toSlider(e.value)),
    oninput() {
      e.value = Number(fromSlider(Number(slider.value)).toPrecision(3));
      number.value = String(e.value);
      preview();
    },
    onchange: () => change({ value: number.valueAsNumber }),
  });
  const [ticks] = boxes("span.ticks-row");
  /** Mark values on the slider, whose range grows to contain them. */
  function mark(values) {
    limit = Math.max(limit, ...values.map((x) => 1.2 * Math.abs(x)));
    slider.value = String(toSlider(number.valueAsNumber));
    const left = (x) => `calc(8px + (100% - 16px) * ${(1 + toSlider(x)) / 2})`;
    fill(ticks, [e.action === "set" && values.map((x) => h("i", { style: { left: left(x) } }))]);
  }
  return { number, slider, ticks, mark };
}

/** Controls for where the edit acts: a named scope, or all positions from one on. */
function scopeBoxes(api, e, change, generated) {
  const chosen = Array.isArray(e.positions);
  const move = async (kind, from) => change({ positions: await places(api, kind, from, generated).catch(api.fail) });
  const here = chosen && { chosen: `positions ${e.positions[0]} to ${e.positions.at(-1)}` };
  const scope = selectBox("Where", { ...SCOPES, ...here }, chosen ? "chosen" : e.positions, (kind) => move(kind));
  const onchange = () => from.validity.valid && from.value && move("from", from.valueAsNumber);
  const from = chosen && numberBox("First position", e.positions[0], { onchange });
  return [scope, from];
}

/** The positions that a scope means for this prompt. */
async function places(api, kind, first, generated) {
  if (kind === "all" || kind === "last") return kind;
  const n = (await api.get("/tokenize", { text: prompt() })).ids.length;
  const from = { prompt: 0, new: n }[kind] ?? first ?? n - 1;
  const to = kind === "prompt" ? n : Math.max(n + generated(), from + 1);
  return Array.from({ length: to - from }, (_, i) => from + i);
}

/** Multiples of a memory's usual size that a click sets. */
const STRENGTHS = [1, 2, 4, -1];

/** Show values to compare with, which a click sets: the coefficient here, and on a corpus; warn if the edit is far beyond. */
async function landmarks(page, e, { change, value, spots, far }) {
  const { api, model } = page;
  const at = memoryPath(e);
  const known = [];
  const know = (text, x, title) => {
    const set = () => change({ action: "set", value: Number(x.toPrecision(4)) });
    known.push([x, button(`${text} ${num(x)}`, set, "quiet", { title: `set to ${title}` })]);
  };
  const draw = () => {
    value.mark([0, ...known.map(([x]) => x)]);
    fill(spots, [known.map(([, spot]) => spot)]);
  };
  const { coefficients } = await api.post(`${at}/activations`, { prompt: prompt() }, { channel: `here ${at}` });
  know("Here", coefficients.at(-1), "the coefficient at the prompt's last token, without edits");
  draw();
  const { size, source } = await api.get(`${at}/usual`, {}, { channel: `size ${at}` });
  if (size)
    for (const n of STRENGTHS)
      know(`${n} × usual`.replace("-", "−"), n * size, `${n} times its usual size, by ${source}`);
  draw();
  if (!model.can.index) return;
  const usual = await usualOf(page, e, `usual ${at}`);
  if (usual.counts)
    know("99th percentile", usual.high, `what 99 % of ${grouped(usual.sampled)} sampled tokens stay below`);
  know("Largest in the corpus", usual.statistics.largest, "its largest coefficient on the index's corpus");
  if (model.can.gated)
    know("Most negative in the corpus", usual.statistics.least, "its most negative coefficient on the index's corpus");
  know("Largest of the layer", usual.layer_largest, "the largest that any memory of the layer had");
  draw();
  const beyond = Math.abs(e.value) / usual.layer_largest;
  far.hidden = e.action !== "set" || !(beyond > EXTREME);
  far.textContent =
    `${num(e.value)} is ${num(beyond)} times the largest coefficient of the layer on the corpus: the final ` +
    "norm then leaves little but this value, whatever the prompt is.";
}
