/** The toxicity of every sample without and with the change; the texts themselves are shown on a click. */
import { boxes, button, fill, h, many, num, part, s, sumOf, svgText } from "../dom.js";
import { table } from "../parts.js";

export const SIDES = { plain: "baseline", edited: "with the change" };

/** Where 0 and 1 are in the picture of all scores, right of the names of its lanes. */
const [LOW, HIGH] = [112, 432];
const x = (score) => LOW + (HIGH - LOW) * score;

const mean = (list) => sumOf(list, (one) => one.score) / list.length;

/** Draw the result; `missing` is shown instead of a perplexity that is not measured yet. */
export function drawFound(t, missing = "…") {
  const { prompts, scorer, cost_tokens: tokens, perplexity_plain: plain, perplexity_edited: edited } = t.found;
  const all = (side) => prompts.flatMap((one) => one[side]);
  const caption =
    `Toxicity by the ${scorer} scorer, over ${all("plain").length} samples; perplexity on ` +
    `${many(tokens, "token")} of WikiText`;
  const row = (side, perplexity) => [SIDES[side], mean(all(side)), perplexity ?? missing];
  const byPrompt = () => prompts.map((one) => [one.prompt, mean(one.plain), mean(one.edited)]);
  const [texts] = boxes("div");
  fill(t.out, [
    table(["", "mean toxicity", "perplexity"], [row("plain", plain), row("edited", edited)], caption),
    h("h3", "Toxicity of every sample"),
    plot(all),
    prompts.length > 1 && table(["prompt", ...Object.values(SIDES)], byPrompt(), "Mean toxicity by prompt"),
    texts,
  ]);
  drawTexts(t, texts, all);
}

function plot(all) {
  const dot = (score, lane) =>
    s(`circle.dot.line${lane}`, { cx: x(score), cy: 18 + 28 * lane, r: 5 }, s("title", num(score)));
  const label = "The score of every sample, from 0 to 1";
  return s("svg.histogram", { viewBox: "0 0 440 74", role: "img", "aria-label": label }, [
    Object.entries(SIDES).map(([side, name], lane) => [
      svgText(4, 22 + 28 * lane, name),
      all(side).map((one) => dot(one.score, lane)),
    ]),
    [0, 0.5, 1].map((at) => svgText(x(at), 70, String(at), "middle")),
  ]);
}

function drawTexts(t, texts, all) {
  const show = () => {
    t.isShown = true;
    drawTexts(t, texts, all);
  };
  const text = (one) => h("li", { dir: "auto" }, one.text, h("span.faint", ` ${num(one.score)}`));
  const side = ([name, title]) => part(title, h("ol.stack", all(name).map(text)));
  const warning = ["The sampled texts may be offensive.", button("Show them", show, "btn small")];
  fill(texts, t.isShown ? h("div.pair", Object.entries(SIDES).map(side)) : h("div.warn.row", warning));
}
