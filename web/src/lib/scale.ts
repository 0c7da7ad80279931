// From values to places on a chart, and the ticks beside it. Pure.

export interface Scale {
  (value: number): number;
  domain: [number, number];
  range: [number, number];
  log: boolean;
  invert: (place: number) => number;
}

export function makeScale(domain: [number, number], range: [number, number], log = false): Scale {
  const map = log ? Math.log10 : (value: number) => value;
  const back = log ? (value: number) => 10 ** value : (value: number) => value;
  const [from, to] = [map(domain[0]), map(domain[1])];
  const span = to - from || 1;
  const scale = ((value: number) => range[0] + ((map(value) - from) / span) * (range[1] - range[0])) as Scale;
  scale.domain = domain;
  scale.range = range;
  scale.log = log;
  scale.invert = (place) => back(from + ((place - range[0]) / (range[1] - range[0] || 1)) * span);
  return scale;
}

/** The smallest and the largest finite value (above zero, for a logarithmic axis), with a little room around. */
export function extent(values: Iterable<number | null | undefined>, log = false, room = 0.04): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || value === undefined || !Number.isFinite(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return log ? [1, 10] : [0, 1];
  if (low === high) {
    if (log) return [low / 2, high * 2];
    const half = Math.abs(low) * 0.1 || 0.5;
    return [low - half, high + half];
  }
  if (log) {
    const more = (high / low) ** room;
    return [low / more, high * more];
  }
  const more = (high - low) * room;
  return [low - more, high + more];
}

/** Round values across the domain: 1, 2 or 5 times a power of ten. */
export function ticks([low, high]: [number, number], count: number, log = false): number[] {
  if (log) return logTicks(low, high, count);
  const rough = (high - low) / Math.max(1, count);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough * 0.999) ?? 10 * power;
  const found: number[] = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) {
    found.push(Number((index * step).toPrecision(12)));
  }
  return found;
}

function logTicks(low: number, high: number, count: number): number[] {
  const from = Math.floor(Math.log10(low));
  const to = Math.ceil(Math.log10(high));
  const inside = (value: number) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9);
  for (const factors of [[1, 2, 5], [1, 3], [1]]) {
    const found: number[] = [];
    for (let power = from; power <= to; power += 1) {
      for (const factor of factors) {
        const value = Number((factor * 10 ** power).toPrecision(12));
        if (inside(value)) found.push(value);
      }
    }
    if (found.length >= 2 && found.length <= count * 1.3) return found;
  }
  const step = Math.max(1, Math.ceil((to - from) / count));
  const found: number[] = [];
  for (let power = from; power <= to; power += step) if (inside(10 ** power)) found.push(10 ** power);
  return found.length ? found : [low, high];
}

/** Counts of samples in bins of equal width over [low, high]. */
export function bin(samples: number[], [low, high]: [number, number], bins: number): number[] {
  const counts = new Array<number>(bins).fill(0);
  const width = (high - low) / bins || 1;
  for (const sample of samples) {
    const index = Math.min(bins - 1, Math.max(0, Math.floor((sample - low) / width)));
    if (Number.isFinite(sample)) counts[index] = (counts[index] ?? 0) + 1;
  }
  return counts;
}

/** Every n-th of `count` labels, so that at most `room` of them stand. */
export function every(count: number, room: number): number {
  return Math.max(1, Math.ceil(count / Math.max(1, room)));
}
