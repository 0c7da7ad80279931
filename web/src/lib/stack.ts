// Scores in parts, stacked: what raises the score to the right of zero, what lowers it to the left. Pure.
import type { ScorePart } from "../generated/api";

/** A term of the scores; what some were added up to has no origin of its own. */
export type Part = Omit<ScorePart, "of"> & Partial<Pick<ScorePart, "of">>;

export interface Bar {
  from: number;
  to: number;
}

/** One bar for each part of one key, ends joined: positive ones upward from zero, negative ones downward. */
export function stacked(parts: Part[], key: number): Bar[] {
  let up = 0;
  let down = 0;
  return parts.map((part) => {
    const value = part.values[key] ?? 0;
    const from = value >= 0 ? up : down;
    if (value >= 0) up += value;
    else down += value;
    return { from, to: from + value };
  });
}

/** Parts of the same origin (content, position, neither) added up. */
export function grouped(parts: Part[]): Part[] {
  const sums = new Map<string, Part>();
  for (const part of parts) {
    const name = part.of ?? part.name;
    const sum = sums.get(name);
    if (!sum) sums.set(name, { name, of: part.of, values: [...part.values] });
    else sum.values = sum.values.map((value, key) => (value === null ? null : value + (part.values[key] ?? 0)));
  }
  return [...sums.values()];
}

/** Which keys are shown: the last ones that are seen, or those with the largest scores, the largest first. */
export function pickKeys(score: (number | null)[], which: "near" | "large", count: number): number[] {
  const seen = score.flatMap((value, key) => (value === null ? [] : [key]));
  if (which === "near") return seen.slice(-count);
  return seen.sort((a, b) => (score[b] ?? 0) - (score[a] ?? 0)).slice(0, count);
}
