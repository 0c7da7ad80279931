// A student's code, in this browser's storage. Without storage it lasts as long as the page.

export interface SavedCode {
  /** null: as it came. */
  code: string | null;
  tried: boolean;
  passed: boolean;
}

const memory = new Map<string, SavedCode>();
const NONE: SavedCode = { code: null, tried: false, passed: false };
const key = (tag: string): string => `vantage-exercise-${tag}`;

export function savedCode(tag: string): SavedCode {
  const inMemory = memory.get(tag);
  if (inMemory) return inMemory;
  try {
    const stored = JSON.parse(localStorage.getItem(key(tag)) ?? "null") as Partial<SavedCode> | null;
    return { code: typeof stored?.code === "string" ? stored.code : null, tried: stored?.tried === true, passed: stored?.passed === true };
  } catch {
    return NONE;
  }
}

export function saveCode(tag: string, saved: SavedCode): void {
  memory.set(tag, saved);
  try {
    localStorage.setItem(key(tag), JSON.stringify(saved));
  } catch {
    // full or forbidden: it stays in memory
  }
}
