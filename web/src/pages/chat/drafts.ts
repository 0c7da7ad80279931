// Texts on their way to the model. They outlive a reload, and what is refused or never answered comes back to its box.
import { effect, signal } from "@preact/signals";

/** A message that was sent and is not answered yet; `turn`: it was an edit of that turn's message. */
export interface Sent {
  text: string;
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

/** What stands in the box. */
export const draft = signal(stored(DRAFT) ?? "");
export const sent = signal<Sent | null>(parsed(stored(SENT)));
/** The message that is being edited, and its text. */
export const editing = signal<Sent | null>(null);

effect(() => store(DRAFT, draft.value));
effect(() => store(SENT, sent.value ? JSON.stringify(sent.value) : ""));

function parsed(text: string | null): Sent | null {
  try {
    const found = JSON.parse(text ?? "null") as Partial<Sent> | null;
    return found && typeof found.text === "string" ? { text: found.text, turn: found.turn ?? null } : null;
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
  else draft.value = draft.value.trim() && draft.value !== message.text ? `${message.text}\n${draft.value}` : message.text;
}
