/** Report the parts of an address that the page cannot read, or that this model does not have. */
import { fail, Problem } from "./api.js";
import { idOf, oneEdit, parseId, readableEdits, state, turn } from "./state.js";

/** Return the state of an address without such parts; `unknown`: its names that no state has. */
export function readable(found, unknown, model, screens) {
  const bad = unknown.map((name) => `“${name}=”`);
  const change = {};
  const leave = (name, text, value = "") => {
    bad.push(text);
    change[name] = value;
  };
  const last = model.n_layers - 1;

  if (!screens.includes(found.screen)) {
    leave("screen", `screen ${found.screen}`, screens[0]);
    change.path = [];
  }
  if (found.layer && !(/^\d+$/.test(found.layer) && Number(found.layer) <= last))
    leave("layer", `layer ${found.layer} (${model.name} has 0 to ${last})`);
  for (const name of ["memory", "compared", "head"]) {
    const kind = name === "head" ? "head" : "memory";
    if (found[name] && parseId(found[name])?.kind !== kind)
      leave(name, `${kind} ${found[name]} (written like ${kind === "head" ? "L5H1" : "L5M278"})`);
  }
  const pins = found.pins.split(" ").filter(Boolean);
  const known = pins.filter((id) => /^\d+$/.test(id) && Number(id) < model.d_vocab);
  if (known.length < pins.length) {
    const other = pins.filter((id) => !known.includes(id));
    leave("pins", `pinned token ${other} (${model.name} has 0 to ${model.d_vocab - 1})`, known.join(" "));
  }
  const edits = readableEdits(found, (text) => {
    const one = oneEdit(text);
    const why = one ? missing(one, model) : "written like L5M278:set:3@all or L5H1:scale:0@last";
    if (why) bad.push(`edit ${text} (${why})`);
    return !why;
  });

  if (bad.length)
    report(`${model.name} cannot show these parts of the address: ${bad.join("; ")}`, "The rest is shown");
  return { ...found, ...change, ...edits };
}

/** Report a position that the prompt of n tokens does not have, and drop it from the address. */
export function dropPositionBeyond(n) {
  const { position } = state();
  if (position === "" || (Number(position) >= -n && Number(position) < n)) return;
  report(`The prompt has no position ${position}, only 0 to ${n - 1}`, "Its last position is shown");
  turn({ position: "", token: "" });
}

function report(message, fix) {
  fail(new Problem({ code: "unreadable_address", message, fix }));
}

/** Why an edit cannot be made in this model; empty where it can. */
function missing({ target, layer, index, action }, model) {
  const head = target === "head";
  if (head && action !== "scale") return "a head can only be scaled";
  const n = head ? (model.mixers[layer]?.startsWith("attention") ? model.n_heads : 0) : model.memories[layer];
  return index < (n ?? 0) ? "" : `${model.name} has no ${head ? "head" : "memory"} ${idOf({ layer, index }, target)}`;
}
