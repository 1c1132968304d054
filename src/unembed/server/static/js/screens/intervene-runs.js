/** The runs since the server started, newest first: restore one, or compare two. */
import { boxes, button, ending, fill, h, part, tick } from "../dom.js";
import { card, pane } from "../parts.js";
import * as tray from "../tray.js";

const made = (r) => (r.edits.length ? tray.editsInWords(r.edits) : "no edits");

const about = (r) => [
  h("span.faint", `${ending(r.prompt, 34)} `),
  made(r),
  h("span.faint", r.diverges_at === null ? "" : `, diverges at ${r.diverges_at + 1}`),
];

/** Make the card; `restore(run)` is called for the run that is clicked. */
export function runsPane(api, restore) {
  const [history, compared] = boxes("div", "div");
  const picked = new Set();

  const line = (r) => [
    tick(`Compare run ${r.run}`, picked.has(r.run), () => pick(r.run)),
    button([h("b", `${r.run} `), h("span", about(r))], () => restore(r)),
  ];
  const draw = () =>
    pane(history, async () => {
      const found = (await api.get("/runs", {}, { fresh: true })).runs.reverse();
      const none = h("p.faint", "Every run stays here with its edits, until the server stops.");
      fill(history, found.length ? h("ul.runs", [found.slice(0, 12).map((r) => h("li", line(r)))]) : none);
      const two = found.filter((r) => picked.has(r.run)).reverse();
      fill(compared, two.length === 2 && sideBySide(two));
    });

  /** Tick or untick a run; of three ticked runs, the first is unticked. */
  function pick(run) {
    if (!picked.delete(run)) picked.add(run);
    if (picked.size > 2) picked.delete([...picked][0]);
    draw();
  }

  return { el: card("Runs", h("span.faint", "tick two to compare"), history, compared), draw };
}

/** Show two runs; what their texts have in common is dimmed. */
function sideBySide(runs) {
  const texts = runs.map((r) => r.texts.edit ?? r.texts.base);
  const [a, b] = texts;
  let same = 0;
  while (same < a.length && a[same] === b[same]) same++;
  const text = (r, i) => [
    h("span.given", r.prompt),
    h("span.common", a.slice(0, same)),
    h("span.diverges", texts[i].slice(same)),
  ];
  return [
    h("div.pair", [runs.map((r, i) => part(`Run ${r.run}: ${made(r)}`, h("div.text", text(r, i))))]),
    h("p.faint", same === a.length && same === b.length ? "The same text." : `The same for ${same} characters.`),
  ];
}
