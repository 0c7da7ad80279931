// The models the server has: asked once, shared by all pages.
import { signal } from "@preact/signals";
import { get, post, Trouble } from "./api";
import { asTrouble } from "./hooks";
import type { Model, Models } from "./types";

export const models = signal<Models | null>(null);
export const modelsTrouble = signal<Trouble | null>(null);
export const loadingModel = signal<{ name: string; since: number } | null>(null);

let running: Promise<void> | null = null;

export function refreshModels(): Promise<void> {
  running ??= get<Models>("/models")
    .then(
      (found) => {
        models.value = found;
        modelsTrouble.value = null;
      },
      (error: unknown) => {
        modelsTrouble.value = asTrouble(error);
      },
    )
    .finally(() => {
      running = null;
    });
  return running;
}

/** The entry of a name, or of the default model. */
export function modelNamed(name: string): Model | null {
  const known = models.value;
  if (!known) return null;
  const wanted = name || known.default;
  return known.models.find((model) => model.name === wanted) ?? null;
}

/** Makes the server load a model. The entry that comes back takes the old one's place. */
export async function loadModel(name: string): Promise<Model> {
  loadingModel.value = { name, since: performance.now() };
  try {
    const entry = await post<Model>("/models/load", { name }, { seconds: 180 });
    const known = models.value;
    if (known) models.value = { ...known, models: known.models.map((old) => (old.name === name ? entry : old)) };
    return entry;
  } finally {
    loadingModel.value = null;
  }
}
