// Plain text as paragraphs. Words in `backticks` are code; a block with columns of its own keeps them.
import { Fragment } from "preact";

export interface Block {
  text: string;
  fixed: boolean;
}

export function blocks(text: string): Block[] {
  const parts = text.trim().split(/\n\s*\n/);
  const found: Block[] = [];
  for (const part of parts) {
    const fixed = /^(?:\s{2,}|[+|]).*\S/m.test(part);
    const before = found[found.length - 1];
    // Tables that follow each other stay one, so that their columns stand under each other.
    if (fixed && before?.fixed) before.text += `\n\n${part}`;
    else found.push({ text: fixed ? part : part.replace(/\s*\n\s*/g, " "), fixed });
  }
  return found;
}

export function Prose({ text, label }: { text: string; label?: string }) {
  return (
    <>
      {blocks(text).map((block, index) =>
        block.fixed ? (
          <pre key={index} class="scroll code" tabIndex={0} role="region" aria-label={label ?? "Table"}>
            {block.text}
          </pre>
        ) : (
          <p key={index} class="prose">
            {block.text
              .split("`")
              .map((piece, at) => (at % 2 ? <code key={at}>{piece}</code> : <Fragment key={at}>{piece}</Fragment>))}
          </p>
        ),
      )}
    </>
  );
}
