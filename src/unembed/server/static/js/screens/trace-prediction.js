/** The prediction at the position: likely tokens, the question about them, findings, and described memories. */
import { button, fill, h, many, percent, roving, signed } from "../dom.js";
import { token } from "../islands/tokens.js";
import { isLabelled, nameOf } from "../names.js";
import { link } from "../parts.js";
import { questionPicker } from "../question.js";
import { cardOf, go, turn } from "../state.js";

/** A person's label, else the description in the trace. */
const named = (one) => (isLabelled(one) ? nameOf(one) : one.description);

/** Open the head, memory or layer of a finding. */
const follow = (one) =>
  one.kind === "memory" || one.kind === "head"
    ? go(cardOf(one, one.kind))
    : turn({ layer: String(one.layer), stage: one.point === "resid_post" ? "post" : "mid" });

const EFFECT = "what it adds to the target's logit over what it adds to the average token's";
const HIDDEN =
  "No list shows bytes of longer characters and tokens that the model never learned, unless one is the prediction or the " +
  "runner-up. Ranks count them.";

/** Make the pane; `summary` is its last line, which others fill. */
export function predictionPane(t) {
  const likely = h("div.says", { role: "toolbar", "aria-label": "Predictions of the next token" });
  const hidden = h("span.faint");
  const found = h("ol.findings", { "aria-label": "Findings" });
  const described = h("ul.described", { "aria-label": "Described memories behind the prediction" });
  const why = questionPicker();
  const summary = h("p.soft");

  function draw() {
    const { view, data } = t;
    const shown = view.prediction.slice(0, 5);
    const last = [token(data.tokens[view.position].token), h("span.faint", ` (${view.position})`)];
    const candidate = (c) =>
      button([token(c.token), h("small", percent(c.probability))], () => turn({ token: `#${c.id}` }), "", {
        title: `explain this token (logit ${c.logit.toFixed(2)})`,
        "aria-pressed": String(c.id === view.target.id),
      });
    const append = () => go({ prompt: data.prompt + shown[0].token, position: "", layer: "", token: "" });
    const title = "Append the first token to the prompt";
    fill(likely, [
      h("span.soft", "After ", last, " the model predicts"),
      shown.map(candidate),
      button("→", append, "quiet", { title, "aria-label": "→ append" }),
    ]);
    roving(likely);
    why.draw(view);
    hidden.textContent = view.hidden ? `${many(view.hidden, "token")} not listed` : "";
    hidden.title = HIDDEN;
    const about = (one) => [
      link(one)[0],
      h("span.tag", { dir: "auto" }, named(one)),
      h("span.effect", { title: EFFECT }, `${signed(one.effect)} to `, token(view.target.token)),
    ];
    const finding = (one) => button(one.sentence, () => follow(one), "", { title: one.definition });
    fill(described, [view.described.map((one) => h("li", about(one)))]);
    fill(found, [view.findings.map((one) => h("li", finding(one)))]);
    roving(found);
  }

  const question = h("div.row", why.el, hidden);
  const el = h("section.prediction", { "aria-label": "Prediction" }, likely, question, found, described, summary);
  return { el, draw, summary };
}
