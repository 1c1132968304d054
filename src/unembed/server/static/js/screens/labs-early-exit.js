/** The layer at which each token could exit, the agreement with the full model, and the layers saved. */
import { literal } from "../code.js";
import { button, fill, h, num, s, segmented } from "../dom.js";
import { mount as strip, token, visible } from "../islands/tokens.js";
import { about, asTable, card, pane, prompt } from "../parts.js";
import { go } from "../state.js";

const METHODS = [
  ["margin", "Margin"],
  ["entropy", "Entropy"],
  ["agreement", "Agreement of layers"],
];

export function render(root, page) {
  const { api } = page;
  let method = "margin";
  let at = 0;
  let found = null;
  let place = () => {};
  const slider = h("input", {
    type: "range",
    min: 0,
    max: 1,
    step: 1,
    "aria-label": "Threshold",
    oninput: () => move(Number(slider.value)),
  });
  const statusLine = h("p.soft", { role: "status" });
  const words = h("div");
  const curve = h("div");
  const rest = h("div");
  fill(root, [
    card(
      "Early exit by threshold",
      segmented("Rule", METHODS, method, (v) => ((method = v), load())),
      [
        h("div.stack", [
          h("label.row", [
            h("span.faint", "never exits early"),
            h("span", { style: { flex: "1" } }, slider),
            h("span.faint", "exits at once"),
          ]),
          statusLine,
          words,
          h("div.two", curve, rest),
          about("exit"),
        ]),
      ],
    ),
  ]);

  /** The whole curve comes in one response; moving along it sends no request. */
  const load = () =>
    pane(statusLine, async () => {
      found = await api.post("/labs/early-exit", { prompt: prompt(), method }, { channel: "early-exit" });
      slider.max = String(found.curve.rows.length - 1);
      drawCurve(found.curve.rows);
      move(found.curve.rows.findLastIndex((r) => r.disagreement === 0)); // the most layers saved at no cost
    });

  function move(step) {
    const { tokens, final, saturation, n_layers: layers, predictions, curve } = found;
    at = Math.max(0, Math.min(curve.rows.length - 1, step));
    const row = curve.rows[at];
    const { exits } = row;
    const exited = exits.map((e, i) => predictions[e][i]);
    slider.value = String(at);
    place();
    fill(statusLine, [
      at === 0
        ? "Every token goes through all layers."
        : [
            h("b", `${num(row.saved_layers)} of ${layers} layers saved`),
            ` for each token on average; ${num(row.disagreement)} % of the tokens differ from the full model's. ` +
              "Saved layers are not measured speed.",
          ],
    ]);
    const open = (i) => go({ screen: "trace", position: String(i), layer: String(exits[i]), token: "" });
    strip(
      words,
      {
        tokens,
        classes: exits.map((e) => `q${Math.round((16 * (e + 1)) / layers)}`),
        titles: exits.map(
          (e, i) => `exits after layer ${e}, saturates at ${saturation[i]}; predicts ${visible(exited[i])}`,
        ),
      },
      { onpick: open },
    );
    const wrong = tokens.flatMap((_, i) => (exited[i] === final[i] ? [] : [i]));
    fill(rest, [
      h("h3", `${wrong.length} of ${tokens.length} predictions change`),
      h("ul", [
        wrong
          .slice(0, 14)
          .map((i) =>
            h("li.row", [
              button("trace", () => open(i), { class: "quiet", "aria-label": `Trace position ${i}` }),
              "after ",
              token(tokens[i]),
              " predicts ",
              token(exited[i]),
              " instead of ",
              token(final[i]),
            ]),
          ),
      ]),
      asTable("As a table", ["position", "token", "exits after", "saturates at", "predicts", "full model"], () =>
        tokens.map((t, i) => [
          String(i),
          visible(t),
          String(exits[i]),
          String(saturation[i]),
          visible(exited[i]),
          visible(final[i]),
        ]),
      ),
    ]);
  }

  /** The curve, with a point on it to drag, or to move with the arrow keys. */
  function drawCurve(steps) {
    const most = Math.max(...steps.map((r) => r.disagreement), 1);
    const deep = Math.max(...steps.map((r) => r.saved_layers), 1);
    const x = (r) => 40 + (r.disagreement / most) * 300;
    const y = (r) => 160 - (r.saved_layers / deep) * 140;
    const point = s("circle", {
      r: 13,
      class: "dot line1",
      "fill-opacity": 0.2,
      tabindex: 0,
      role: "slider",
      "aria-label": "Point on the curve",
      "aria-valuemin": 0,
      "aria-valuemax": steps.length - 1,
      style: { cursor: "grab" },
      onkeydown: (e) => {
        const to = {
          ArrowRight: at + 1,
          ArrowUp: at + 1,
          ArrowLeft: at - 1,
          ArrowDown: at - 1,
          Home: 0,
          End: steps.length,
        }[e.key];
        if (to === undefined) return;
        e.preventDefault();
        e.stopPropagation();
        move(to);
      },
    });
    const near = (e) => {
      const p = new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const far = steps.map((r) => Math.hypot(x(r) - p.x, y(r) - p.y));
      move(far.indexOf(Math.min(...far)));
    };
    const svg = s(
      "svg",
      {
        viewBox: "0 0 360 196",
        class: "ranks",
        style: { "max-width": "460px", "touch-action": "none" },
        role: "group",
        "aria-label": "Layers saved against disagreement",
        onpointerdown: (e) => (svg.setPointerCapture(e.pointerId), near(e), point.focus(), e.preventDefault()),
        onpointermove: (e) => e.buttons && near(e),
      },
      [
        s("line", { x1: 40, x2: 340, y1: 160, y2: 160, class: "rule" }),
        s("line", { x1: 40, x2: 40, y1: 20, y2: 160, class: "rule" }),
        s("polyline.line.line0", { points: steps.map((r) => `${x(r)},${y(r)}`).join(" ") }),
        steps.map((r) => s("circle", { cx: x(r), cy: y(r), r: 3, class: "dot line0" })),
        point,
      ],
    );
    place = () => {
      const r = steps[at];
      for (const [name, value] of [
        ["cx", x(r)],
        ["cy", y(r)],
        ["aria-valuenow", at],
        ["aria-valuetext", `${num(r.saved_layers)} layers saved, ${num(r.disagreement)} % differ`],
      ])
        point.setAttribute(name, value);
    };
    const label = (px, py, text, anchor = "start") =>
      svg.append(s("text", { x: px, y: py, "text-anchor": anchor, text }));
    label(40, 12, "layers saved");
    label(34, 24, String(Number(deep.toFixed(2))), "end");
    label(34, 164, "0", "end");
    label(40, 176, "0 %", "middle");
    label(190, 190, "predictions that change", "middle");
    label(340, 176, `${num(most)} %`, "middle");
    fill(curve, [svg, asTable("The curve as a table", CURVE, () => curveRows(steps))]);
  }

  load();
  const code = () => [
    `ids = lm.encode(${literal(prompt())})[0]`,
    "examples = unembed.early_exit.examples_of_prefixes(lm, [ids[: i + 1] for i in range(len(ids))])",
    `rule = unembed.early_exit.untrained(lm, ${literal(method)})`,
    "print(rule.tradeoff(examples, 24))",
  ];
  const exported = () => found && { name: "early-exit", json: found, rows: [CURVE, ...curveRows(found.curve.rows)] };
  return Object.assign(exported, { code });
}

const CURVE = ["threshold", "disagreement %", "layers saved", "share saved"];
const curveRows = (steps) => steps.map((r) => [r.threshold ?? "never", r.disagreement, r.saved_layers, r.share_saved]);
