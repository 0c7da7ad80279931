// A plain editor: line numbers, Tab indents, Enter keeps the indent, Escape lets Tab leave.
import { useId, useRef, useState } from "preact/hooks";

export interface EditorProps {
  label: string;
  value: string;
  onChange: (value: string) => void;
  /** Ctrl+Enter. */
  onSubmit: () => void;
}

const INDENT = "    ";

/** Four spaces at the beginning of the chosen lines, or up to four taken away. */
export function indented(text: string, from: number, to: number, out: boolean): { text: string; from: number; to: number } {
  const start = text.lastIndexOf("\n", from - 1) + 1;
  const lines = text.slice(start, to).split("\n");
  const changed = lines.map((line) => (out ? line.replace(/^ {1,4}/, "") : INDENT + line));
  const first = (changed[0]?.length ?? 0) - (lines[0]?.length ?? 0);
  const joined = changed.join("\n");
  return { text: text.slice(0, start) + joined + text.slice(to), from: Math.max(start, from + first), to: start + joined.length };
}

/** What a new line begins with: the indent of this one, one more after a colon. */
export function opening(text: string, at: number): string {
  const line = text.slice(text.lastIndexOf("\n", at - 1) + 1, at);
  const indent = /^ */.exec(line)?.[0] ?? "";
  return /:\s*(?:#.*)?$/.test(line) ? indent + INDENT : indent;
}

export function Editor({ label, value, onChange, onSubmit }: EditorProps) {
  const id = useId();
  const gutter = useRef<HTMLPreElement>(null);
  const [free, setFree] = useState(false);
  const lines = value.split("\n").length;

  // The browser's own insertion, so that its undo still works.
  const insert = (area: HTMLTextAreaElement, text: string) => {
    if (!document.execCommand("insertText", false, text)) {
      area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
      onChange(area.value);
    }
  };
  const key = (event: KeyboardEvent) => {
    const area = event.currentTarget as HTMLTextAreaElement;
    const { selectionStart: from, selectionEnd: to } = area;
    if (event.key === "Escape") return setFree(true);
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      return onSubmit();
    }
    if (event.key === "Tab" && !free) {
      event.preventDefault();
      if (from === to && !event.shiftKey) return insert(area, INDENT);
      const next = indented(area.value, from, to, event.shiftKey);
      area.value = next.text;
      area.setSelectionRange(next.from, next.to);
      return onChange(next.text);
    }
    if (event.key === "Enter") {
      const begin = opening(area.value, from);
      if (begin) {
        event.preventDefault();
        insert(area, `\n${begin}`);
      }
    }
    if (event.key !== "Tab" && event.key !== "Shift") setFree(false);
  };
  return (
    <div class="field">
      <div class="label">
        <label for={id}>{label}</label>
      </div>
      <div class="stu-editor">
        <pre class="stu-gutter" ref={gutter} aria-hidden="true">
          {Array.from({ length: lines }, (_, index) => index + 1).join("\n")}
        </pre>
        <textarea
          id={id}
          value={value}
          rows={Math.min(28, Math.max(10, lines + 1))}
          spellcheck={false}
          autocapitalize="off"
          autocomplete="off"
          wrap="off"
          aria-describedby={`${id}-help`}
          onInput={(event) => onChange(event.currentTarget.value)}
          onKeyDown={key}
          onBlur={() => setFree(false)}
          onScroll={(event) => {
            if (gutter.current) gutter.current.scrollTop = event.currentTarget.scrollTop;
          }}
        />
      </div>
      <div class="help" id={`${id}-help`}>
        Tab indents; Escape, then Tab, leaves the editor. Ctrl+Enter grades. The code stays in this browser.
      </div>
    </div>
  );
}
