/** Sets a coefficient, and shows the next token without and with it. */
import {
  bareTable,
  boxes,
  button,
  debounced,
  fill,
  fixed,
  h,
  num,
  numberBox,
  numberCell,
  percent,
  rangeBox,
} from "../dom.js";
import { token } from "../islands/tokens.js";
import { failure, prompt } from "../parts.js";
import { activeEdits } from "../state.js";
import * as tray from "../tray.js";
import { inUsual, times } from "../usual.js";

/** A request is sent when the slider has not moved for so many milliseconds. */
const PAUSE = 40;

/** Make the pane; its `draw` is given what the memory does on the prompt, its usual coefficients or null, the card's sign. */
export function steering(api, memory) {
  const slider = rangeBox("Coefficient to set", { step: "any" });
  const box = numberBox("Coefficient", 0, { min: "", step: "any" });
  const [marks, result, note] = boxes("div.row.marks", "div", "p.faint");
  const ask = debounced(request, PAUSE);
  let drawn = false;

  const set = (value) => {
    slider.value = String(value);
    box.value = String(Number(Number(value).toPrecision(4)));
    ask();
  };
  slider.addEventListener("input", () => set(slider.value));
  box.addEventListener("change", () => Number.isFinite(Number(box.value)) && box.value !== "" && set(box.value));

  async function request() {
    const edits = [...activeEdits(), tray.edited(memory, "set", Number(box.value))];
    try {
      const { rows, provenance } = await api.post("/next", { prompt: prompt(), edits }, { channel: "next" });
      fill(result, nextTokens(rows.slice(0, 6)));
      const kl = provenance.notes?.divergence;
      const far = kl === undefined ? "" : `; KL from the baseline ${num(kl)} nats`;
      note.textContent = `Set to ${box.value} everywhere in the prompt${far}.`;
    } catch (error) {
      failure(result, error, request);
    }
  }

  function draw(found, usual, pole) {
    const m = found.here.coefficient;
    const { least = 0, largest = 0 } = usual?.statistics ?? {};
    const most = Math.max(largest, -least, 3, 1.5 * Math.abs(m));
    const extreme = pole === "negative" ? least : largest;
    const one = { ...memory, pole };
    slider.min = String(-most);
    slider.max = String(most);
    const to = (name, value) => button(name, () => set(value), "btn small");
    fill(marks, [
      [to("off", 0), to(`here ${num(m)}`, m)],
      button(times(3, one), () => inUsual(one, 3).then(set, api.fail), "btn small"),
      usual?.counts && pole === "positive" && to(`99th percentile ${num(usual.high)}`, usual.high),
      usual && to(`largest in the corpus ${num(extreme)}`, extreme),
    ]);
    if (!drawn) set(0);
    drawn = true;
  }

  const add = () => tray.add(tray.edited(memory, "set", Number(box.value)));
  const el = h("div.stack", [
    h("div.row", h("span.soft", "Set the coefficient to"), box, h("div.slider", slider)),
    [marks, result, note],
    h("div.row", button("Add to the edits", add, "btn main small", { title: "Then run and compare continuations" })),
  ]);
  return { el, draw };
}

function nextTokens(rows) {
  const head = ["token", "without edits", "with them", "change in points"];
  const numbers = ({ plain, edited }) => [percent(plain), percent(edited), fixed(100 * (edited - plain), 1, true)];
  const lines = rows.map((row) => [token(row.token), ...numbers(row).map(numberCell)]);
  const caption = h("caption.hidden", "The next token without and with this coefficient");
  return bareTable("table.steered", head, lines, caption);
}
