// Studies and exercises as the server says them, and what was found while this page is open.
import { signal } from "@preact/signals";
import type { FigureData, Parameter, Value } from "../../types";

export interface Study {
  tag: string;
  title: string;
  sources: string[];
  statement: string;
  explanation: string;
  parameters: Parameter[];
  seconds: number;
  trains: boolean;
  needs: string[];
}

export type Verdict = "agrees" | "erratum" | "mixed";

export interface Finding {
  what: string;
  ours: Value | null;
  document: Value | null;
  agrees: boolean | null;
  interval: [number | null, number | null] | null;
}

export interface Result {
  verdict: Verdict;
  words: string;
  numbers: Finding[];
  figures: FigureData[];
  values: Record<string, Value>;
  seconds: number;
  command: string;
}

/** The last result of each study. */
export const results = signal<Record<string, Result>>({});

export const keep = (tag: string, result: Result): void => {
  results.value = { ...results.value, [tag]: result };
};

export const VERDICTS: Record<Verdict, [string, string]> = {
  agrees: ["tag good", "Agrees"],
  erratum: ["tag bad", "Erratum"],
  mixed: ["tag warn", "Agrees in part"],
};

export const GROUPS: [string, string][] = [
  ["A", "Attention"],
  ["P", "Position"],
  ["T", "Transformers"],
  ["K", "The cache"],
];
