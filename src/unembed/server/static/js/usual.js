/** Edits in units of a memory's usual size: its coefficient on text. */
import * as api from "./api.js";
import { memoryPath } from "./state.js";
import { edited, replace } from "./tray.js";

/** A multiple of a memory's usual size; the number itself where that size is unknown. */
export const inUsual = async (one, times) =>
  Number((times * ((await api.get(`${memoryPath(one)}/usual`)).size ?? 1)).toPrecision(4));

/** Set memories to a multiple of their usual sizes, as one step of undo. */
export async function setUsual(list, times) {
  try {
    const values = await Promise.all(list.map((one) => inUsual(one, times)));
    replace(list.map((one, i) => ({ ...edited(one, "set", values[i]), on: true })));
  } catch (error) {
    api.fail(error);
  }
}
