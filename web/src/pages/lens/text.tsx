// The text that is looked at: written freely, taken when the reader says so.
import { useEffect, useState } from "preact/hooks";
import { Button, TextField } from "../../components/controls";
import { ModelPicker } from "../../components/ModelPicker";
import { Card } from "../../components/state";
import { put, useParam } from "../../router";

export const TEXT = "The capital of France is";
export const ONE_TOKEN = "One token; most words start with a space.";

export function useText(): string {
  return useParam("text", TEXT)[0];
}

/** `target`: whether a token can be named whose way is followed. */
export function TextCard({ target }: { target: boolean }) {
  const [name, setName] = useParam("model", "");
  const text = useText();
  const [token] = useParam("target", "");
  const [draft, setDraft] = useState(text);
  const [draftToken, setDraftToken] = useState(token);
  useEffect(() => setDraft(text), [text]);
  useEffect(() => setDraftToken(token), [token]);
  const look = () => {
    if (!draft.trim()) return;
    put({ text: draft === TEXT ? null : draft, ...(target ? { target: draftToken || null } : {}), ...(draft === text ? {} : { token: null, stage: null }) });
  };
  return (
    <Card>
      <div class="lens-text">
        <ModelPicker value={name} onChange={setName} fits={(one) => one.kind === "decoder"} />
        <TextField label="Text" rows={2} value={draft} onChange={setDraft} onSubmit={look} help="At most 128 tokens. Ctrl+Enter to run." />
        {target && <TextField label="Follow the token" value={draftToken} onChange={setDraftToken} onSubmit={look} placeholder="the best guess" help={ONE_TOKEN} />}
      </div>
      <div class="row">
        <Button look="main" onClick={look} disabled={!draft.trim()}>
          Look
        </Button>
      </div>
    </Card>
  );
}
