/** Where each token could leave the model, how often it would say the same, and what that saves. */
import { button, fill, h, num, s, segmented } from "../dom.js";
import { go } from "../state.js";
import { about, asTable, pane, prompt } from "../parts.js";
import { token, visible, mount as strip } from "../islands/tokens.js";

const METHODS = [["margin", "Margin"], ["entropy", "Entropy"], ["agreement", "Agreement of layers"]];

export function render(root, page) {
  const { api } = page;
  let method = "margin";
  let at = 0;
  let steps = [];
  const slider = h("input", { type: "range", min: 0, max: 1, step: 1, "aria-label": "How careful", oninput: () => ((at = Number(slider.value)), ask()) });
  const said = h("p", { class: "soft", role: "status" });
  const words = h("div");
  const curve = h("div");
  const rest = h("div");
  fill(root, h("section", { class: "card stack", "aria-labelledby": "exit-title" },
    h("header", {}, h("h2", { id: "exit-title" }, "Where could we stop?"), segmented("Rule", METHODS, method, (v) => ((method = v), (steps = []), (at = 0), ask()))),
    h("label", { class: "row" }, h("span", { class: "faint" }, "never leaves"), h("span", { style: { flex: "1" } }, slider), h("span", { class: "faint" }, "leaves at once")),
    said, words, h("div", { class: "two" }, curve, rest),
    about("After each layer the rule asks whether the prediction is settled: by the margin between the two likeliest tokens, by the entropy, or by how many layers in a row agree. A token leaves after the first layer whose score passes the threshold. Counted in layers: wall time is another matter.")));

  const ask = () => pane(said, async () => {
    // JSON has no infinity: the first row's threshold is never passed, the last one's always.
    const threshold = steps.length && at > 0 ? (steps[at].threshold ?? -1e9) : null;
    const found = await api.post("/labs/early-exit", { prompt: prompt(), method, threshold }, { channel: "early-exit" });
    if (!steps.length) {
      steps = found.dial.rows;
      slider.max = String(steps.length - 1);
      slider.value = "0";
    }
    draw(found);
  });

  function draw(found) {
    const row = steps[at];
    fill(said, at === 0 ? "Every token goes through all layers." : [h("b", {}, `${num(row.saved_layers)} of ${found.n_layers} layers saved`), ` for each token on average; ${num(row.disagreement)} % of the tokens differ from the full model's. Layers are not seconds.`]);
    strip(words, { tokens: found.tokens, classes: found.exits.map((e) => `q${Math.round((16 * (e + 1)) / found.n_layers)}`), titles: found.exits.map((e, i) => `leaves after layer ${e}, settles at ${found.saturation[i]}; says ${visible(found.said[i])}`) }, { onpick: (i) => go({ screen: "trace", pos: String(i), L: String(found.exits[i]), t: "" }) });
    drawCurve();
    const wrong = found.tokens.flatMap((t, i) => (found.agrees[i] ? [] : [[i, t, found.said[i], found.final[i], found.exits[i]]]));
    fill(rest, h("h3", {}, `${wrong.length} of ${found.tokens.length} would say something else`), h("ul", {}, wrong.slice(0, 14).map(([i, t, a, b, e]) => h("li", { class: "row" }, button("trace", () => go({ screen: "trace", pos: String(i), L: String(e), t: "" }), { class: "quiet" }), "after ", token(t), " says ", token(a), " for ", token(b)))), asTable("As a table", ["position", "token", "leaves after", "settles at", "says", "full model"], () => found.tokens.map((t, i) => [String(i), visible(t), String(found.exits[i]), String(found.saturation[i]), visible(found.said[i]), visible(found.final[i])])));
  }

  function drawCurve() {
    const most = Math.max(...steps.map((r) => r.disagreement), 1);
    const deep = Math.max(...steps.map((r) => r.saved_layers), 1);
    const x = (r) => 40 + (r.disagreement / most) * 300;
    const y = (r) => 160 - (r.saved_layers / deep) * 140;
    const svg = s("svg", { viewBox: "0 0 360 196", class: "ranks", style: { "max-width": "460px" }, role: "img", "aria-label": "Layers saved against disagreement" },
      s("line", { x1: 40, x2: 340, y1: 160, y2: 160, class: "rule" }), s("line", { x1: 40, x2: 40, y1: 20, y2: 160, class: "rule" }),
      s("polyline", { class: "line line0", points: steps.map((r) => `${x(r)},${y(r)}`).join(" ") }),
      steps.map((r, i) => s("circle", { cx: x(r), cy: y(r), r: i === at ? 6 : 3, class: `dot line${i === at ? 1 : 0}`, onclick: () => ((at = i), (slider.value = String(i)), ask()) })));
    const label = (px, py, text, anchor = "start") => svg.append(s("text", { x: px, y: py, "text-anchor": anchor, text }));
    label(40, 12, `layers saved, up to ${num(deep)}`);
    label(340, 180, `disagreement, up to ${num(most)} %`, "end");
    fill(curve, svg, asTable("The curve as a table", ["threshold", "disagreement %", "layers saved", "share saved"], () => steps.map((r) => [r.threshold, r.disagreement, r.saved_layers, r.share_saved])));
  }

  ask();
}
