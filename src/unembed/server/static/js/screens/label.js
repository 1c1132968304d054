/** Annotation, as in the papers: a blind queue of keys or values, patterns with enough members, agreement. */
import { button, fill, h, num, numberBox, say, segmented, textBox, worded } from "../dom.js";
import { token } from "../islands/tokens.js";
import { authorBox, withdraw } from "../names.js";
import { card, empty, pane, table, written } from "../parts.js";
import { save as saveFile } from "../sharing.js";

export function render(root, page) {
  const { api, model } = page;
  if (!model.can.index) {
    fill(root, empty("Labels are kept in an index", written(h("span"), "unindexed")));
    return { update() {} };
  }
  let what = "value";
  let queue = null;
  let item = null;
  let patterns = [];
  let ids = [];
  const settings = () => ({ what, seed: Number(seed.value) || 0, per_layer: 10, random_per_layer: 5 });
  const who = authorBox(() => load());
  const seed = numberBox("Seed of the queue", 0, { onchange: () => load() });
  const progress = h("p", { class: "soft", role: "status" });
  const stage = h("div", { class: "stack" });
  const agreed = h("div");
  const file = h("input", {
    type: "file",
    accept: ".jsonl,.ndjson",
    class: "hidden",
    tabindex: "-1",
    "aria-label": "File of labels",
    onchange: bring,
  });
  fill(
    root,
    h(
      "div",
      { class: "stack queue" },
      h(
        "div",
        { class: "row" },
        h("h1", {}, "Label"),
        segmented(
          "What",
          [
            ["value", "Values"],
            ["key", "Keys"],
          ],
          what,
          (v) => ((what = v), load()),
        ),
        h("span", { class: "spacer" }),
        worded("queue", seed),
        who,
      ),
      progress,
      h("section", { class: "card" }, stage),
      card(
        "Agreement",
        [
          button("Export", bringOut, { class: "btn small" }),
          button("Import", () => file.click(), { class: "btn small" }),
          file,
        ],
        agreed,
      ),
    ),
  );

  const load = () =>
    pane(stage, async () => {
      queue = await api.get(
        "/annotations/queue",
        { ...settings(), author: who.value },
        { channel: "queue", fresh: true },
      );
      progress.textContent = `${queue.done.length} of ${queue.items} done${who.value ? ` by ${who.value}` : ""}. The queue is blind: some items are random controls.`;
      const done = new Set(queue.done);
      const left = Array.from({ length: queue.items }, (_, i) => i).filter((i) => !done.has(i));
      const next = left.find((i) => i > (item?.number ?? -1)) ?? left[0];
      if (!who.value)
        fill(stage, empty("Annotator name", "Write your name above. Agreement is computed between annotators."));
      else if (next === undefined)
        fill(stage, empty("The queue is done", "Thank you. Another seed draws another one."));
      else await show(next);
      agreement();
    });

  async function show(number) {
    patterns = [];
    item = await api.get(`/annotations/queue/${number}`, settings(), { channel: "item" });
    draw();
  }

  function draw() {
    const rules = queue.rules;
    const name = textBox("Describe the pattern", {
      placeholder: "describe the pattern in a few words",
      style: { flex: 1 },
    });
    let kind = rules.kinds[0];
    const things = item.tokens || item.prefixes;
    const boxes = things.map((_t, i) => h("input", { type: "checkbox", "aria-label": `${i + 1}`, onchange: count }));
    const counter = h("span", { class: "faint" });
    const add = button(
      "Add pattern",
      () => {
        const members = ticked();
        patterns.push({ label: name.value.trim(), kind, members });
        draw();
      },
      { class: "btn", disabled: true },
    );
    const ticked = () => boxes.flatMap((b, i) => (b.checked ? [i] : []));
    function count() {
      const n = ticked().length;
      counter.textContent = `${n} ticked, at least ${rules.at_least}`;
      add.disabled = n < rules.at_least || !name.value.trim();
    }
    name.addEventListener("input", count);
    count();
    fill(
      stage,
      h(
        "div",
        { class: "row" },
        h("h2", {}, `Item ${item.number + 1}`),
        h("span", { class: "spacer" }),
        button("Skip (s)", skip, { class: "btn small" }),
        button("Undo last (u)", undo, { class: "btn small", disabled: !ids.length }),
      ),
      h("p", { class: "why" }, rules.instruction),
      item.tokens
        ? h(
            "div",
            { class: "ticks" },
            item.tokens.map((t, i) =>
              h(
                "label",
                { title: t.description || "" },
                boxes[i],
                token(t.token),
                t.description ? h("span", { class: "faint" }, t.description.slice(0, 44)) : null,
              ),
            ),
          )
        : h(
            "ol",
            {},
            item.prefixes.map((p, i) =>
              h(
                "li",
                { class: "trigger" },
                boxes[i],
                h("span", { class: "context", dir: "auto" }, p.prefix.slice(-260), h("mark", {}, p.token)),
                h("span", {}),
              ),
            ),
          ),
      h(
        "div",
        { class: "row" },
        name,
        segmented(
          "Kind",
          rules.kinds.map((k) => [k, k]),
          kind,
          (v) => (kind = v),
        ),
        add,
        counter,
      ),
      patterns.map((p, i) =>
        h(
          "p",
          { class: "row" },
          h("span", { class: "tag" }, p.kind),
          h("b", {}, p.label),
          h("span", { class: "faint" }, `${p.members.length} members`),
          button("remove", () => (patterns.splice(i, 1), draw()), { class: "quiet" }),
        ),
      ),
      h(
        "div",
        { class: "row" },
        button(patterns.length ? "Save and next" : "No pattern, next", store, { class: "btn main" }),
        h("span", { class: "faint" }, "Enter"),
      ),
    );
  }

  async function store() {
    try {
      ids = (await api.send("/annotations", { ...settings(), number: item.number, author: who.value, patterns })).ids;
      say("saved");
      load();
    } catch (error) {
      api.fail(error);
    }
  }

  async function undo() {
    await withdraw(ids, who.value);
    ids = [];
    item = { number: item.number - 2 };
    load();
  }

  const skip = () => load();

  const agreement = () =>
    pane(agreed, async () => {
      const { questions } = await api.get("/annotations/agreement", {}, { fresh: true });
      fill(
        agreed,
        questions.some((q) => q.items)
          ? table(
              ["question", "items", "Fleiss' kappa", "Cohen's kappa of two"],
              questions.map((q) => [
                q.question,
                q.items,
                q.fleiss ?? "–",
                Object.entries(q.pairs)
                  .map(([both, k]) => `${both}: ${num(k)}`)
                  .join("; "),
              ]),
            )
          : h("p", { class: "faint" }, "Agreement appears when two people have annotated the same item."),
      );
    });

  async function bringOut() {
    const answer = await fetch("api/v1/annotations/export");
    saveFile("labels.jsonl", await answer.text(), "application/x-ndjson");
  }

  async function bring() {
    try {
      const found = await api.send("/annotations/import", { jsonl: await file.files[0].text() });
      progress.textContent = `${found.added} labels added, ${found.known} were here already.`;
      agreement();
    } catch (error) {
      api.fail(error);
    } finally {
      file.value = "";
    }
  }

  return {
    update(now, before) {
      if (before.screen !== now.screen) return load();
    },
    key(event) {
      if (!item || !queue) return false;
      if (event.key === "s") return (skip(), true);
      if (event.key === "u" && ids.length) return (undo(), true);
      if (event.key === "Enter" && event.target === document.body) return (store(), true);
      return false;
    },
    exported: () => queue && { name: "queue", json: queue },
  };
}
