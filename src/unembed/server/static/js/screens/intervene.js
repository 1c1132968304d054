/** Change memories or heads; see the next token and two continuations side by side. */
import { button, fill, h, num, numberBox, percent, selectBox, signed, worded } from "../dom.js";
import { token, visible } from "../islands/tokens.js";
import { about, card, link, pane, prompt, table } from "../parts.js";
import { activeEdits, asksAnew, edits, go, setEdits, state, turn } from "../state.js";
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

export function render(root, page) {
  const { api, model } = page;
  const box = h("textarea", {
    rows: 1,
    "aria-label": "Prompt",
    spellcheck: "false",
    onchange: () => go({ prompt: box.value }),
  });
  const list = h("div", { class: "stack" });
  const next = h("div");
  const left = h("div", { class: "text", "aria-live": "off" });
  const right = h("div", { class: "text" });
  let shown = null; // what was generated last
  const summary = h("p", { class: "soft", role: "status" });
  const history = h("div");
  const newTokens = numberBox("New tokens", state().new_tokens || 30, {
    min: 1,
    max: 200,
    onchange: () => turn({ new_tokens: newTokens.value }),
  });
  const seed = numberBox("Seed; empty for greedy", state().seed, {
    placeholder: "greedy",
    onchange: () => turn({ seed: seed.value }),
  });
  const turns = h("span", { class: "row" });
  const runButton = button("Run both", run, { class: "btn main" });
  const stop = button("Stop", () => api.cancel("compare"), { class: "btn", hidden: true });
  const compared = h("div");
  const picked = new Set();
  let running = false;
  fill(
    root,
    h(
      "div",
      { class: "stack" },
      h("section", { class: "prompt" }, box),
      h(
        "div",
        { class: "two" },
        card(
          "Continuations",
          [worded("new tokens", newTokens), worded("seed", seed), runButton, stop],
          summary,
          h(
            "div",
            { class: "pair" },
            h("div", {}, h("h3", {}, "Baseline"), left),
            h("div", {}, h("h3", {}, "With the edits"), right),
          ),
        ),
        card("Edits", turns, list, addForm(), about("edits")),
      ),
      h(
        "div",
        { class: "two" },
        card("Next token", null, next),
        card("Runs", h("span", { class: "faint" }, "tick two to compare"), history, compared),
      ),
    ),
  );

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
    return h(
      "details",
      {},
      h("summary", {}, "Add an edit"),
      h(
        "div",
        { class: "edit-form" },
        h("label", {}, "what", kind),
        h("label", {}, "layer", layer),
        h("label", {}, "index", index),
        button("Add", add, { class: "btn" }),
      ),
    );
  }

  function drawEdits() {
    const all = edits();
    fill(turns, tray.undoButtons(), !all.length && page.presets);
    if (!all.length) return suggest();
    const fields = () => [...list.querySelectorAll("input, select")];
    const focused = fields().indexOf(document.activeElement);
    fill(
      list,
      all.map((e, i) => editor(e, i, all)),
    );
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
    // Symmetric logarithm: fine around zero, far at the ends.
    const toSlider = (x) => (Math.sign(x) * Math.log1p(Math.abs(x))) / Math.log1p(limit);
    const fromSlider = (s) => Math.sign(s) * Math.expm1(Math.abs(s) * Math.log1p(limit));
    const number = numberBox("Value", Number(e.value.toPrecision(5)), {
      min: null,
      step: "any",
      onchange: () => Number.isFinite(number.valueAsNumber) && change({ value: number.valueAsNumber }),
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
    const ticks = h("span", { class: "ticks-row" });
    const spots = h("span", { class: "row" });
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
        fill(
          ticks,
          e.action === "set" &&
            known.map(([, x]) => h("i", { style: { left: `calc(8px + (100% - 16px) * ${(1 + toSlider(x)) / 2})` } })),
        );
        fill(
          spots,
          known.slice(1).map(([text, x, title]) =>
            button(`${text} ${num(x)}`, () => change({ action: "set", value: Number(x.toPrecision(4)) }), {
              class: "quiet",
              title: `set to ${title}`,
            }),
          ),
        );
      };
      draw();
      if (!model.can.index) return;
      const usual = await api.get(`${at}/coefficients`, {}, { channel: `usual ${at}` });
      known.push(
        ["99th percentile", usual.high, `what 99 % of ${usual.sampled.toLocaleString("en")} sampled tokens stay below`],
        ["Most seen", usual.statistics.largest, "its largest coefficient on the index's corpus"],
        ["Most of the layer", usual.layer_largest, "the largest that any memory of the layer had"],
      );
      draw();
    };
    if (e.target !== "head") landmarks().catch(api.fail);
    const name = tray.name(e);
    return h(
      "div",
      { class: "row" },
      h(
        "label",
        { class: "check" },
        h("input", {
          type: "checkbox",
          checked: e.on,
          "aria-label": `${name} on`,
          onchange: (event) => change({ on: event.target.checked }),
        }),
      ),
      link(e, e.target),
      action,
      number,
      h("span", { class: "slider" }, slider, ticks),
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
    );
  }

  /** The positions that a scope means for this prompt. */
  async function places(kind, first) {
    if (kind === "all" || kind === "last") return kind;
    const n = (await api.get("/tokenize", { text: prompt() })).ids.length;
    const from = { prompt: 0, new: n }[kind] ?? first ?? n - 1;
    const to = kind === "prompt" ? n : Math.max(n + Number(newTokens.value || 30), from + 1);
    return Array.from({ length: to - from }, (_, i) => from + i);
  }

  async function suggest() {
    fill(list, h("p", { class: "soft" }, "Nothing is changed yet."));
    await pane(list, async () => {
      const data = await api.trace(prompt(), [], { channel: "suggest" });
      if (!model.can.memories) return;
      const found = await api.get(`/traces/${data.id}`, { position: -1, memories: 5, top: 10 }, { channel: "suggest" });
      if (edits().length) return; // one was made, or brought back, meanwhile
      const best = found.layers
        .flatMap((one) => one.sub_updates.slice(0, 2))
        .sort((a, b) => Math.abs(b.score) - Math.abs(a.score))
        .slice(0, 3);
      fill(
        list,
        h(
          "p",
          { class: "soft" },
          "Nothing is changed yet. Memories that move ",
          token(found.target.token),
          " most here:",
        ),
        h(
          "div",
          { class: "row" },
          best.map((u) =>
            button(`Switch off L${u.layer}M${u.index} (${signed(u.score)})`, () => tray.off(u), {
              class: "btn small",
              title: u.top_tokens.slice(0, 8).join(" "),
            }),
          ),
        ),
      );
    });
  }

  /** The newest value wins: older questions are dropped on the way. */
  const preview = (all = edits()) =>
    pane(next, async () => {
      const active = all.filter((e) => e.on).map(({ on, ...e }) => e);
      const { rows, provenance } = await api.post("/next", { prompt: prompt(), edits: active }, { channel: "next" });
      const most = Math.max(...rows.flatMap((r) => [r.plain, r.edited]));
      const bar = (p, cls) =>
        h("span", { class: "bar-track" }, h("span", { class: `bar ${cls}`, style: { width: `${(100 * p) / most}%` } }));
      fill(
        next,
        table(
          ["token", "baseline", "", "edited", "", "change (percentage points)"],
          rows
            .slice(0, 10)
            .map((r) => [
              token(r.token),
              percent(r.plain),
              bar(r.plain, "plus"),
              percent(r.edited),
              bar(r.edited, "minus"),
              h(
                "td",
                { class: "n" },
                `${r.edited < r.plain ? "−" : "+"}${Math.abs(100 * (r.edited - r.plain)).toFixed(1)}`,
              ),
            ]),
        ),
        active.length
          ? h("p", { class: "faint" }, `KL from the baseline: ${num(provenance.notes.divergence)} nats`)
          : null,
      );
    });

  async function run() {
    running = true;
    stop.hidden = false;
    runButton.disabled = true;
    const text = prompt();
    const given = () => h("span", { class: "given" }, text);
    fill(left, given());
    fill(right, given());
    const sides = { base: [], edit: [] };
    const spans = { base: [], edit: [] };
    let diverged = false;
    /** A token that both sides have is dimmed on both; the first that only one has is marked on both. */
    const compared = (i) => {
      const [a, b] = [sides.base[i], sides.edit[i]];
      if (!a || !b || diverged) return;
      diverged = a.id !== b.id;
      for (const side of [spans.base, spans.edit]) side[i].className = diverged ? "diverges" : "common";
    };
    const started = performance.now();
    let first = 0;
    const body = {
      prompt: text,
      edits: activeEdits(),
      max_new_tokens: Math.max(1, Math.min(200, Number(newTokens.value) || 30)),
      ...(seed.value === "" ? {} : { seed: Number(seed.value) }),
    };
    shown = { prompt: text, edits: body.edits, ...sides };
    if (!body.edits.length) fill(right, h("span", { class: "faint" }, "No edit is on."));
    fill(summary);
    try {
      await api.stream(
        "/compare",
        body,
        (line) => {
          if (!first) {
            first = performance.now();
            performance.measure("first-token", { start: started, end: first });
          }
          if (line.kind === "token") {
            const pane = line.side === "base" ? left : right;
            const span = h(
              "span",
              {
                title: `${percent(line.probability)}; then ${line.candidates
                  .slice(0, 4)
                  .map((c) => `${visible(c[1])} ${percent(c[2])}`)
                  .join(", ")}`,
              },
              line.token,
            );
            pane.append(span);
            spans[line.side].push(span);
            sides[line.side].push({ id: line.id, token: line.token, probability: line.probability });
            compared(sides[line.side].length - 1);
          } else if (line.kind === "summary") {
            fill(
              summary,
              line.edits.length
                ? line.diverges_at === null
                  ? "The continuations are the same."
                  : `Diverges at generated token ${line.diverges_at + 1}.`
                : "",
            );
            runs();
          }
        },
        { channel: "compare", what: "Generating" },
      );
    } catch (error) {
      if (error.code === "superseded") fill(summary, "Stopped.");
      else {
        fill(summary, h("span", { class: "warn" }, [error.message, error.why, error.fix].filter(Boolean).join(". ")));
        api.fail(error);
      }
    } finally {
      running = false;
      stop.hidden = true;
      runButton.disabled = false;
    }
  }

  const runs = () =>
    pane(history, async () => {
      const found = (await api.get("/runs", {}, { fresh: true })).runs.reverse();
      fill(
        history,
        found.length
          ? h(
              "ul",
              { class: "runs" },
              found.slice(0, 12).map((r) =>
                h(
                  "li",
                  {},
                  h("input", {
                    type: "checkbox",
                    checked: picked.has(r.run),
                    "aria-label": `Compare run ${r.run}`,
                    onchange: () => pick(r.run),
                  }),
                  h(
                    "button",
                    { type: "button", onclick: () => restore(r) },
                    h("b", {}, `${r.run} `),
                    h(
                      "span",
                      {},
                      h("span", { class: "faint" }, `${r.prompt.length > 34 ? `… ${r.prompt.slice(-32)}` : r.prompt} `),
                      made(r),
                      h("span", { class: "faint" }, r.diverges_at === null ? "" : `, diverges at ${r.diverges_at + 1}`),
                    ),
                  ),
                ),
              ),
            )
          : h("p", { class: "faint" }, "Every run stays here with its edits, until the server stops."),
      );
      const two = found.filter((r) => picked.has(r.run)).reverse();
      if (two.length < 2) return fill(compared);
      const [a, b] = two.map((r) => r.texts.edit ?? r.texts.base);
      let same = 0;
      while (same < a.length && a[same] === b[same]) same++;
      fill(
        compared,
        h(
          "div",
          { class: "pair" },
          two.map((r, i) =>
            h(
              "div",
              {},
              h("h3", {}, `Run ${r.run}: ${made(r)}`),
              h(
                "div",
                { class: "text" },
                h("span", { class: "given" }, r.prompt),
                h("span", { class: "common" }, a.slice(0, same)),
                h("span", { class: "diverges" }, [a, b][i].slice(same)),
              ),
            ),
          ),
        ),
        h(
          "p",
          { class: "faint" },
          same === a.length && same === b.length ? "The same text." : `The same for ${same} characters.`,
        ),
      );
    });

  const made = (r) => (r.edits.length ? tray.said(r.edits) : "no edits");

  /** Two runs at most: a third replaces the first. */
  function pick(run) {
    if (!picked.delete(run)) picked.add(run);
    if (picked.size > 2) picked.delete([...picked][0]);
    runs();
  }

  function restore(r) {
    setEdits(r.edits.map((e) => ({ ...e, on: true })));
    go({
      prompt: r.prompt,
      new_tokens: String(r.options.max_new_tokens),
      seed: r.options.seed === null ? "" : String(r.options.seed),
    });
    newTokens.value = String(r.options.max_new_tokens);
    seed.value = r.options.seed === null ? "" : String(r.options.seed);
    for (const [pane, side] of [
      [left, "base"],
      [right, "edit"],
    ])
      fill(pane, h("span", { class: "given" }, r.prompt), r.texts[side] ?? "");
    shown = {
      prompt: r.prompt,
      edits: r.edits,
      base: [{ token: r.texts.base ?? "" }],
      edit: [{ token: r.texts.edit ?? "" }],
    };
  }

  return {
    update(now, before) {
      const opened = before.screen !== now.screen;
      if (opened || now.prompt !== before.prompt) box.value = prompt();
      if (asksAnew(now, before)) {
        if (!running && !opened) fill(summary, "Changed since the last run.");
        drawEdits();
        preview();
      }
      if (opened) runs();
      if (opened && activeEdits().length) run();
    },
    /** Run both sides; a run that is under way goes on. */
    compare: () => running || run(),
    key(event) {
      if (event.key === "Escape" && running) return (api.cancel("compare"), true);
      return false;
    },
    exported: () =>
      shown && {
        name: "comparison",
        json: shown,
        rows: [
          ["side", "generated_token", "id", "token", "probability"],
          ...["base", "edit"].flatMap((side) =>
            shown[side].map((one, i) => [side, i + 1, one.id ?? "", one.token, one.probability ?? ""]),
          ),
        ],
      },
    destroy: () => api.cancel("compare"),
  };
}
