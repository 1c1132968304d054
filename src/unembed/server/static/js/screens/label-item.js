/** One item of the queue: its tokens or texts to tick, and a form for a pattern that some of them share. */
import { button, fill, h, segmented, textBox, tick, worded } from "../dom.js";
import { token } from "../islands/tokens.js";
import { add, isBegun, isWhole, keep } from "./label-draft.js";

const CONFIDENCES = [["", "–"], ...[1, 2, 3, 4, 5].map((n) => [String(n), String(n)])];

/** Cut a definition at the end of a word. */
const shortened = (text) => (text.length > 44 ? `${text.slice(0, 44).replace(/\s*\S*$/, "")} …` : text);

export function drawItem(t) {
  const { rules } = t.queue;
  const { item, draft, past, store, skip, undo } = t;
  const counter = h("span.faint");
  const adding = button("Add pattern", () => (add(t), drawItem(t)), "btn");
  const next = button("", store, "btn main");
  function changed() {
    keep(t);
    counter.textContent = `${draft.members.length} ticked, at least ${rules.at_least}`;
    adding.disabled = !isWhole(t);
    next.textContent = isBegun(t) || draft.patterns.length ? "Save and next" : "No pattern, next";
  }
  const set = (name) => (value) => {
    draft[name] = value;
    changed();
  };
  function flip(i, on) {
    const others = draft.members.filter((one) => one !== i);
    set("members")(on ? [...others, i].sort((a, b) => a - b) : others);
  }
  const name = textBox("Describe the pattern", {
    placeholder: "describe the pattern in a few words",
    style: { flex: "1 1 280px" },
    value: draft.name,
    oninput: () => set("name")(name.value),
  });
  const kinds = rules.kinds.map((kind) => [kind, kind]);
  const box = (i) => tick(`${i + 1}`, draft.members.includes(i), (on) => flip(i, on));
  changed();
  fill(t.stage, [
    h("div.row", [
      h("h2", `Item ${t.place + 1}`),
      h("span.spacer"),
      button("Skip (s)", skip, "btn small"),
      button("Undo last (u)", undo, "btn small", { disabled: !past.length }),
    ]),
    h("p.why", rules.instruction),
    item.tokens ? tokens(item, box) : prefixes(item, box),
    h("div.row", [
      name,
      segmented("Kind", kinds, draft.kind, set("kind")),
      worded("confidence", segmented("Confidence", CONFIDENCES, draft.confidence, set("confidence"))),
      adding,
      counter,
    ]),
    draft.patterns.map((one, i) => patternLine(t, one, i)),
    h("div.row", next, h("span.faint", "Enter · s skip · u undo · 1 to 5 confidence")),
  ]);
}

function tokens(item, box) {
  const about = (text) => text && h("span.faint", shortened(text));
  const line = ({ token: text, description }, i) =>
    h("label", { title: description || "" }, box(i), token(text), about(description));
  return h("div.ticks", item.tokens.map(line));
}

function prefixes(item, box) {
  const text = ({ prefix, token: last }) => h("span.context", { dir: "auto" }, prefix.slice(-260), h("mark", last));
  return h("ol", [item.prefixes.map((one, i) => h("li.trigger", box(i), text(one), h("span")))]);
}

function patternLine(t, one, i) {
  const remove = () => {
    t.draft.patterns.splice(i, 1);
    keep(t);
    drawItem(t);
  };
  const members = h("span.faint", `${one.members.length} members`);
  return h("p.row", h("span.tag", one.kind), h("b", one.label), members, button("remove", remove, "quiet"));
}
