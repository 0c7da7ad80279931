// A word with its meaning: shown under the pointer and when the keyboard reaches it, and told to readers of a screen.
import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import { TERMS } from "../terms";

/** `name`: the entry of `terms.ts`; without one the word stands as it is. */
export function Term({ name, children }: { name: string; children?: ComponentChildren }) {
  const id = useId();
  const meaning = TERMS[name];
  if (!meaning) return <>{children ?? name}</>;
  return (
    <span class="term">
      <button type="button" class="term-word" aria-describedby={id}>
        {children ?? name}
      </button>
      <span class="term-meaning" role="tooltip" id={id}>
        {meaning}
      </span>
    </span>
  );
}
