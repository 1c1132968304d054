/** Change memories or heads; see the next token and two continuations side by side. */
import { button, fill, fixed, h, num, numberBox, percent, worded } from "../dom.js";
import { token, visible } from "../islands/tokens.js";
import { card, failure, pane, prompt, table } from "../parts.js";
import { activeEdits, asksAnew, edits, go, setEdits, state, turn } from "../state.js";
import { editsPane } from "./intervene-edits.js";
import { runsPane } from "./intervene-runs.js";

export function render(root, page) {
  const { api } = page;
  const box = h("textarea", {
    rows: 1,
    "aria-label": "Prompt",
    spellcheck: "false",
    onchange: () => go({ prompt: box.value }),
    onkeydown: (e) => e.key === "Enter" && !e.shiftKey && (e.preventDefault(), go({ prompt: box.value })),
  });
  const next = h("div");
  const left = h("div.text", { "aria-live": "off" });
  const right = h("div.text");
  let shown = null; // the last generated texts
  const summary = h("p.soft", { role: "status" });
  const newTokens = numberBox("New tokens", state().new_tokens || 30, {
    min: 1,
    max: 200,
    onchange: () => turn({ new_tokens: newTokens.value }),
  });
  const seed = numberBox("Seed; empty for greedy", state().seed, {
    placeholder: "greedy",
    onchange: () => turn({ seed: seed.value }),
  });
  const runButton = button("Run both", run, { class: "btn main" });
  const stop = button("Stop", () => api.cancel("compare"), { class: "btn", hidden: true });
  let running = false;
  let changed = false; // the question is no longer that of the last run
  const generated = () => Math.max(1, Math.min(200, Number(newTokens.value) || 30));
  const edited = editsPane(page, { preview, generated });
  const runs = runsPane(api, restore);
  fill(root, [
    h("div.stack.bounded", [
      h("section.prompt", box),
      h("div.two", [
        card(
          "Continuations",
          [worded("new tokens", newTokens), worded("seed", seed), runButton, stop],
          [summary, h("div.pair", h("div", h("h3", "Baseline"), left), h("div", h("h3", "With the edits"), right))],
        ),
        edited.el,
      ]),
      h("div.two", card("Next token", null, next), runs.el),
    ]),
  ]);

  /** Only the newest value is sent; older requests are cancelled. */
  function preview(all = edits()) {
    return pane(next, async () => {
      const active = all.filter((e) => e.on).map(({ on, ...e }) => e);
      const { rows, provenance } = await api.post("/next", { prompt: prompt(), edits: active }, { channel: "next" });
      const most = Math.max(...rows.flatMap((r) => [r.plain, r.edited]));
      const bar = (p) => h("span.bar-track", h("span.bar.plus", { style: { width: `${(100 * p) / most}%` } }));
      fill(next, [
        table(
          ["token", "baseline", "", "edited", "", "change (percentage points)"],
          rows
            .slice(0, 10)
            .map((r) => [
              token(r.token),
              h("td.n", percent(r.plain)),
              bar(r.plain),
              h("td.n", percent(r.edited)),
              bar(r.edited),
              h("td.n", fixed(100 * (r.edited - r.plain), 1, true)),
            ]),
        ),
        active.length ? h("p.faint", `KL from the baseline: ${num(provenance.notes.divergence)} nats`) : null,
      ]);
    });
  }

  async function run() {
    running = true;
    changed = false;
    stop.hidden = false;
    runButton.disabled = true;
    const text = prompt();
    const given = () => h("span.given", text);
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
      max_new_tokens: generated(),
      ...(seed.value === "" ? {} : { seed: Number(seed.value) }),
    };
    shown = { prompt: text, edits: body.edits, ...sides };
    if (!body.edits.length) fill(right, h("span.faint", "No edit is on."));
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
              [line.token],
            );
            pane.append(span);
            spans[line.side].push(span);
            sides[line.side].push({ id: line.id, token: line.token, probability: line.probability });
            compared(sides[line.side].length - 1);
          } else if (line.kind === "summary") {
            fill(summary, [
              line.edits.length
                ? line.diverges_at === null
                  ? "The continuations are the same."
                  : `Diverges at generated token ${line.diverges_at + 1}.`
                : "",
            ]);
            runs.draw();
          }
        },
        { channel: "compare", what: "Generating" },
      );
    } catch (error) {
      if (error.code === "superseded") fill(summary, "Stopped.");
      else failure(summary, error, run);
    } finally {
      running = false;
      stop.hidden = true;
      runButton.disabled = false;
      if (changed) stale();
    }
  }

  const stale = () => fill(summary, "Changed since the last run.");

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
      fill(pane, h("span.given", r.prompt), r.texts[side] ?? "");
    shown = {
      prompt: r.prompt,
      edits: r.edits,
      base: [{ token: r.texts.base ?? "" }],
      edit: [{ token: r.texts.edit ?? "" }],
    };
    fill(summary, `Run ${r.run}, as it was.`);
  }

  return {
    update(now, before) {
      const opened = before.screen !== now.screen;
      if (opened || now.prompt !== before.prompt) box.value = prompt();
      if (asksAnew(now, before)) {
        changed = !opened;
        if (changed && !running) stale();
        edited.draw();
        preview();
      }
      if (opened) runs.draw();
      if (opened && activeEdits().length) run();
    },
    /** Run both sides, unless a run is in progress. */
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
