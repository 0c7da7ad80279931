// Beside the conversation: what could have come next, the cache by layer and position, and what it saved.
import { useRef } from "preact/hooks";
import { post } from "../../api";
import { shorten } from "../../components/chart/Plot";
import { DownloadRow } from "../../components/DownloadRow";
import { Card, Facts, Problem } from "../../components/state";
import { useAnswer, useWidth } from "../../hooks";
import { csv } from "../../lib/csv";
import { byteSize, compact, duration, percent, sampledPercent } from "../../lib/numbers";
import type { CacheState, ChatToken, DistributionAnswer, TokenChoice, TokenWeight } from "../../generated/api";
import { nameOf, visible } from "../../lib/tokens";
import { paint } from "../../theme";
import type { Conversation, Exchange } from "./conversation";
import { type Sampling, writing } from "./store";

export interface DistributionProps {
  conversation: Conversation;
  token: ChatToken;
  sampling: Sampling;
  pinned: boolean;
  onRelease: () => void;
  /** Write this token there instead, and go on as a branch. */
  onForce: (index: number, id: number) => void;
}

export function DistributionCard({ conversation, token, sampling, pinned, onRelease, onForce }: DistributionProps) {
  const root = useRef<HTMLDivElement>(null);
  const live = writing.value !== null && !pinned;
  const body = { conversation: conversation.id, index: token.index, sampling };
  const asked = useAnswer(
    live ? null : JSON.stringify(body),
    (signal) => post<DistributionAnswer>("/distribution", body, { signal, seconds: 10 }),
    80,
  );
  // An answer for another token may still stand while the right one is on its way.
  const fresh = asked.since === null && !asked.trouble ? asked.data : null;
  const top = fresh?.top?.slice(0, 12) ?? token.top;
  const forgotten = fresh?.top === null || asked.trouble?.code === "conversation_not_found";
  return (
    <Card
      title="Next token"
      beside={
        pinned ? (
          <button type="button" class="button quiet little" onClick={onRelease}>
            Back to the latest
          </button>
        ) : undefined
      }
    >
      <p class="small muted">
        At token {token.index}, <q class="mono">{visible(token.token)}</q> was written ({duration(token.ms)}). The solid
        bar is the probability after the sampling settings; the thin bar, in brackets where it differs, is the model's own. Choose
        another token to continue from it.
      </p>
      <div ref={root} class="chat-choices">
        <Distribution top={top} written={token.id} />
        <ul aria-label="Write another token here">
          {top.map((one) => (
            <li key={one.id}>
              <button
                type="button"
                disabled={writing.value !== null || one.id === token.id || conversation.problem !== null}
                aria-label={`Write ${visible(one.text)} at token ${token.index}, as a branch`}
                title={one.id === token.id ? "This token was written" : "Write this token instead, as a branch"}
                onClick={() => onForce(token.index, one.id)}
              />
            </li>
          ))}
        </ul>
      </div>
      {forgotten && (
        <p class="small muted">
          The server no longer has the logits of this token; the values are from when it was written.
        </p>
      )}
      {asked.trouble && !forgotten && <Problem trouble={asked.trouble} retry={asked.retry} />}
      <DownloadRow
        name={`distribution-${token.index}`}
        root={root}
        csv={() =>
          csv([
            ["id", "token", "p_raw", "p_sampled"],
            ...top.map((one) => [one.id, visible(one.text), one.p_raw, one.p_sampled]),
          ])
        }
      />
    </Card>
  );
}

const ROW = 24;

function Distribution({ top, written }: { top: TokenChoice[]; written: number }) {
  const [ref, room] = useWidth<HTMLDivElement>();
  const colours = paint.value;
  const width = Math.max(200, Math.floor(room));
  const names = Math.min(120, width * 0.34);
  const bar = width - names - 112;
  const most = Math.max(0.01, ...top.map((one) => Math.max(one.p_raw, one.p_sampled)));
  const height = top.length * ROW + 4;
  const words = top.slice(0, 5).map((one) => `${visible(one.text)} ${percent(one.p_sampled)}`);
  return (
    <div ref={ref} style={{ minHeight: `${height}px` }}>
      {room > 0 && (
        <svg
          data-chart=""
          width={width}
          height={height}
          viewBox={`0 0 ${width} ${height}`}
          role="img"
          aria-label={`The most likely next tokens: ${words.join(", ")}`}
        >
          {top.map((one, row) => {
            const y = row * ROW + 2;
            const mine = one.id === written;
            return (
              <g key={one.id} transform={`translate(0 ${y})`}>
                <text
                  x={names - 8}
                  y={15}
                  text-anchor="end"
                  font-size={12}
                  font-family="monospace"
                  font-weight={mine ? 700 : 400}
                  fill={mine ? colours.accent : colours.text}
                >
                  {shorten(visible(one.text), names - 14, 12.5)}
                </text>
                <rect
                  x={names}
                  y={3}
                  width={Math.max(0.5, (one.p_sampled / most) * bar)}
                  height={12}
                  rx={2}
                  fill={mine ? colours.accent : colours.series[7]}
                />
                <rect
                  x={names}
                  y={17}
                  width={Math.max(0.5, (one.p_raw / most) * bar)}
                  height={3}
                  fill={colours.muted}
                />
                <text
                  x={names + Math.max(0.5, (Math.max(one.p_sampled, one.p_raw) / most) * bar) + 6}
                  y={14}
                  font-size={11}
                  fill={colours.text}
                >
                  {sampledPercent(one.p_sampled, one.p_raw)}
                </text>
              </g>
            );
          })}
        </svg>
      )}
    </div>
  );
}

export function AttentionWords({ attention, conversation }: { attention: TokenWeight[]; conversation: Conversation }) {
  if (!attention.length) return <p class="small muted">No attention was recorded for this token.</p>;
  return (
    <p class="small">
      <span class="muted">Attends most to </span>
      {attention.slice(0, 6).map(({ key, weight }, index) => (
        <span key={key}>
          {index > 0 && ", "}
          <span class="mono">{nameOf(key, conversation.tokens, conversation.imagePlaces)}</span> <span class="muted numeric">{percent(weight)}</span>
        </span>
      ))}
    </p>
  );
}

/** Each layer a row, each position a place in it. */
function CachePicture({ cache, context }: { cache: CacheState; context: number | null }) {
  const [ref, room] = useWidth<HTMLDivElement>();
  const colours = paint.value;
  const width = Math.max(200, Math.floor(room));
  const rows = cache.layers.length;
  const row = Math.max(3, Math.min(12, 180 / Math.max(1, rows)));
  const left = 30;
  const height = rows * row + 22;
  const length = Math.max(1, ...cache.layers.map((layer) => layer.length));
  const span = Math.max(64, 2 ** Math.ceil(Math.log2(length * 1.05)));
  const shown = context === null ? span : Math.min(span, Math.max(context, length));
  const x = (position: number) => left + (position / shown) * (width - left - 2);
  const { held = 0, reused = 0 } = cache.layers[0] ?? {};
  const words = `Cache of ${rows} layers: ${held} positions held, ${reused} of them reused`;
  return (
    <div ref={ref} style={{ minHeight: `${height}px` }}>
      {room > 0 && (
        <svg
          data-chart=""
          width={width}
          height={height}
          viewBox={`0 0 ${width} ${height}`}
          role="img"
          aria-label={words}
        >
          {cache.layers.map((layer, index) => {
            const start = layer.length - layer.held;
            const fresh = start + layer.reused;
            return (
              <g key={index} transform={`translate(0 ${index * row})`}>
                <rect x={left} width={width - left - 2} height={row - 1} fill={colours.line} fill-opacity={0.45} />
                <rect
                  x={x(start)}
                  width={Math.max(0, x(fresh) - x(start))}
                  height={row - 1}
                  fill={colours.accent}
                  fill-opacity={0.4}
                />
                <rect
                  x={x(fresh)}
                  width={Math.max(0, x(layer.length) - x(fresh))}
                  height={row - 1}
                  fill={colours.accent}
                />
              </g>
            );
          })}
          <g fill={colours.muted} font-size={10}>
            {[0, rows - 1].map((index) => (
              <text key={index} x={left - 5} y={index * row + Math.max(8, row - 1)} text-anchor="end">
                {index}
              </text>
            ))}
            <text x={left} y={height - 6} font-size={11}>
              position 0
            </text>
            <text x={width - 2} y={height - 6} font-size={11} text-anchor="end">
              {shown}
            </text>
          </g>
        </svg>
      )}
    </div>
  );
}

export function CacheCard({ cache, context }: { cache: CacheState; context: number | null }) {
  const root = useRef<HTMLDivElement>(null);
  const { accent, line } = paint.value;
  const { held = 0, reused = 0 } = cache.layers[0] ?? {};
  const table = () =>
    csv([
      ["layer", "length", "held", "reused"],
      ...cache.layers.map((one, layer) => [layer, one.length, one.held, one.reused]),
    ]);
  return (
    <Card title="Cache">
      <p class="small muted">
        {byteSize(cache.bytes)} in {cache.layers.length} layers. {reused} positions were reused from earlier turns,{" "}
        {Math.max(0, held - reused)} are new.
      </p>
      <div ref={root}>
        <CachePicture cache={cache} context={context} />
      </div>
      <div class="row apart">
        <ul class="legend">
          <li>
            <i style={{ background: accent, opacity: 0.4, height: "10px" }} /> reused
          </li>
          <li>
            <i style={{ background: accent, height: "10px" }} /> new in this turn
          </li>
          <li>
            <i style={{ background: line, height: "10px" }} /> free
          </li>
        </ul>
        <DownloadRow name="cache" root={root} csv={table} />
      </div>
    </Card>
  );
}

export function CostCard({ exchange }: { exchange: Exchange }) {
  const { cost, written } = exchange;
  if (!cost) return null;
  const times = written.map((token) => token.ms);
  const mean = times.length ? times.reduce((sum, ms) => sum + ms, 0) / times.length : 0;
  const slowed = written.at(-1)?.slowed;
  const saved = cost.projections_cached > 0 ? cost.projections_uncached / cost.projections_cached : 0;
  return (
    <Card title="What this turn cost">
      <Facts
        facts={[
          { name: "Keys computed with the cache", value: compact(cost.projections_cached) },
          { name: "Without the cache", value: compact(cost.projections_uncached) },
          { name: "Work saved", value: saved ? saved.toFixed(saved < 10 ? 1 : 0) : "–", unit: "times" },
          { name: "Tokens written", value: written.length },
          { name: "Time per token", value: mean ? duration(mean) : "–" },
          { name: "Time to first token", value: cost.ms_first ? duration(cost.ms_first) : "–" },
        ]}
      />
      {slowed && (
        <p class="small muted">
          Watching its attention made this slower: no native step runs this model here ({slowed}).
        </p>
      )}
    </Card>
  );
}
