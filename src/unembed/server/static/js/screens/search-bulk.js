/** What can be done with all ticked memories: edits, or one label for all of them. */
import { button, entering, fill, h, textBox, tick } from "../dom.js";
import { exportLabels, reload } from "../labels.js";
import * as names from "../names.js";
import { go, idOf } from "../state.js";
import * as tray from "../tray.js";
import { setUsual } from "../usual.js";

/** All concepts, each with its number of members. */
export const listed = async (api) => (await api.get("/concepts", {}, { fresh: true })).concepts;

/** The row of buttons, the boxes to tick, and `joined`, a line that says what was done. */
export function bulkPane(t) {
  const { chosen } = t;
  const el = h("div.row");
  const joined = h("p.soft", { role: "status" });
  const form = joinForm(t, joined);
  function choose(list, on = true) {
    for (const x of list) on ? chosen.set(idOf(x), x) : chosen.delete(idOf(x));
  }
  const all = (text, edit) => button(text, () => edit([...chosen.values()]), "btn small");
  function draw() {
    const buttons = [
      all("Switch off", (list) => tray.addAll(list, "scale", 0)),
      all("Double", (list) => tray.addAll(list, "scale", 2)),
      all("Set to 3 × usual", (list) => setUsual(list, 3)),
      t.model.can.index && form,
      button("Clear", () => (chosen.clear(), t.draw()), "quiet"),
    ];
    fill(el, chosen.size > 0 && [h("span.soft", `${chosen.size} chosen`), buttons]);
  }
  function flipAll(list, on) {
    choose(list, on);
    t.draw();
    t.results.querySelector("thead input")?.focus();
  }
  const tickOne = (x) => tick(`Choose ${idOf(x)}`, chosen.has(idOf(x)), (on) => (choose([x], on), draw()));
  function tickAll(list) {
    const label = `Choose all ${list.length} shown`;
    const isAll = list.length > 0 && list.every((x) => chosen.has(idOf(x)));
    return tick(label, isAll, (on) => flipAll(list, on), { title: label });
  }
  return { el, joined, tick: tickOne, tickAll, choose, draw };
}

/** The form that gives all ticked memories one label; it can be undone. */
function joinForm(t, joined) {
  const { api, chosen } = t;
  const known = h("datalist", { id: "known-concepts" });
  const suggest = (all) => fill(known, [all.map((one) => h("option", { value: one.name }))]);
  const concept = textBox("Concept", {
    placeholder: "a concept, old or new",
    list: known.id,
    onfocus: () => listed(api).then(suggest, api.fail),
    onenter: join,
  });
  const who = names.authorBox();
  who.addEventListener("keydown", entering(join));

  /** Show the labels again after some were written or withdrawn. */
  async function relabelled() {
    await reload();
    if (t.named()) await t.show();
    else t.draw();
  }

  async function join() {
    const [name, author] = [concept.value.trim(), who.value.trim()];
    if (!name || !author) return (name ? who : concept).focus();
    const members = [...chosen.values()].map(({ layer, index }) => ({ layer, index }));
    const undo = async (ids) => {
      await names.withdraw(ids, author);
      await relabelled();
      fill(joined, "Withdrawn.");
    };
    try {
      const { ids, known: before } = await api.send("/concepts", { name, author, members });
      await relabelled();
      fill(joined, [
        `${ids.length} added to ${name}${before ? `, ${before} were there` : ""}. `,
        button("Open", () => go({ path: ["concept", name] }), "quiet"),
        button("Export all labels", exportLabels, "quiet"),
        ids.length > 0 && button("Undo", () => undo(ids), "quiet"),
      ]);
    } catch (error) {
      api.fail(error);
    }
  }

  return [concept, known, who, button("Add to concept", join, "btn small")];
}
