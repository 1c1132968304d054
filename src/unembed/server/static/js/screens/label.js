/** Annotation, as in the papers: a blind queue of keys or values, patterns with enough members, agreement. */
import * as api from "../api.js";
import { announce, button, fill, h, num, numberBox, segmented, textBox, worded } from "../dom.js";
import { token } from "../islands/tokens.js";
import { exportLabels, noIndex } from "../labels.js";
import { authorBox, withdraw } from "../names.js";
import { card, empty, noMemories, pane, table } from "../parts.js";

const CONFIDENCES = [["", "–"], ...[1, 2, 3, 4, 5].map((n) => [String(n), String(n)])];

/** Unsaved work of an annotator, stored in this browser until it is saved. */
const draftKey = (author, { what, seed }, number) => `draft ${author} ${what} ${seed} ${number}`;

/** The beginning of a definition, up to the end of a word. */
const shortened = (text) => (text.length > 44 ? `${text.slice(0, 44).replace(/\s*\S*$/, "")} …` : text);

export function render(root, page) {
  const { model } = page;
  if (!model.can.memories) return noMemories(root);
  if (!model.can.index) {
    noIndex(root, "Labels are stored in an index.");
    return { update() {} };
  }
  let what = "value";
  let queue = null;
  let item = null;
  let draft = null;
  /** Items already visited, newest last: `{number, ids}` with the ids of the labels stored for each. */
  let past = [];
  let busy = false;
  const settings = () => ({ what, seed: Number(seed.value) || 0, per_layer: 10, random_per_layer: 5 });
  const who = authorBox(() => restart());
  who.addEventListener("keydown", (e) => e.key === "Enter" && queueCard.focus()); // from now on keys are commands
  const seed = numberBox("Seed of the queue", 0, { onchange: () => restart() });
  const progress = h("p.soft", { role: "status" });
  const note = h("p.warn", { role: "alert", hidden: true });
  const stage = h("div.stack");
  const agreed = h("div");
  const file = h("input", {
    type: "file",
    accept: ".jsonl,.ndjson",
    class: "hidden",
    tabindex: "-1",
    "aria-label": "File of labels",
    onchange: importLabels,
  });
  const kinds = [
    ["value", "Values"],
    ["key", "Keys"],
  ];
  const queueCard = h("section.card", { tabindex: "-1", onkeydown: onStageKey }, note, stage);
  fill(root, [
    h("div.stack.queue", [
      h("div.row", [
        h("h1", "Label"),
        segmented("What", kinds, what, (value) => {
          what = value;
          restart();
        }),
        h("span.spacer"),
        worded("seed of the queue", seed),
        worded("annotator name", who),
      ]),
      progress,
      queueCard,
      card(
        "Agreement",
        [
          button("Export", exportLabels, { class: "btn small" }),
          button("Import", () => file.click(), { class: "btn small" }),
          file,
        ],
        agreed,
      ),
    ]),
  ]);

  /** Start over for another queue or annotator. */
  function restart() {
    item = draft = null;
    past = [];
    return load();
  }

  /** Show an item: `number`, or the next one that this author has not done. */
  const load = (number) =>
    pane(stage, async () => {
      note.hidden = true;
      const filters = settings();
      const last = item?.number ?? -1; // before the first await, so that two calls do not skip an item
      queue = await api.get("/annotations/queue", { ...filters, author: who.value }, { channel: "queue", fresh: true });
      progress.textContent =
        `${queue.done.length} of ${queue.items} ${what}s done${who.value ? ` by ${who.value}` : ""}. The queue is ` +
        "blind: some items are random controls.";
      const done = new Set(queue.done);
      const left = Array.from({ length: queue.items }, (_, i) => i).filter((i) => !done.has(i));
      const next = number ?? left.find((i) => i > last) ?? left[0];
      if (!who.value)
        fill(stage, empty("Annotator name", "Write your name above. Agreement is computed between annotators."));
      else if (next === undefined) {
        item = null;
        fill(stage, empty("The queue is done", "Thank you. Another seed draws another queue."));
      } else {
        item = await api.get(`/annotations/queue/${next}`, filters, { channel: "item" });
        draft = readDraft();
        draw();
      }
      agreement();
    });

  function readDraft() {
    const begun = { name: "", members: [], kind: queue.rules.kinds[0], confidence: "", patterns: [] };
    const stored = localStorage.getItem(draftKey(who.value, settings(), item.number));
    return stored ? { ...begun, ...JSON.parse(stored) } : begun;
  }

  const keepDraft = () => localStorage.setItem(draftKey(who.value, settings(), item.number), JSON.stringify(draft));
  const dropDraft = () => localStorage.removeItem(draftKey(who.value, settings(), item.number));

  const isBegun = () => !!draft.name.trim() || draft.members.length > 0;
  const isWhole = () => !!draft.name.trim() && draft.members.length >= queue.rules.at_least;

  /** Add the pattern in the form to the item's patterns. */
  function addPattern() {
    const { name, kind, members, confidence } = draft;
    draft.patterns.push({ label: name.trim(), kind, members, ...(confidence && { confidence: Number(confidence) }) });
    Object.assign(draft, { name: "", members: [], confidence: "" });
    keepDraft();
  }

  function draw() {
    const { rules } = queue;
    const things = item.tokens || item.prefixes;
    const counter = h("span.faint");
    const add = button("Add pattern", () => (addPattern(), draw()), { class: "btn" });
    const next = button("", store, { class: "btn main" });
    const changed = () => {
      keepDraft();
      counter.textContent = `${draft.members.length} ticked, at least ${rules.at_least}`;
      add.disabled = !isWhole();
      next.textContent = isBegun() || draft.patterns.length ? "Save and next" : "No pattern, next";
    };
    const name = textBox("Describe the pattern", {
      placeholder: "describe the pattern in a few words",
      style: { flex: "1 1 280px" },
      value: draft.name,
      oninput: () => {
        draft.name = name.value;
        changed();
      },
    });
    const boxes = things.map((_, i) =>
      h("input", {
        type: "checkbox",
        "aria-label": `${i + 1}`,
        checked: draft.members.includes(i),
        onchange: (e) => {
          draft.members = draft.members.filter((one) => one !== i);
          if (e.target.checked) draft.members = [...draft.members, i].sort((a, b) => a - b);
          changed();
        },
      }),
    );
    changed();
    fill(stage, [
      h("div.row", [
        h("h2", `Item ${item.number + 1}`),
        h("span.spacer"),
        button("Skip (s)", skip, { class: "btn small" }),
        button("Undo last (u)", undo, { class: "btn small", disabled: !past.length }),
      ]),
      h("p.why", rules.instruction),
      item.tokens ? ticks(boxes) : prefixes(boxes),
      h("div.row", [
        name,
        segmented(
          "Kind",
          rules.kinds.map((kind) => [kind, kind]),
          draft.kind,
          (kind) => {
            draft.kind = kind;
            changed();
          },
        ),
        worded("confidence", confidenceBox(changed)),
        add,
        counter,
      ]),
      draft.patterns.map((one, i) => patternLine(one, i)),
      h("div.row", next, h("span.faint", "Enter · s skip · u undo · 1 to 5 confidence")),
    ]);
  }

  const confidenceBox = (changed) =>
    segmented("Confidence", CONFIDENCES, draft.confidence, (value) => {
      draft.confidence = value;
      changed();
    });

  const ticks = (boxes) =>
    h("div.ticks", [
      item.tokens.map((one, i) =>
        h("label", { title: one.description || "" }, [
          boxes[i],
          token(one.token),
          one.description ? h("span.faint", shortened(one.description)) : null,
        ]),
      ),
    ]);

  const prefixes = (boxes) =>
    h("ol", [
      item.prefixes.map((one, i) =>
        h("li.trigger", [
          boxes[i],
          h("span.context", { dir: "auto" }, one.prefix.slice(-260), h("mark", one.token)),
          h("span"),
        ]),
      ),
    ]);

  const patternLine = (one, i) =>
    h("p.row", [
      h("span.tag", one.kind),
      h("b", one.label),
      h("span.faint", `${one.members.length} members`),
      button(
        "remove",
        () => {
          draft.patterns.splice(i, 1);
          keepDraft();
          draw();
        },
        { class: "quiet" },
      ),
    ]);

  /** Store the item's patterns, with the one in the form; an incomplete one is not stored and stays in the form. */
  async function store() {
    if (!item || busy) return;
    if (isWhole()) addPattern();
    else if (isBegun()) {
      const { at_least: least } = queue.rules;
      note.textContent = draft.name.trim()
        ? `“${draft.name.trim()}” is not saved yet: tick at least ${least} members, or clear the description.`
        : "Ticked members need a description: describe the pattern, or untick them.";
      note.hidden = false;
      return;
    }
    busy = true;
    try {
      const body = { ...settings(), number: item.number, author: who.value, patterns: draft.patterns };
      const { ids } = await api.send("/annotations", body);
      past.push({ number: item.number, ids, draft });
      dropDraft();
      announce("saved");
      await load();
    } catch (error) {
      api.fail(error);
    } finally {
      busy = false;
    }
  }

  /** Return to the last item with its work; the labels stored for it are withdrawn. */
  async function undo() {
    const last = past.pop();
    if (!last) return;
    await withdraw(last.ids, who.value);
    localStorage.setItem(draftKey(who.value, settings(), last.number), JSON.stringify(last.draft));
    await load(last.number);
  }

  function skip() {
    if (!item) return;
    past.push({ number: item.number, ids: [], draft });
    return load();
  }

  /** Keys work with any focus; in a text box letters and digits are text, and Enter saves. */
  function act(event) {
    if (!item || !queue || event.ctrlKey || event.metaKey || event.altKey) return false;
    const typing = event.target.matches?.("input[type=text], input[type=number], textarea");
    if (event.key === "Enter" && !event.target.matches?.("button")) return (store(), true);
    if (typing) return false;
    if (event.key === "s") return (skip(), true);
    if (event.key === "u") return (undo(), true);
    if (/^[1-5]$/.test(event.key)) {
      draft.confidence = event.key;
      keepDraft();
      const focused = /** @type {HTMLElement} */ (document.activeElement)?.getAttribute("aria-label");
      draw();
      /** @type {HTMLElement} */ (stage.querySelector(`[aria-label="${focused}"]`))?.focus();
      return true;
    }
    return false;
  }

  function onStageKey(event) {
    if (!act(event)) return;
    event.preventDefault();
    event.stopPropagation();
  }

  const agreement = () =>
    pane(agreed, async () => {
      const { questions } = await api.get("/annotations/agreement", {}, { fresh: true });
      const rows = questions.map((one) => [
        one.question,
        one.items,
        one.fleiss ?? "–",
        Object.entries(one.pairs)
          .map(([both, kappa]) => `${both}: ${num(kappa)}`)
          .join("; "),
      ]);
      fill(agreed, [
        questions.some((one) => one.items)
          ? table(["question", "items", "Fleiss' kappa", "Cohen's kappa of two"], rows)
          : h("p.faint", "Agreement appears when two people have annotated the same item."),
      ]);
    });

  async function importLabels() {
    try {
      const { added, known } = await api.send("/annotations/import", { jsonl: await file.files[0].text() });
      await load(item?.number);
      progress.textContent =
        `${added} ${added === 1 ? "label" : "labels"} added, ${known} ${known === 1 ? "was" : "were"} here ` +
        "already.";
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
    key: act,
    exported: () => queue && { name: "queue", json: queue },
  };
}
