/**
 * Sampled text with scaled memories: its toxicity score, and the cost in perplexity. Texts are hidden until a
 * click.
 */
import { literal } from "../code.js";
import { button, fill, h, many, num, numberBox, s, selectBox, worded } from "../dom.js";
import { about, card, pane, prompt, table } from "../parts.js";
import { activeEdits, go } from "../state.js";

/** Where 0 is in the picture of all scores, right of the names of its lanes. */
const PLOT = 112;

export function render(root, page) {
  const { api, model } = page;
  let shown = false;
  let found = null;
  const samples = numberBox("Samples", 4, { min: 1, max: 16 });
  const seed = numberBox("Seed", 0);
  const out = h("div.stack");
  const start = button("Sample and score", run, { class: "btn main" });
  const prompts = h("textarea", { rows: 2, "aria-label": "Prompts, one a line", spellcheck: "false" });
  prompts.value = prompt();
  const what = selectBox(
    "What is changed",
    [
      ["", "the edits in the tray"],
      ["tray", "scale the memories of these edits"],
    ],
    "",
    { onchange: () => drawDial() },
  );
  const dial = h("input", {
    type: "range",
    min: 0,
    max: 2,
    step: 0.1,
    value: "0",
    "aria-label": "How much of each memory is left",
    oninput: () => drawDial(),
  });
  const dialText = h("span.faint");
  const line = h("label.row", h("span.faint", "off"), h("span", { style: { flex: "1" } }, dial), dialText);
  fill(root, [
    card(
      "Suppression and its cost",
      [worded("samples", samples), worded("seed", seed), start],
      [h("div.stack", prompts, h("div.row", worded("change", what)), line, out, about("suppress"))],
    ),
  ]);

  function drawDial() {
    line.hidden = !what.value;
    dialText.textContent = { 0: "× 0: off", 1: "× 1: unchanged" }[dial.value] ?? `× ${dial.value}`;
  }
  drawDial();
  if (!activeEdits().length)
    fill(out, [
      h("div.note.row", [
        "No edit is on. Choose a concept, or find values that promote words.",
        button("Steer by words", () => go({ path: ["steer"] }), { class: "btn small" }),
      ]),
    ]);
  if (model.can.index)
    api
      .get("/concepts", {}, { fresh: true })
      .then(
        ({ concepts }) =>
          what.append(
            ...concepts
              .slice(0, 50)
              .map((one) => h("option", { value: `=${one.name}` }, `concept ${one.name}, ${one.members}`)),
          ),
        api.fail,
      );

  /** The edits under test. */
  async function chosen() {
    if (!what.value) return activeEdits();
    const members =
      what.value === "tray"
        ? activeEdits().filter((e) => e.target !== "head")
        : (await api.get(`/concepts/${encodeURIComponent(what.value.slice(1))}`, {}, { fresh: true })).members;
    return members.slice(0, 64).map(({ layer, index }) => ({
      target: "coefficient",
      layer,
      index,
      action: "scale",
      value: Number(dial.value),
      positions: "all",
    }));
  }

  async function run() {
    start.disabled = true;
    fill(out, h("p.faint", "Sampling both, then measuring perplexity …"));
    await pane(out, async () => {
      const edits = await chosen();
      if (!edits.length) return fill(out, h("p.note", "No memory is changed: switch an edit on, or choose a concept."));
      const [first, ...further] = prompts.value.split("\n").filter((text) => text.trim());
      const pairs = [];
      await api
        .stream(
          "/labs/suppress",
          {
            prompt: first ?? prompt(),
            further: further.slice(0, 7),
            edits,
            samples: Math.max(1, Math.min(16, Number(samples.value) || 4)),
            seed: Math.max(0, Number(seed.value) || 0),
          },
          (line) => {
            found = line.prompts ? line : { ...line, prompts: (pairs.push(line), pairs) };
            draw();
          },
          { channel: "suppress", what: "Sampling" },
        )
        .catch((error) => {
          if (error.code !== "superseded") throw error;
          const done = pairs.length
            ? `${many(pairs.length, "prompt")} sampled, perplexity not measured`
            : "nothing was measured";
          if (pairs.length) draw("–");
          else fill(out);
          out.prepend(h("p.note", { role: "status" }, `Cancelled: ${done}.`));
        });
    });
    start.disabled = false;
  }

  const SIDES = [
    ["plain", "baseline"],
    ["edited", "with the change"],
  ];
  const mean = (list) => list.reduce((sum, one) => sum + one.score, 0) / list.length;

  /** `missing`: shown instead of an undefined perplexity. */
  function draw(missing = "…") {
    const texts = h("div");
    const all = (side) => found.prompts.flatMap((one) => one[side]);
    const drawTexts = () =>
      fill(texts, [
        shown
          ? h("div.pair", [
              SIDES.map(([side, name]) =>
                h("div", [
                  h("h3", name),
                  h("ol.stack", [
                    all(side).map((one) => h("li", { dir: "auto" }, one.text, h("span.faint", ` ${num(one.score)}`))),
                  ]),
                ]),
              ),
            ])
          : h("div.warn.row", [
              "The sampled texts may be offensive.",
              button("Show them", () => ((shown = true), drawTexts()), { class: "btn small" }),
            ]),
      ]);
    const plot = s(
      "svg",
      {
        viewBox: "0 0 440 74",
        class: "histogram",
        role: "img",
        "aria-label": "The score of every sample, from 0 to 1",
      },
      [
        SIDES.map(([side, name], lane) => [
          s("text", { x: 4, y: 22 + 28 * lane }, name),
          all(side).map((one) =>
            s("circle", { cx: PLOT + (432 - PLOT) * one.score, cy: 18 + 28 * lane, r: 5, class: `dot line${lane}` }, [
              s("title", num(one.score)),
            ]),
          ),
        ]),
        [0, 0.5, 1].map((x) => s("text", { x: PLOT + (432 - PLOT) * x, y: 70, "text-anchor": "middle" }, String(x))),
      ],
    );
    fill(out, [
      table(
        ["", "mean toxicity", "perplexity"],
        [
          ["baseline", mean(all("plain")), found.perplexity_plain ?? missing],
          ["with the change", mean(all("edited")), found.perplexity_edited ?? missing],
        ],
        `Toxicity by the ${found.scorer} scorer, over ${all("plain").length} samples; perplexity on ` +
          `${many(found.cost_tokens, "token")} of WikiText`,
      ),
      h("h3", "Toxicity of every sample"),
      plot,
      found.prompts.length > 1 &&
        table(
          ["prompt", "baseline", "with the change"],
          found.prompts.map((one) => [one.prompt, mean(one.plain), mean(one.edited)]),
          "Mean toxicity by prompt",
        ),
      texts,
    ]);
    drawTexts();
  }

  const code = () => [
    `result = unembed.steering.steer(lm, ${literal(prompt())}, ${activeEdits().length ? "edits" : "[]"}, ` +
      `samples=${samples.value}, seed=${seed.value})`,
    'scorer = unembed.toxicity.open_scorer("linear")',
    'print(scorer.score(result.plain)["toxicity"], scorer.score(result.edited)["toxicity"])',
  ];
  const exported = () =>
    found && {
      name: "toxicity",
      json: found,
      rows: [
        ["prompt", "side", "sample", "toxicity"],
        ...found.prompts.flatMap((one) =>
          SIDES.flatMap(([side, name]) => one[side].map((x, i) => [one.prompt, name, i, x.score])),
        ),
      ],
    };
  return Object.assign(exported, { code });
}
