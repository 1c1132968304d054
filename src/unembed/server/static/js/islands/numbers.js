/** Numbers as they are written, on the page and in notebooks. */

/** A probability in percent, with one decimal, so that the numbers of a column align. */
export const percent = (p) => (p > 0 && p < 0.001 ? "<0.1 %" : `${(100 * p).toFixed(1)} %`);

/** A number with its sign, three significant digits. */
export const signed = (x) => (x < 0 ? num(x) : `+${num(x)}`);

/** A number, three significant digits. */
export function num(x) {
  if (Number.isNaN(x ?? NaN)) return "–";
  const a = Math.abs(x);
  if (a === 0) return "0";
  const digits = a >= 100 ? 0 : a >= 10 ? 1 : a >= 1 ? 2 : 3;
  const text = a >= 1000 ? grouped(Math.round(a)) : a >= 0.01 ? a.toFixed(digits) : a.toExponential(1);
  return x < 0 ? `−${text}` : text;
}

/** Decimals that give the largest of some numbers three significant digits: the same for a whole column. */
export function places(values) {
  const most = Math.max(...values.map(Math.abs).filter(Number.isFinite), 0);
  return most ? Math.max(0, Math.min(6, 2 - Math.floor(Math.log10(most)))) : 2;
}

/** A number with so many decimals; `plus`: with its sign, also where it is positive. */
export function fixed(x, digits, plus = false) {
  if (Number.isNaN(x ?? NaN)) return "–";
  const text = Math.abs(x).toFixed(digits);
  return x < 0 && Number(text) ? `−${text}` : plus && Number(text) ? `+${text}` : text;
}

/** So many of something: "1 memory", "1,024 memories". */
export const many = (n, one, more = `${one}s`) => `${grouped(n)} ${n === 1 ? one : more}`;

/** The sum of a number of each element. */
export const sumOf = (list, of) => list.reduce((total, one, i) => total + of(one, i), 0);

/** The elements sorted by the size of a number of each, the largest first. */
export const bySize = (list, of) => [...list].sort((a, b) => Math.abs(of(b)) - Math.abs(of(a)));

/** A number, or the bound that it is beyond. */
export const clamp = (x, low, high) => Math.max(low, Math.min(high, x));

/** An index, or the nearest one of 0 to n - 1. */
export const within = (i, n) => clamp(i || 0, 0, n - 1);

/** An integer with its thousands separated. */
export const grouped = (n) => thousands.format(n);
const thousands = new Intl.NumberFormat("en"); // toLocaleString looks up the language in every call: 25 µs
