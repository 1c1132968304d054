/** Edits in multiples of a memory's usual size: how large its coefficient is where it fires on text. */
import * as api from "./api.js";
import { memoryPath } from "./state.js";
import { edited, replace } from "./tray.js";

/** A multiple in words, with the memory's sign. */
export const times = (n, { pole }) => `${pole === "negative" ? "−" : ""}${n} × usual`;

/** A multiple of a memory's usual size, with the memory's sign; the number itself where that size is unknown. */
export const inUsual = async (one, n) =>
  Number(((one.pole === "negative" ? -n : n) * ((await api.get(`${memoryPath(one)}/usual`)).size ?? 1)).toPrecision(4));

/** Set memories to a multiple of their usual sizes, as one step of undo. */
export async function setUsual(list, n) {
  try {
    const values = await Promise.all(list.map((one) => inUsual(one, n)));
    replace(list.map((one, i) => ({ ...edited(one, "set", values[i]), on: true })));
  } catch (error) {
    api.fail(error);
  }
}
