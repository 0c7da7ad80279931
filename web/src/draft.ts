// Text on its way into the address. What is empty, or cannot be read yet, stays with the field.
import { useEffect, useRef, useState } from "preact/hooks";

/** `take` gives what the address should say for a text, or null while the text says nothing that it could. */
export function useDraft(value: string, set: (value: string) => void, take: (text: string) => string | null = full): [string, (text: string) => void] {
  const [text, setText] = useState(value);
  const last = useRef(value);
  useEffect(() => {
    if (value !== last.current) setText(value);
    last.current = value;
  }, [value]);
  const change = (next: string) => {
    setText(next);
    const read = take(next);
    if (read === null || read === last.current) return;
    last.current = read;
    set(read);
  };
  return [text, change];
}

const full = (text: string): string | null => (text.trim() ? text : null);
