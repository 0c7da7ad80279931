// A student's code, in this browser's storage. Without storage it lasts as long as the page.

export interface Kept {
  /** null: as it came. */
  code: string | null;
  tried: boolean;
  passed: boolean;
}

const memory = new Map<string, Kept>();
const NONE: Kept = { code: null, tried: false, passed: false };
const key = (tag: string): string => `vantage-exercise-${tag}`;

export function kept(tag: string): Kept {
  const here = memory.get(tag);
  if (here) return here;
  try {
    const found = JSON.parse(localStorage.getItem(key(tag)) ?? "null") as Partial<Kept> | null;
    return { code: typeof found?.code === "string" ? found.code : null, tried: found?.tried === true, passed: found?.passed === true };
  } catch {
    return NONE;
  }
}

export function remember(tag: string, kept: Kept): void {
  memory.set(tag, kept);
  try {
    localStorage.setItem(key(tag), JSON.stringify(kept));
  } catch {
    // full or forbidden: it stays in memory
  }
}
