// Texts on their way to the model. They outlive a reload, and what is refused or never answered comes back to its box.
import { effect, signal } from "@preact/signals";
import { keepImages, keptImages } from "./kept_images";

/** A message that was sent and is not answered yet; `turn`: it was an edit of that turn's message. */
export interface Sent {
  text: string;
  /** As data: URLs. */
  images: string[];
  turn: number | null;
}

const DRAFT = "vantage-draft";
const SENT = "vantage-sent";

// Of this tab alone, and kept for as long as it is open.
const stored = (name: string): string | null => {
  try {
    return sessionStorage.getItem(name);
  } catch {
    return null; // a browser that keeps nothing
  }
};

const store = (name: string, text: string): void => {
  try {
    if (text) sessionStorage.setItem(name, text);
    else sessionStorage.removeItem(name);
  } catch {
    // a browser that keeps nothing
  }
};

/** What stands in the box, and the images beside it as data: URLs. */
export const draft = signal(stored(DRAFT) ?? "");
export const draftImages = signal<string[]>([]);
export const sent = signal<Sent | null>(parsed(stored(SENT)));
/** The message that is being edited, and its text. */
export const editing = signal<Sent | null>(null);

effect(() => store(DRAFT, draft.value));
effect(() => store(SENT, sent.value ? JSON.stringify({ ...sent.value, images: [] }) : ""));

/** The images come later than the texts: nothing is given back before they are here. */
export const restored: Promise<void> = restore();

async function restore(): Promise<void> {
  const first = sent.peek();
  const [before, onTheirWay] = await Promise.all([keptImages(DRAFT), keptImages(SENT)]);
  draftImages.value = [...before, ...draftImages.value];
  if (first && sent.peek() === first) sent.value = { ...first, images: onTheirWay };
  effect(() => void keepImages(DRAFT, draftImages.value));
  effect(() => void keepImages(SENT, sent.value?.images ?? []));
}

export const sameImages = (these: string[], those: string[]): boolean =>
  these.length === those.length && these.every((url, at) => url === those[at]);

function parsed(text: string | null): Sent | null {
  try {
    const found = JSON.parse(text ?? "null") as Partial<Sent> | null;
    return found && typeof found.text === "string" ? { text: found.text, images: [], turn: found.turn ?? null } : null;
  } catch {
    return null;
  }
}

/** The message that was sent goes back where it was typed. What was typed there since stands below it. */
export function giveBack(): void {
  const message = sent.value;
  sent.value = null;
  if (!message) return;
  if (message.turn !== null) editing.value = message;
  else {
    if (!sameImages(draftImages.value, message.images)) draftImages.value = [...message.images, ...draftImages.value];
    draft.value = draft.value.trim() && draft.value !== message.text ? `${message.text}\n${draft.value}` : message.text;
  }
}
