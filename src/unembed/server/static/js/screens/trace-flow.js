/** The circuit behind the prediction, drawn on a click, because finding it takes a hundred runs of the model. */
import { boxes, button, fill, h } from "../dom.js";
import { card } from "../parts.js";
import { go } from "../state.js";

/** Make the card; `position()`: where the prediction is; `live()` replaces the bundled example, if it is shown. */
export function flowCard(page, { position, live }) {
  const [box, start] = boxes("div", "div.row");
  /** @type {any} */ let drawn = null;

  async function draw() {
    if (live()) return;
    const { flowPane } = await import("./flow-pane.js");
    drawn = flowPane(page, position);
    fill(start);
    fill(box, drawn.el);
    await drawn.load();
  }

  function reset() {
    if (drawn) page.api.cancel("flow");
    drawn?.destroy();
    drawn = null;
    fill(box);
    fill(start, offer);
  }

  const title = "Find which heads and memories (FFN neurons) produce the prediction, at which tokens, and test them";
  const offer = [
    h("span.faint", "which parts produce the prediction, at which tokens"),
    button("Draw the flow", draw, "btn small", { title }),
  ];
  fill(start, offer);
  return {
    el: card("Flow", [start, button("Open", () => go({ screen: "flow" }), "quiet")], box),
    reset,
    destroy: reset,
  };
}
