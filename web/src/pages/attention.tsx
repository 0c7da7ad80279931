// Attention: any text, any layer and head, alone or beside another.
import { useEffect, useState } from "preact/hooks";
import { Button, Select, Tabs, TextField } from "../components/controls";
import { Card, PageHead } from "../components/state";
import type { ReadTextAnswer } from "../generated/api";
import { duration } from "../lib/numbers";
import { href, put, read, route, useParam } from "../router";
import "./attention.css";
import { OtherEncoding, OwnEncoding } from "./attention/beside";
import { SideCard } from "./attention/card";
import { type Side, useSide } from "./attention/side";

const TEXT =
  "When Mary and John went to the store, John gave a drink to Mary. Then Mary and John went home, and John gave the rest to";
const SOURCE = "The quick brown fox jumps over the lazy dog.";
const VIEWS = [
  { id: "lines", label: "Lines" },
  { id: "heat", label: "Heat map" },
  { id: "heads", label: "All heads" },
  { id: "atlas", label: "Atlas" },
  { id: "scores", label: "Scores" },
];
/** What stands at the right: nothing, any head of any model, or the same model with another encoding. */
const BESIDE = [
  { value: "", label: "nothing" },
  { value: "model", label: "another model or head" },
  { value: "encoding", label: "another encoding" },
];

export default function Page() {
  const [text] = useParam("text", TEXT);
  const [source] = useParam("source", SOURCE);
  const [view, setView] = useParam("view", "lines");
  const [compare] = useParam("compare", "");
  // Links from before there was a choice say "true".
  const beside = BESIDE.find((one) => one.value === (compare === "true" ? "model" : compare))?.value ?? "";
  const first = useSide("", text, source, { named: beside === "encoding" });
  const shared = { text, source, view };
  return (
    <>
      <PageHead
        title="Attention"
        words="What each token attends to, for any text, layer and head; also two models, heads or encodings side by side."
      />
      <div class="stack wide">
        <TextCard side={first} text={text} source={source} beside={beside} />
        <Tabs
          label="Views"
          tabs={VIEWS}
          value={VIEWS.some((entry) => entry.id === view) ? view : "lines"}
          onChange={setView}
        >
          {beside ? (
            <div class="grid two">
              <SideCard side={first} view={view} name="Left">
                {beside === "encoding" && <OwnEncoding side={first} />}
              </SideCard>
              {beside === "encoding" ? <OtherEncoding {...shared} /> : <OtherModel {...shared} />}
            </div>
          ) : (
            <SideCard side={first} view={view} />
          )}
        </Tabs>
      </div>
    </>
  );
}

function OtherModel({ text, source, view }: { text: string; source: string; view: string }) {
  const side = useSide("b_", text, source);
  return <SideCard side={side} view={view} name="Right" />;
}

/** The right side begins anew: with what the left one shows. */
function putBeside(compare: string, { layer, head }: Side): void {
  const right = Object.keys(route.peek().params).filter((name) => name.startsWith("b_"));
  put({ ...Object.fromEntries(right.map((name) => [name, null])), layer, head, compare: compare || null });
}

/** How long the text is, and how long the model took to read it. */
const extent = ({ length, ms }: ReadTextAnswer): string => `${length} tokens, read ${ms === null ? "earlier" : `in ${duration(ms)}`}`;

interface TextCardProps {
  side: Side;
  text: string;
  source: string;
  beside: string;
}

function TextCard({ side, text, source, beside }: TextCardProps) {
  const [draft, setDraft] = useState(text);
  const [draftSource, setDraftSource] = useState(source);
  useEffect(() => setDraft(text), [text]);
  useEffect(() => setDraftSource(source), [source]);
  const paired = side.model?.kind === "encoder-decoder";
  const changed = draft !== text || draftSource !== source;
  const look = () => {
    if (draft.trim())
      put({
        text: draft === TEXT ? null : draft,
        source: draftSource === SOURCE ? null : draftSource,
        query: null,
        b_query: null,
        from: null,
      });
  };
  const data = side.capture.data;
  const { conversation, turn } = route.value.params;
  if (conversation) {
    return (
      <Card>
        <p>
          Answer {read(turn, 0) + 1} of{" "}
          <a href={href("chat", { conversation, model: route.value.params.model })}>a conversation</a>, with everything the
          model read before it, token by token.
        </p>
        <div class="row apart end">
          <div class="row end">
            <Button onClick={() => put({ conversation: null, turn: null, query: null, b_query: null, from: null })}>
              Look at a text of your own
            </Button>
            <Select label="Side by side with" value={beside} options={BESIDE} onChange={(next) => putBeside(next, side)} />
          </div>
          <span class="small muted numeric" role="status">
            {data && extent(data)}
          </span>
        </div>
      </Card>
    );
  }
  return (
    <Card>
      {paired && <TextField label="Source" rows={2} value={draftSource} onChange={setDraftSource} onSubmit={look} />}
      <TextField
        label={paired ? "Target" : "Text"}
        rows={3}
        value={draft}
        onChange={setDraft}
        onSubmit={look}
        help="Ctrl+Enter to run."
      />
      <div class="row apart end">
        <div class="row end">
          <Button look="main" onClick={look} disabled={!draft.trim() || (!changed && side.capture.since !== null)}>
            Look
          </Button>
          <Select label="Side by side with" value={beside} options={BESIDE} onChange={(next) => putBeside(next, side)} />
        </div>
        <span class="small muted numeric" role="status">
          {data && extent(data)}
        </span>
      </div>
    </Card>
  );
}
