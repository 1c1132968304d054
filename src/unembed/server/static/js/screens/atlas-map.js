/** Reads the map of the values, which `unembed.server.packed_atlas` packs into bytes. */

/** Load a version of the map; the browser caches it. */
export async function loadMap(api, version) {
  const answer = await api.binary(`/atlas/maps/${version}`, { channel: "atlas-map", what: "Reading the map" });
  return unpack(answer);
}

/** Unpack the map: each of its lists has an entry for each value. */
export function unpack(/** @type {ArrayBuffer} */ body) {
  const size = new DataView(body).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(body, 4, size)));
  const { n, step, islands, densities } = head;
  const column = (name) => numbers(body, 4 + size + 4 * n * head.columns.indexOf(name), n);
  const cluster = column("cluster");
  const place = (name) => column(name).map((code, i) => islands[cluster[i]][name] + signed(code) * step);
  const density = (level) => level && densities.least * 10 ** ((level - 1) / densities.levels_a_decade);
  const tops = head.columns.filter((name) => name.startsWith("top")).map(column);
  return {
    ...head,
    cluster,
    x: place("x"),
    y: place("y"),
    density: head.columns.includes("density") ? column("density").map(density) : null,
    ...Object.fromEntries(["layer", "index", "kind"].map((name) => [name, column(name)])),
    top: cluster.map((_, i) => tops.map((all) => all[i])),
  };
}

/** The numbers of a column: their lowest bytes lie together, then their second bytes, and so on. */
function numbers(body, at, n) {
  const [a, b, c, d] = [0, 1, 2, 3].map((plane) => new Uint8Array(body, at + plane * n, n));
  return Array.from(a, (low, i) => low + 256 * b[i] + 65536 * c[i] + 16777216 * d[i]);
}

/** Decode a signed number: 0, 1, 2, 3, 4 stand for 0, -1, 1, -2, 2. */
const signed = (code) => (code % 2 ? -(code + 1) / 2 : code / 2);
