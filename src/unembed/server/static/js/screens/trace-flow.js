/** The flow to the prediction, drawn when it is wanted: finding it takes a hundred runs of the model. */
import { boxes, button, fill, h } from "../dom.js";
import { card } from "../parts.js";
import { go } from "../state.js";

/** `{el, reset, destroy}`; `position()`: where the prediction is; `live()` replaces the bundled example, if it is shown. */
export function flowCard(page, { position, live }) {
  const [box] = boxes("div");
  /** @type {any} */ let drawn = null;

  async function draw() {
    if (live()) return;
    const { flowPane } = await import("./flow-pane.js");
    drawn = flowPane(page, position);
    fill(box, drawn.el);
    await drawn.load();
  }

  function reset() {
    if (drawn) page.api.cancel("flow");
    drawn?.destroy();
    drawn = null;
    fill(box, [
      h("div.row", [
        button("Draw the flow", draw, "btn"),
        h(
          "span.faint",
          "Which heads and memories (FFN neurons) at which tokens produce the prediction: found, and tested",
        ),
      ]),
    ]);
  }

  reset();
  return {
    el: card(
      "Flow",
      button("Open", () => go({ screen: "flow" }), "quiet"),
      box,
    ),
    reset,
    destroy: reset,
  };
}
