/** Presets: edits that the server stores under a name. */
import { button, fill, h, textBox } from "./dom.js";
import { pane } from "./parts.js";
import { edits, setEdits } from "./state.js";
import { editsInWords } from "./tray.js";

/** A folded list of the presets, shown in the tray, or on Intervene while the tray is empty. */
export function presets(page) {
  const { api } = page;
  const name = textBox("Name of the preset", { placeholder: "a name for these edits", onenter: save });
  const list = h("ul.runs");
  const note = h("p.faint");

  const line = (one) => {
    const content = [h("b", { dir: "auto" }, one.name), h("span.faint", ` ${editsInWords(one.edits)}`)];
    const remove = () => write(api.remove(`/presets/${one.id}`));
    return h("li", [
      button(content, () => load(one), "", { title: "Put these edits into the tray" }),
      button("×", remove, "btn small", { "aria-label": `Delete ${one.name}` }),
    ]);
  };
  const read = () =>
    pane(list, async () => {
      const { presets: stored, persistent } = await api.get("/presets", {}, { fresh: true });
      fill(list, stored.map(line));
      const passing = !persistent && "Without an index they last until the server stops.";
      fill(note, !stored.length && "None is saved yet. ", passing);
    });
  const write = (request) => request.then(read, api.fail);

  function save() {
    if (!name.value.trim() || !edits().length) return name.focus();
    return write(api.send("/presets", { name: name.value, edits: edits() }));
  }

  function load(one) {
    if (one.model !== page.mark()) page.warnOther(one.model);
    const focused = /** @type {HTMLElement} */ (document.activeElement);
    setEdits(one.edits);
    focused.focus(); // the list has moved to the tray
  }

  return h("details.presets", { ontoggle: (e) => e.target.open && read() }, [
    h("summary", "Presets"),
    h("div.row", name, button("Save the edits", save, "btn small")),
    list,
    note,
  ]);
}
