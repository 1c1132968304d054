/** A memory on any text: its coefficient at every token. */
import { shade } from "../contexts.js";
import { button, fill, h, signed, textBox } from "../dom.js";
import { mount as strip, token, visible } from "../islands/tokens.js";
import { asTable, pane, prompt } from "../parts.js";
import { state, turn } from "../state.js";

/** The form and its result; `ontested` is given the largest coefficient. */
export function textTest({ api }, { layer, index }, ontested) {
  const out = h("div.stack");
  const input = textBox("Text to test", {
    value: state().text || prompt(),
    style: { flex: 1 },
    onkeydown: (e) => e.key === "Enter" && run(),
  });
  const run = () =>
    pane(out, async () => {
      if (input.value !== prompt()) turn({ text: input.value });
      const { tokens, coefficients } = await api.post(
        `/memories/${layer}/${index}/activations`,
        { prompt: input.value || " " },
        { channel: "activations" },
      );
      const most = Math.max(...coefficients.map(Math.abs), 1e-9);
      const cells = h("div");
      strip(cells, {
        tokens,
        classes: coefficients.map((m) => shade(m, most)),
        titles: coefficients.map((m) => `coefficient ${m.toPrecision(4)}`),
      });
      const best = coefficients.reduce((a, m, i) => (Math.abs(m) > Math.abs(coefficients[a]) ? i : a), 0);
      ontested(coefficients[best]);
      fill(out, [
        cells,
        h("p.faint", [
          `largest ${signed(coefficients[best])} at `,
          token(tokens[best]),
          "; blue positive, orange negative",
        ]),
        asTable("As a table", ["token", "coefficient"], () => tokens.map((t, i) => [visible(t), coefficients[i]])),
      ]);
    });
  run();
  return [h("div.row", input, button("Test", run, { class: "btn" })), out];
}
