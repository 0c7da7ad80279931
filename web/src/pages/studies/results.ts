// What studies found while this page is open, and how it is shown.
import { signal } from "@preact/signals";
import type { StudyResult } from "../../generated/api";


/** The last result of each study. */
export const results = signal<Record<string, StudyResult>>({});

export const keep = (tag: string, result: StudyResult): void => {
  results.value = { ...results.value, [tag]: result };
};

export const VERDICTS: Record<StudyResult["verdict"], [string, string]> = {
  agrees: ["tag good", "Agrees"],
  erratum: ["tag bad", "Erratum"],
  mixed: ["tag warn", "Agrees in part"],
};

export const GROUPS: [string, string][] = [
  ["A", "Attention"],
  ["P", "Position"],
  ["T", "Transformers"],
  ["K", "The cache"],
  ["I", "Interventions"],
];
