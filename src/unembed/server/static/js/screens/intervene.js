/** Change memories or heads, and see the next token and a continuation without and with the change. */
import { clamp, fill, fixed, h, num, numberBox, numberCell, percent, promptBox, worded } from "../dom.js";
import { token } from "../islands/tokens.js";
import { answered, card, prompt, table } from "../parts.js";
import { activeEdits, asksAnew, edits, go, setEdits, state, turn } from "../state.js";
import { editsPane } from "./intervene-edits.js";
import { positionsPane } from "./intervene-positions.js";
import { runsPane } from "./intervene-runs.js";
import { samplesPane } from "./intervene-samples.js";
import { continuations } from "./intervene-texts.js";

export function render(root, page) {
  const { api } = page;
  const enter = () => go({ prompt: box.value });
  const box = promptBox("Prompt", enter, { onchange: enter });
  const next = h("div");
  const store = (name) => (event) => turn({ [name]: event.target.value });
  const newTokens = numberBox("New tokens", state().new_tokens || 30, {
    min: 1,
    max: 200,
    onchange: store("new_tokens"),
  });
  const seed = numberBox("Seed; empty for greedy", state().seed, { placeholder: "greedy", onchange: store("seed") });
  const generated = () => clamp(Number(newTokens.value) || 30, 1, 200);
  const both = continuations(api, { seed, generated, finished: () => runs.draw() });
  const ofNext = (all) => preview(api, next, all, samples.suggest);
  const edited = editsPane(page, { preview: ofNext, generated });
  const runs = runsPane(api, restore);
  const places = positionsPane(api);
  const samples = samplesPane(api);
  const controls = [worded("new tokens", newTokens), worded("seed", seed), both.start, both.stop];
  fill(root, [
    h("div.stack.bounded", [
      h("h1.hidden", "Intervene"),
      h("section.prompt", box),
      h("div.two", card("Continuations", controls, both.el), edited.el),
      h("div.two", card("Next token", null, next, places.el), h("div.stack", samples.el, runs.el)),
    ]),
  ]);

  function restore(r) {
    const { max_new_tokens: n, seed: drawn } = r.options;
    setEdits(r.edits.map((e) => ({ ...e, on: true })));
    newTokens.value = String(n);
    seed.value = drawn === null ? "" : String(drawn);
    go({ prompt: r.prompt, new_tokens: newTokens.value, seed: seed.value });
    both.show(r);
  }

  return {
    update(now, before) {
      const opened = before.screen !== now.screen;
      if (opened || now.prompt !== before.prompt) box.value = prompt();
      if (asksAnew(now, before)) {
        if (!opened) both.stale();
        edited.draw();
        ofNext(edits());
        samples.stale();
        places.draw(activeEdits());
      }
      if (opened) runs.draw();
      if (opened && activeEdits().length) both.run();
    },
    compare: both.run,
    key: (event) => event.key === "Escape" && both.cancel(),
    exported: both.exported,
    destroy: () => api.cancel("compare"),
  };
}

/** Show the next token without and with the edits; a newer preview cancels an older one. */
function preview(api, box, all, suggest) {
  const active = all.filter((e) => e.on).map(({ on, ...e }) => e);
  const ask = () => api.post("/next", { prompt: prompt(), edits: active }, { channel: "next" });
  const head = ["token", "baseline", "", ...(active.length ? ["edited", "", "change in points"] : [])];
  return answered(box, ask, ({ rows, provenance }) => {
    const most = Math.max(...rows.flatMap((r) => [r.plain, r.edited]));
    suggest(rows.reduce((best, r) => (r.plain > best.plain ? r : best)).token);
    const bar = (p) => h("span.bar-track", h("span.bar.plus", { style: { width: `${(100 * p) / most}%` } }));
    const cells = (p) => [numberCell(percent(p)), bar(p)];
    const changed = ({ plain, edited }) => [...cells(edited), numberCell(fixed(100 * (edited - plain), 1, true))];
    const line = (row) => [token(row.token), ...cells(row.plain), ...(active.length ? changed(row) : [])];
    return [
      table(head, rows.slice(0, 10).map(line)),
      active.length > 0 && h("p.faint", `KL from the baseline: ${num(provenance.notes.divergence)} nats`),
    ];
  });
}
