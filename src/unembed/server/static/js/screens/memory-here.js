/** A memory on the prompt: its coefficient and effect, and the next token under another coefficient. */
import { button, fill, fixed, h, num, numberBox, percent, places } from "../dom.js";
import { token } from "../islands/tokens.js";
import { failure, prompt } from "../parts.js";
import { asText, inWords, questionQuery } from "../question.js";
import { activeEdits, state } from "../state.js";
import * as tray from "../tray.js";

/** Milliseconds without a move of the slider before a request is sent. */
const PAUSE = 40;

/** A memory on the prompt: its coefficients, and its effect on the question at the chosen position. */
export async function onPrompt(api, { layer, index }, channel = "here") {
  const { token: target, against, alone } = questionQuery();
  const at = (position) =>
    api.post(
      `/memories/${layer}/${index}/activations`,
      {
        prompt: prompt(),
        edits: activeEdits(),
        position,
        token: target || null,
        against: against || null,
        alone: !!alone,
      },
      { channel },
    );
  try {
    return await at(state().position === "" ? -1 : Number(state().position));
  } catch (error) {
    if (error.code !== "out_of_range") throw error;
    return at(-1); // the position in the address is beyond this prompt
  }
}

/** The share of sampled tokens with a smaller coefficient, from a histogram; null without one. */
export function percentile(usual, value) {
  if (!usual) return null;
  const { edges, counts, sampled } = usual;
  let below = 0;
  counts.forEach((n, i) => {
    const [low, high] = [edges[i], edges[i + 1]];
    if (value >= high) below += n;
    else if (value > low) below += (n * (value - low)) / (high - low);
  });
  return below / sampled;
}

/** "99.3rd percentile" of the corpus, as text. */
export function percentileText(share) {
  if (share === 1) return "above all sampled tokens";
  const text = (100 * share).toFixed(share > 0.99 || share < 0.01 ? 2 : 0);
  const last = text.at(-1);
  const teen = /1\d$/.test(text);
  return (
    `${text}${!teen && last === "1" ? "st" : !teen && last === "2" ? "nd" : !teen && last === "3" ? "rd" : "th"} ` +
    "percentile"
  );
}

/** Edit and steer in place: a coefficient to set, and the next token with and without it. `{el, draw(found, usual)}` */
export function steering(api, memory) {
  const slider = h("input", { type: "range", "aria-label": "Coefficient to set", step: "any" });
  const box = numberBox("Coefficient", 0, { min: "", step: "any" });
  const marks = h("div.row.marks");
  const result = h("div");
  const note = h("p.faint");
  let timer = 0;
  let drawn = false;

  const set = (value) => {
    slider.value = String(value);
    box.value = String(Number(Number(value).toPrecision(4)));
    clearTimeout(timer);
    timer = setTimeout(request, PAUSE);
  };
  slider.addEventListener("input", () => set(slider.value));
  box.addEventListener("change", () => Number.isFinite(Number(box.value)) && box.value !== "" && set(box.value));

  const edit = () => ({
    target: "coefficient",
    action: "set",
    layer: memory.layer,
    index: memory.index,
    value: Number(box.value),
    positions: "all",
  });

  async function request() {
    try {
      const answer = await api.post(
        "/next",
        { prompt: prompt(), edits: [...activeEdits(), edit()] },
        { channel: "next" },
      );
      const rows = answer.rows.slice(0, 6);
      fill(result, [
        h("table.steered", [
          h("caption.hidden", "The next token without and with this coefficient"),
          h("thead", [
            h("tr", [
              ["token", "without edits", "with them", "change (percentage points)"].map((t, i) =>
                h("th", { scope: "col", class: i ? "n" : "" }, t),
              ),
            ]),
          ]),
          h("tbody", [
            rows.map((row) =>
              h("tr", [
                h("td", token(row.token)),
                h("td.n", percent(row.plain)),
                h("td.n", percent(row.edited)),
                h("td.n", fixed(100 * (row.edited - row.plain), 1, true)),
              ]),
            ),
          ]),
        ]),
      ]);
      const kl = answer.provenance.notes?.divergence;
      note.textContent =
        `Set to ${box.value} everywhere in the prompt` +
        `${kl === undefined ? "" : `; KL from the baseline ${num(kl)} nats`}.`;
    } catch (error) {
      failure(result, error, request);
    }
  }

  /** `found`: the memory on the prompt; `usual`: its coefficients over the corpus, or null. */
  function draw(found, usual) {
    const m = found.here.coefficient;
    const most = Math.max(usual?.statistics.largest ?? 0, 3, 1.5 * Math.abs(m));
    slider.min = String(-most);
    slider.max = String(most);
    const landmarks = [
      ["off", 0],
      ["here", m],
      ["3", 3],
      ...(usual
        ? [
            ["99th percentile", usual.high],
            ["largest in the corpus", usual.statistics.largest],
          ]
        : []),
    ];
    fill(marks, [
      landmarks.map(([name, value]) =>
        button(`${name}${name === "off" || name === "3" ? "" : ` ${num(value)}`}`, () => set(value), {
          class: "btn small",
        }),
      ),
    ]);
    if (!drawn) set(0);
    drawn = true;
  }

  const el = h("div.stack", [
    h("div.row", h("span.soft", "Set the coefficient to"), box, h("div.slider", slider)),
    marks,
    result,
    note,
    h("div.row", [
      button("Add to the edits", () => tray.set(memory, Number(box.value)), {
        class: "btn main small",
        title: "Then run and compare continuations",
      }),
    ]),
  ]);
  return { el, draw };
}

/** The effect in words, for the header: number and what it is on. */
export const effectOf = (found) => [
  fixed(found.here.score, places([found.here.score]), true),
  h("small", { title: `on ${asText(found)}, in logits` }, " on ", inWords(found)),
];
