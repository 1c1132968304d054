/** What a memory does on the prompt, and how that compares with a corpus. */
import { isQuick, runOn } from "../contexts.js";
import { fixed, h, places } from "../dom.js";
import { asText, inWords, questionBody } from "../question.js";
import { memoryPath, state } from "../state.js";

/** A memory's coefficients on the prompt, and its effect on the question at the chosen position. */
export async function onPrompt(api, memory) {
  const at = (position) => api.post(`${memoryPath(memory)}/activations`, questionBody(position), { channel: "here" });
  try {
    return await at(state().position === "" ? -1 : Number(state().position));
  } catch (/** @type {any} */ error) {
    if (error.code !== "out_of_range") throw error;
    return at(-1); // the position in the address is beyond this prompt
  }
}

/** How many tokens of an index's corpus the server samples at most, for a model that is not small. */
const SAMPLED = 1000;

/** What a memory's coefficient usually is: as the index stores it, or, if `sampled`, with a histogram for which the model runs. */
export const usualOf = ({ api, model }, memory, channel, sampled = isQuick(model, runOn(model, SAMPLED))) =>
  api.get(`${memoryPath(memory)}/${sampled ? "coefficients" : "statistics"}`, {}, { channel });

/** The share of sampled tokens with a smaller coefficient, estimated from the histogram; null without one. */
export function percentile(usual, value) {
  if (!usual?.counts) return null;
  const { edges, counts, sampled } = usual;
  let below = 0;
  counts.forEach((n, i) => {
    const [low, high] = [edges[i], edges[i + 1]];
    if (value >= high) below += n;
    else if (value > low) below += (n * (value - low)) / (high - low);
  });
  return below / sampled;
}

/** A share as a percentile in words. */
export function percentileText(share) {
  if (share === 1) return "above all sampled tokens";
  const text = (100 * share).toFixed(share > 0.99 || share < 0.01 ? 2 : 0);
  const ending = /1\d$/.test(text) ? "th" : ({ 1: "st", 2: "nd", 3: "rd" }[text.at(-1)] ?? "th");
  return `${text}${ending} percentile`;
}

/** The effect as a number, and what it is an effect on. */
export const effectOf = (found) => [
  fixed(found.here.score, places([found.here.score]), true),
  h("small", { title: `on ${asText(found)}, in logits` }, " on ", inWords(found)),
];
