// Attention: any text, any layer and head, alone or beside another.
import { useEffect, useState } from "preact/hooks";
import { Button, Check, Select, Slider, Tabs, TextField } from "../components/controls";
import { Heatmap } from "../components/Heatmap";
import { ModelPicker } from "../components/ModelPicker";
import { Busy, Card, Empty, PageHead, Problem } from "../components/state";
import { duration } from "../lib/numbers";
import { visible } from "../lib/tokens";
import { put, useParam } from "../router";
import "./attention.css";
import { AtlasView, HeadsView } from "./attention/heads";
import { LinesView, title } from "./attention/lines";
import { ScoresView } from "./attention/scores";
import { ONE, type Side, type SiteKind, useHead, useSide } from "./attention/side";

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
const KINDS: Record<SiteKind, string> = { self: "self-attention", cross: "cross-attention", encoder: "encoder" };

export default function Page() {
  const [text] = useParam("text", TEXT);
  const [source] = useParam("source", SOURCE);
  const [view, setView] = useParam("view", "lines");
  const [compare, setCompare] = useParam("compare", false);
  const first = useSide("", text, source);
  return (
    <>
      <PageHead
        title="Attention"
        words="What every token looks at: any text, any layer, any head; alone or side by side with another."
      />
      <div class="stack wide">
        <TextCard side={first} text={text} source={source} compare={compare} setCompare={setCompare} />
        <Tabs
          label="Views"
          tabs={VIEWS}
          value={VIEWS.some((entry) => entry.id === view) ? view : "lines"}
          onChange={setView}
        >
          {compare ? (
            <div class="grid two">
              <SideCard side={first} view={view} name="Left" />
              <Second text={text} source={source} view={view} />
            </div>
          ) : (
            <SideCard side={first} view={view} />
          )}
        </Tabs>
      </div>
    </>
  );
}

function Second({ text, source, view }: { text: string; source: string; view: string }) {
  const side = useSide("b_", text, source);
  return <SideCard side={side} view={view} name="Right" />;
}

interface TextCardProps {
  side: Side;
  text: string;
  source: string;
  compare: boolean;
  setCompare: (value: boolean) => void;
}

function TextCard({ side, text, source, compare, setCompare }: TextCardProps) {
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
  return (
    <Card>
      {paired && <TextField label="Source" rows={2} value={draftSource} onChange={setDraftSource} onSubmit={look} />}
      <TextField
        label={paired ? "Target" : "Text"}
        rows={3}
        value={draft}
        onChange={setDraft}
        onSubmit={look}
        help="Ctrl+Enter looks at it."
      />
      <div class="row apart">
        <div class="row">
          <Button look="main" onClick={look} disabled={!draft.trim() || (!changed && side.capture.since !== null)}>
            Look
          </Button>
          <Check label="Side by side with another model or head" value={compare} onChange={setCompare} />
        </div>
        <span class="small muted numeric" role="status">
          {data && `${data.length} tokens, read in ${duration(data.ms)}`}
        </span>
      </div>
    </Card>
  );
}

function SideCard({ side, view, name }: { side: Side; view: string; name?: string }) {
  const { capture } = side;
  return (
    <Card title={name ? `${name}: ${title(side)}` : undefined}>
      <div class="att-controls">
        <ModelPicker
          value={side.name}
          onChange={(model) => side.set({ model: model || null, layer: null, head: null, query: null })}
        />
        {side.kinds.length > 1 && (
          <Select
            label="Kind"
            value={side.kind}
            options={side.kinds.map((kind) => ({ value: kind, label: KINDS[kind] }))}
            onChange={(kind) => side.set({ kind })}
          />
        )}
        {view !== "atlas" && (
          <Slider
            label="Layer"
            value={side.layer}
            min={0}
            max={Math.max(1, side.layers.length - 1)}
            disabled={side.layers.length < 2}
            onChange={(layer) => side.set({ layer })}
          />
        )}
        {view !== "atlas" && (
          <Slider
            label="Head"
            value={side.head}
            min={0}
            max={Math.max(1, side.heads - 1)}
            disabled={side.heads < 2}
            onChange={(head) => side.set({ head })}
          />
        )}
      </div>
      {capture.trouble && <Problem trouble={capture.trouble} retry={capture.retry} />}
      {capture.since !== null && <Busy words="The model reads the text" since={capture.since} />}
      {!capture.data && !capture.trouble && capture.since === null && <Empty>The model is not ready yet.</Empty>}
      {capture.data && <SideView side={side} view={view} />}
    </Card>
  );
}

function SideView({ side, view }: { side: Side; view: string }) {
  switch (view) {
    case "heads":
      return <HeadsView side={side} />;
    case "atlas":
      return <AtlasView side={side} />;
    case "scores":
      return <ScoresView side={side} />;
    default:
      return <MatrixView side={side} view={view} />;
  }
}

function MatrixView({ side, view }: { side: Side; view: string }) {
  const answer = useHead(side);
  const [from] = useParam("from", 0);
  const matrix = answer.data;
  // While another text is on its way, the old weights must not be drawn under the new tokens.
  const fits = matrix !== null && matrix.rows === side.queries.length && matrix.columns === side.keys.length;
  return (
    <>
      {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
      {answer.since !== null && !fits && <Busy words="Bringing this head" since={answer.since} />}
      {matrix && fits && view === "heat" && (
        <Heatmap
          matrix={matrix}
          top={ONE}
          one={ONE}
          root
          label={`Heat map of ${title(side)}`}
          rowName={(row) => `${visible(side.queries[row] ?? "")} (${row})`}
          columnName={(column) => `${visible(side.keys[column] ?? "")} (${column})`}
          rowLabel={(row) => visible(side.queries[row] ?? "")}
          columnLabel={(column) => visible(side.keys[column] ?? "")}
          onPick={(query) => side.set({ query })}
          picked={side.chosen}
          name={`attention-${side.kind}-${side.layer}-${side.head}`}
        />
      )}
      {matrix && fits && view !== "heat" && (
        <LinesView side={side} matrix={matrix} from={from} setFrom={(at) => put({ from: at || null })} />
      )}
    </>
  );
}
