// One side of the page: what is chosen, and its picture.
import type { ComponentChildren } from "preact";
import { Select, Slider } from "../../components/controls";
import { Heatmap } from "../../components/Heatmap";
import { ModelPicker } from "../../components/ModelPicker";
import { Busy, Card, Empty, Problem } from "../../components/state";
import { Progress } from "./progress";
import { spoken } from "../../lib/encoding";
import { visible } from "../../lib/tokens";
import { put, useParam } from "../../router";
import { AtlasView, HeadsView } from "./heads";
import { LinesView } from "./lines";
import { ScoresView } from "./scores";
import { HeadWords, suggestedQuery, useHeadEntry } from "./words";
import { file, heading, ONE, type Side, type SiteKind, title, useHead } from "./side";

const LONG = 64; // tokens: over so many the weights are small, and a logarithm shows them

const KINDS: Record<SiteKind, string> = { self: "self-attention", cross: "cross-attention", encoder: "encoder" };

export interface SideCardProps {
  side: Side;
  view: string;
  /** Which of two it is. */
  name?: string;
  /** What is chosen in the place of a model: an encoding. */
  pick?: ComponentChildren;
  /** More about the side, beneath its controls. */
  children?: ComponentChildren;
}

export function SideCard({ side, view, name, pick, children }: SideCardProps) {
  const { capture } = side;
  // Where a text or an encoding was refused, the picture of the one before it would stand under the wrong name.
  const shown = capture.data && !capture.trouble;
  return (
    <Card title={name ? `${name}: ${heading(side)}` : undefined}>
      <Controls side={side} view={view} pick={pick} />
      {children}
      {capture.trouble && <Problem trouble={capture.trouble} retry={capture.retry} />}
      <Progress of={capture} words="Reading the text" again="Read" />
      {!capture.data && !capture.trouble && capture.since === null && <Empty>The model is not ready yet.</Empty>}
      {shown && side.seeking && <Progress of={side.seeking} words="Looking for an interesting head" again="Look" />}
      {shown && !side.seeking && <SideView side={side} view={view} />}
    </Card>
  );
}

function Controls({ side, view, pick }: { side: Side; view: string; pick?: ComponentChildren }) {
  return (
    <div class="att-controls att-side">
      {pick ?? (
        <ModelPicker
          value={side.name}
          onChange={(model) => side.set({ model: model || null, layer: null, head: null, query: null })}
        />
      )}
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
  const answer = useHead(side, view === "heat");
  const entry = useHeadEntry(side);
  const [from] = useParam("from", 0);
  const matrix = answer.data;
  // While another text is on its way, the old weights must not be drawn under the new tokens.
  const fits = matrix !== null && matrix.rows === side.queries.length && matrix.columns === side.keys.length;
  return (
    <>
      {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
      {answer.since !== null && !fits && <Busy words="Loading this head" since={answer.since} />}
      {matrix && fits && entry && <HeadWords head={entry} side={side} matrix={matrix} />}
      {matrix && fits && view === "heat" && (
        <Heatmap
          matrix={matrix}
          top={ONE}
          one={ONE}
          scale={side.keys.length > LONG ? "log" : "root"}
          label={`Heat map of ${title(side)}`}
          rowName={(row) => `${visible(side.queries[row] ?? "")} (${row})`}
          columnName={(column) => `${visible(side.keys[column] ?? "")} (${column})`}
          rowLabel={(row) => visible(side.queries[row] ?? "")}
          columnLabel={(column) => visible(side.keys[column] ?? "")}
          axes="Rows are queries, columns are the keys they attend to."
          onPick={(query) => side.set({ query })}
          picked={side.chosen}
          name={file(side, "attention", side.kind, side.layer, side.head)}
          column={side.encoding ? { name: "encoding", value: spoken(side.encoding) } : undefined}
        />
      )}
      {matrix && fits && view !== "heat" && (
        <LinesView
          side={side}
          matrix={matrix}
          suggested={entry && suggestedQuery(entry.label, matrix, side.queries)}
          from={from}
          setFrom={(at) => put({ from: at || null })}
        />
      )}
    </>
  );
}
