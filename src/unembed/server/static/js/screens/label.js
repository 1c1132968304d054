/** Annotation as in the papers: a queue of keys or values, whose patterns one describes without seeing others' labels. */
import {
  announce,
  boxes,
  button,
  consume,
  entering,
  fill,
  h,
  many,
  num,
  numberBox,
  segmented,
  statusLine,
  worded,
} from "../dom.js";
import { exportLabels, noIndex, reload } from "../labels.js";
import { authorBox, withdraw } from "../names.js";
import { answered, card, empty, noMemories, pane, table } from "../parts.js";
import * as draft from "./label-draft.js";
import { drawItem } from "./label-item.js";

export function render(root, page) {
  const { api, model } = page;
  if (!model.can.memories) return noMemories(root);
  if (!model.can.index) {
    const box = h("div");
    fill(root, h("div.stack", h("h1", "Label"), box));
    noIndex(box, "Labels are stored in an index.");
    return { update() {} };
  }
  const again = () => restart(t);
  const who = authorBox(again);
  const seed = numberBox("Seed of the queue", 0, { onchange: again });
  const progress = statusLine("p.soft");
  const note = h("p.warn", { role: "alert", hidden: true });
  const [stage, agreed] = boxes("div.stack", "div");
  const work = { store: () => store(t), undo: () => undo(t), skip: () => skip(t) };
  /**
   * `what`: value or key; `place`: the place of the item in the queue; `draft`: its patterns and the one in the form;
   * `past`: the items visited, the newest last, `{number, ids, draft}` with the ids of the labels stored for each.
   */
  const begun = { what: "value", queue: null, item: null, place: 0, draft: null, past: [], busy: false };
  const t = { api, who, seed, progress, note, stage, agreed, ...begun, ...work };
  const key = (event) => act(t, event);
  const onkeydown = (e) => key(e) && consume(e);
  const queueCard = h("section.card", { tabindex: "-1", onkeydown }, note, stage);
  who.onkeydown = entering(() => queueCard.focus()); // from now on keys are commands
  const file = fileBox(t);
  const choose = (value) => ((t.what = value), restart(t));
  const files = [button("Export", exportLabels, "btn small"), button("Import", () => file.click(), "btn small"), file];
  fill(root, [
    h("div.stack.queue", [
      h("div.row", [
        h("h1", "Label"),
        segmented("What", { value: "Values", key: "Keys" }, t.what, choose),
        h("span.spacer"),
        worded("seed of the queue", seed),
        worded("annotator name", who),
      ]),
      progress,
      queueCard,
      card("Agreement", files, agreed),
    ]),
  ]);
  return {
    update: (now, before) => before.screen !== now.screen && load(t),
    key,
    exported: () => t.queue && { name: "queue", json: t.queue },
  };
}

/** Start over for another queue or annotator. */
function restart(t) {
  Object.assign(t, { item: null, draft: null, past: [] });
  return load(t);
}

/** Show the item of a number, or the next one that this author has not done. */
const load = (t, number = null) =>
  pane(t.stage, async () => {
    t.note.hidden = true;
    const filters = draft.settings(t);
    const author = t.who.value;
    const last = t.item?.number ?? -1; // before the first await, so that two calls do not skip an item
    const queue = await t.api.get("/annotations/queue", { ...filters, author }, { channel: "queue", fresh: true });
    const { numbers } = await t.api.get("/annotations/order", filters, { channel: "order" });
    t.queue = queue;
    t.progress.textContent =
      `${queue.done.length} of ${queue.items} ${t.what}s done${author ? ` by ${author}` : ""}. Items whose tokens are ` +
      `words most alike come first.${t.what === "value" ? " The queue is blind: some items are random controls." : ""}`;
    const done = new Set(queue.done);
    const left = numbers.filter((i) => !done.has(i));
    const next = number ?? left.find((i) => numbers.indexOf(i) > numbers.indexOf(last)) ?? left[0];
    if (!author)
      fill(t.stage, empty("Annotator name", "Write your name above. Agreement is computed between annotators."));
    else if (next === undefined) {
      t.item = null;
      fill(t.stage, empty("The queue is done", "Thank you. Another seed draws another queue."));
    } else {
      t.item = await t.api.get(`/annotations/queue/${next}`, filters, { channel: "item" });
      t.place = numbers.indexOf(next);
      t.draft = draft.read(t);
      drawItem(t);
    }
    drawAgreement(t);
  });

/** Store the item's patterns and show the next item; an incomplete pattern in the form must be completed or cleared first. */
async function store(t) {
  if (!t.item || t.busy) return;
  if (draft.isWhole(t)) draft.add(t);
  else if (draft.isBegun(t)) {
    t.note.textContent = draft.lacking(t);
    t.note.hidden = false;
    return;
  }
  t.busy = true;
  try {
    const { number } = t.item;
    const body = { ...draft.settings(t), number, author: t.who.value, patterns: t.draft.patterns };
    const { ids } = await t.api.send("/annotations", body);
    t.past.push({ number, ids, draft: t.draft });
    draft.drop(t);
    announce("saved");
    await Promise.all([load(t), reload()]);
  } catch (error) {
    t.api.fail(error);
  } finally {
    t.busy = false;
  }
}

/** Return to the last item and the work on it; the labels stored for it are withdrawn. */
async function undo(t) {
  const last = t.past.pop();
  if (!last) return;
  await withdraw(last.ids, t.who.value);
  draft.restore(t, last);
  await load(t, last.number);
}

function skip(t) {
  if (!t.item) return undefined;
  t.past.push({ number: t.item.number, ids: [], draft: t.draft });
  return load(t);
}

/** Handle a key; in a text box only Enter is a command, which saves. True if the key was one. */
function act(t, { key, target, ctrlKey, metaKey, altKey }) {
  if (!t.item || !t.queue || ctrlKey || metaKey || altKey) return false;
  const typing = target.matches?.("input[type=text], input[type=number], textarea");
  if (key === "Enter" && !target.matches?.("button")) store(t);
  else if (!typing && key === "s") skip(t);
  else if (!typing && key === "u") undo(t);
  else if (!typing && /^[1-5]$/.test(key)) {
    t.draft.confidence = key;
    draft.keep(t);
    const focused = document.activeElement?.getAttribute("aria-label");
    drawItem(t);
    t.stage.querySelector(`[aria-label="${focused}"]`)?.focus();
  } else return false;
  return true;
}

function drawAgreement({ api, agreed }) {
  const ask = () => api.get("/annotations/agreement", {}, { fresh: true });
  const pairs = (kappas) => Object.entries(kappas).map(([both, kappa]) => `${both}: ${num(kappa)}`);
  const head = ["question", "items", "Fleiss' kappa", "Cohen's kappa of two"];
  const line = (one) => [one.question, one.items, one.fleiss ?? "–", pairs(one.pairs).join("; ")];
  return answered(agreed, ask, ({ questions }) => {
    if (questions.some((one) => one.items)) return table(head, questions.map(line));
    return h("p.faint", "Agreement appears when two people have annotated the same item.");
  });
}

/** An invisible box for the file from which labels are imported. */
function fileBox(t) {
  const file = h("input.hidden", {
    type: "file",
    accept: ".jsonl,.ndjson",
    tabindex: "-1",
    "aria-label": "File of labels",
    async onchange() {
      try {
        const { added, known } = await t.api.send("/annotations/import", { jsonl: await file.files[0].text() });
        await Promise.all([load(t, t.item?.number), reload()]);
        t.progress.textContent = `${many(added, "label")} added, ${known} ${known === 1 ? "was" : "were"} here already.`;
      } catch (error) {
        t.api.fail(error);
      } finally {
        file.value = "";
      }
    },
  });
  return file;
}
