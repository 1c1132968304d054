/** What people call memories: read once, and shown wherever a memory is named. */
import * as api from "./api.js";

const called = new Map();
let open = false;

/** Read all names again. */
export async function load() {
  const { rows } = await api.get("/labels", {}, { channel: "names", fresh: true });
  open = true;
  called.clear();
  for (const row of rows) if (row.kind !== "random value" && row.label !== "(no pattern)") called.set(`${row.layer}.${row.index}`, row.label);
}

/** Whether there is an index, which holds names and triggers. */
export const indexed = () => open;

/** The newest name of a memory, or nothing. */
export const nameOf = ({ layer, index }) => called.get(`${layer}.${index}`);
