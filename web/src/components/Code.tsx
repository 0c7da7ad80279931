// Code to read and to take along.
import { useState } from "preact/hooks";
import { save } from "../lib/download";
import { Button } from "./controls";

export interface CodeProps {
  label: string;
  text: string;
  /** With it, a button that saves the text under this name. */
  file?: string;
  type?: string;
}

export function Code({ label, text, file, type = "text/plain" }: CodeProps) {
  const [said, setSaid] = useState("");
  const copy = () => {
    const done = (words: string) => {
      setSaid(words);
      setTimeout(() => setSaid(""), 2500);
    };
    navigator.clipboard.writeText(text).then(
      () => done("Copied"),
      () => done("Copying is blocked by the browser: select the text instead"),
    );
  };
  return (
    <div class="stack codebox">
      <div class="row apart">
        <span class="small muted">{label}</span>
        <span class="row">
          <span class="small" role="status">
            {said}
          </span>
          <Button little look="quiet" label={`Copy ${label}`} onClick={copy}>
            Copy
          </Button>
          {file && (
            <Button little look="quiet" label={`Download ${file}`} onClick={() => save(file, text, type)}>
              {file}
            </Button>
          )}
        </span>
      </div>
      <pre class="scroll code" tabIndex={0} role="region" aria-label={label}>
        {text}
      </pre>
    </div>
  );
}
