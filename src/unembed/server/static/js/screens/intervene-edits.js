/** The edits, each with its value, reference values and scope; suggested first edits; a form for a new one. */
import { announce, button, fill, h, num, numberBox, selectBox, signed } from "../dom.js";
import { token } from "../islands/tokens.js";
import { about, card, link, pane, prompt } from "../parts.js";
import { edits, idOf, setEdits } from "../state.js";
import * as tray from "../tray.js";

const SCOPES = [
  ["all", "everywhere"],
  ["last", "the newest token"],
  ["prompt", "the prompt"],
  ["new", "generated tokens"],
  ["from", "from a position on"],
];

const ACTIONS = [
  ["set", "set to"],
  ["scale", "times"],
  ["add", "plus"],
];

/** The largest value that the server accepts. */
const LARGEST = 1_000_000;
/** A coefficient larger than this multiple of the layer's largest is called extreme. */
const EXTREME = 10;

/** `preview(edits)` is called while a slider moves; `generated()`: the number of new tokens. `{el, draw}` */
export function editsPane(page, { preview, generated }) {
  const { api, model } = page;
  const list = h("div.stack");
  const turns = h("span.row");

  function addForm() {
    const kind = selectBox(
      "What",
      [
        ["coefficient", "memory"],
        ["head", "head"],
      ],
      model.can.memories ? "coefficient" : "head",
    );
    const layer = numberBox("Layer", model.n_layers - 1, { max: model.n_layers - 1 });
    const index = numberBox("Index", 0);
    const add = () => {
      const at = { layer: Number(layer.value), index: Number(index.value) };
      if (kind.value === "head") tray.off(at, "head");
      else tray.set(at);
    };
    return h("details", [
      h("summary", "Add an edit"),
      h("div.edit-form", [
        h("label", "what", kind),
        h("label", "layer", layer),
        h("label", "index", index),
        button("Add", add, { class: "btn" }),
      ]),
    ]);
  }

  function draw() {
    const all = edits();
    fill(turns, tray.undoButtons(), !all.length && page.presets);
    if (!all.length) return suggest();
    const fields = () => [...list.querySelectorAll("input, select")];
    const focused = fields().indexOf(document.activeElement);
    fill(list, [all.map((e, i) => editor(e, i, all))]);
    if (focused >= 0) fields()[focused]?.focus();
  }

  function editor(e, i, all) {
    const change = (part, now = false) => {
      setEdits(
        all.map((x, j) => (i === j ? { ...x, ...part } : x)),
        now,
      );
    };
    let limit = Math.max(8, Math.abs(e.value) * 2);
    // Symmetric logarithm: fine steps near zero, large ones at the ends.
    const toSlider = (x) => (Math.sign(x) * Math.log1p(Math.abs(x))) / Math.log1p(limit);
    const fromSlider = (s) => Math.sign(s) * Math.expm1(Math.abs(s) * Math.log1p(limit));
    const number = numberBox("Value", Number(e.value.toPrecision(5)), {
      min: -LARGEST,
      max: LARGEST,
      step: "any",
      onchange: () => {
        if (number.value && number.validity.valid) change({ value: number.valueAsNumber });
        else announce(`A number from −${LARGEST.toLocaleString("en")} to ${LARGEST.toLocaleString("en")}`);
      },
    });
    const slider = h("input", {
      type: "range",
      min: -1,
      max: 1,
      step: 0.005,
      value: String(toSlider(e.value)),
      "aria-label": "Value",
      oninput: () => {
        const value = Number(fromSlider(Number(slider.value)).toPrecision(3));
        number.value = String(value);
        all[i].value = value;
        preview(all);
      },
      onchange: () => change({ value: number.valueAsNumber }),
    });
    const action = selectBox(
      "How",
      ACTIONS.filter(([name]) => name === "scale" || e.target !== "head"),
      e.action,
      { onchange: () => change({ action: action.value }) },
    );
    const chosen = Array.isArray(e.positions);
    const where = chosen ? "chosen" : e.positions;
    const move = async (kind, from) => change({ positions: await places(kind, from).catch(api.fail) });
    const scope = selectBox(
      "Where",
      [...SCOPES, ...(chosen ? [["chosen", `positions ${e.positions[0]} to ${e.positions.at(-1)}`]] : [])],
      where,
      { onchange: () => move(scope.value) },
    );
    const from =
      chosen &&
      numberBox("First position", e.positions[0], {
        onchange: () => from.validity.valid && from.value && move("from", from.valueAsNumber),
      });
    const far = h("p.warn", { hidden: true });
    const ticks = h("span.ticks-row");
    const spots = h("span.row");
    const landmarks = async () => {
      const at = `/memories/${e.layer}/${e.index}`;
      const known = [
        ["Off", 0],
        [
          "Here",
          (await api.post(`${at}/activations`, { prompt: prompt() }, { channel: `here ${at}` })).coefficients.at(-1),
          "the coefficient at the prompt's last token, without edits",
        ],
      ];
      const draw = () => {
        limit = Math.max(limit, ...known.map(([, x]) => 1.2 * Math.abs(x)));
        slider.value = String(toSlider(number.valueAsNumber));
        fill(ticks, [
          e.action === "set" &&
            known.map(([, x]) => h("i", { style: { left: `calc(8px + (100% - 16px) * ${(1 + toSlider(x)) / 2})` } })),
        ]);
        fill(spots, [
          known.slice(1).map(([text, x, title]) =>
            button(`${text} ${num(x)}`, () => change({ action: "set", value: Number(x.toPrecision(4)) }), {
              class: "quiet",
              title: `set to ${title}`,
            }),
          ),
        ]);
      };
      draw();
      if (!model.can.index) return;
      const usual = await api.get(`${at}/coefficients`, {}, { channel: `usual ${at}` });
      known.push(
        ["99th percentile", usual.high, `what 99 % of ${usual.sampled.toLocaleString("en")} sampled tokens stay below`],
        ["Largest in the corpus", usual.statistics.largest, "its largest coefficient on the index's corpus"],
        ["Largest of the layer", usual.layer_largest, "the largest that any memory of the layer had"],
      );
      draw();
      const beyond = Math.abs(e.value) / usual.layer_largest;
      far.hidden = e.action !== "set" || !(beyond > EXTREME);
      far.textContent =
        `${num(e.value)} is ${num(beyond)} times the largest coefficient of the layer on the corpus: the final ` +
        "norm then leaves little but this value, whatever the prompt is.";
    };
    if (e.target !== "head") landmarks().catch(api.fail);
    const name = tray.name(e);
    return h("div.row", [
      h("label.check", [
        h("input", {
          type: "checkbox",
          checked: e.on,
          "aria-label": `${name} on`,
          onchange: (event) => change({ on: event.target.checked }),
        }),
      ]),
      link(e, e.target),
      action,
      number,
      h("span.slider", slider, ticks),
      scope,
      from,
      button("Off", () => change({ action: "scale", value: 0 }), { class: "btn small" }),
      e.target !== "head" &&
        button("Flip", () => change({ action: "scale", value: -1 }), {
          class: "btn small",
          title: "turn the sign round",
        }),
      button("×", () => setEdits(all.filter((_, j) => j !== i)), {
        class: "btn small",
        "aria-label": `Remove ${name}`,
      }),
      spots,
      far,
    ]);
  }

  /** The positions that a scope means for this prompt. */
  async function places(kind, first) {
    if (kind === "all" || kind === "last") return kind;
    const n = (await api.get("/tokenize", { text: prompt() })).ids.length;
    const from = { prompt: 0, new: n }[kind] ?? first ?? n - 1;
    const to = kind === "prompt" ? n : Math.max(n + generated(), from + 1);
    return Array.from({ length: to - from }, (_, i) => from + i);
  }

  async function suggest() {
    fill(list, h("p.soft", "Nothing is changed yet."));
    await pane(list, async () => {
      const data = await api.trace(prompt(), [], { channel: "suggest" });
      if (!model.can.memories) return;
      const found = await api.get(`/traces/${data.id}`, { position: -1, memories: 5, top: 10 }, { channel: "suggest" });
      if (edits().length) return; // an edit was added or restored meanwhile
      const best = found.layers
        .flatMap((one) => one.sub_updates.slice(0, 2))
        .sort((a, b) => Math.abs(b.score) - Math.abs(a.score))
        .slice(0, 3);
      fill(list, [
        h("p.soft", "Nothing is changed yet. Memories that move ", token(found.target.token), " most here:"),
        h("div.row", [
          best.map((u) =>
            button(`Switch off ${idOf(u)} (${signed(u.score)})`, () => tray.off(u), {
              class: "btn small",
              title: u.top_tokens.slice(0, 8).join(" "),
            }),
          ),
        ]),
      ]);
    });
  }

  return { el: card("Edits", turns, list, addForm(), about("edits")), draw };
}
