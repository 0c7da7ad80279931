// The scores of one query before the softmax, taken apart: what comes from content, what from position.
import { useRef, useState } from "preact/hooks";
import { shorten } from "../../components/chart/Plot";
import { Check, Select, Slider } from "../../components/controls";
import { DownloadRow } from "../../components/DownloadRow";
import { Busy, Problem } from "../../components/state";
import { useWidth } from "../../hooks";
import { css, mix, rgb } from "../../lib/colour";
import { csv } from "../../lib/csv";
import type { ScoresAnswer } from "../../generated/api";
import { spoken } from "../../lib/encoding";
import { show } from "../../lib/numbers";
import { makeScale, ticks } from "../../lib/scale";
import { type Bar, grouped, type Part, pickKeys, stacked } from "../../lib/stack";
import { visible } from "../../lib/tokens";
import { useParam } from "../../router";
import { paint, type Paint } from "../../theme";
import { encoded, file, type Side, useScores } from "./side";

const MOST = 40;
const ROW = 20;

export function ScoresView({ side }: { side: Side }) {
  const answer = useScores(side);
  const [which, setWhich] = useParam("keys", "near");
  const [bands, setBands] = useParam("bands", true);
  const root = useRef<HTMLDivElement>(null);
  const last = Math.max(0, side.queries.length - 1);
  const data = answer.data;
  const parts = data ? (bands ? data.parts : grouped(data.parts)) : [];
  return (
    <>
      <div class="att-controls">
        <Slider
          label="Query"
          value={side.query}
          min={0}
          max={Math.max(1, last)}
          disabled={last === 0}
          onChange={(query) => side.set({ query })}
          format={(at) => `${at}: ${visible(side.queries[at] ?? "")}`}
        />
        <Select
          label="Keys"
          value={which}
          onChange={setWhich}
          options={[
            { value: "near", label: `the last ${MOST}, in order` },
            { value: "large", label: `the ${MOST} largest scores` },
          ]}
        />
        <Check
          label="Split position into RoPE frequency bands"
          value={bands && !data?.note}
          disabled={Boolean(data?.note)}
          onChange={setBands}
        />
      </div>
      {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
      {answer.since !== null && <Busy words="Computing the parts of the scores" since={answer.since} />}
      {data && (
        <>
          {data.note && <p class="note small">{data.note}</p>}
          <div ref={root}>
            <ScoreBars
              name={side.encoding ? spoken(side.encoding) : ""}
              scores={data}
              parts={parts}
              keys={pickKeys(data.score, which === "large" ? "large" : "near", MOST)}
            />
          </div>
          <DownloadRow
            name={file(side, "scores", side.kind, side.layer, side.head, side.query)}
            root={root}
            csv={() => scoresCsv(side, data)}
          />
        </>
      )}
    </>
  );
}

function scoresCsv(side: Side, { keys, score, parts }: ScoresAnswer): string {
  const rows = keys.map((token, key) => [key, visible(token), score[key], ...parts.map((part) => part.values[key])]);
  return csv(encoded(side, [["key", "token", "score", ...parts.map((part) => part.name)], ...rows]));
}

/** Content in the first colour; the parts of position from the second to the third, in their order. */
function partColours(parts: Part[], colours: Paint): string[] {
  const content = parts.filter((part) => part.of === "content").length;
  const others = parts.length - content;
  const ends = [colours.series[1], colours.series[2]].map((hex) => rgb(hex ?? "#888888"));
  let seen = 0;
  let bases = 0;
  return parts.map((part) => {
    if (part.of === "content") {
      bases += 1;
      return bases === 1 ? (colours.series[0] ?? colours.accent) : (colours.series[5] ?? colours.accent);
    }
    const share = others > 1 ? seen / (others - 1) : 0;
    seen += 1;
    return css(mix(ends, share));
  });
}

interface Row {
  key: number;
  bars: Bar[];
  total: number;
}

/** Where everything stands in a picture of this width. */
function layout(scores: ScoresAnswer, parts: Part[], keys: number[], width: number, name: string) {
  const names = Math.min(130, width * 0.28);
  const rows: Row[] = keys.map((key) => ({ key, bars: stacked(parts, key), total: scores.score[key] ?? 0 }));
  const ends = rows.flatMap((row) => [row.total, ...row.bars.flatMap((bar) => [bar.from, bar.to])]);
  const [low, high] = [Math.min(0, ...ends), Math.max(0, ...ends)];
  const x = makeScale([low, high > low ? high : low + 1], [names + 8, width - 12]);
  const marks = ticks(x.domain, Math.max(3, (width - names) / 90));
  const legend = legendRows(parts, width - names, name ? 18 : 0);
  const top = legend.height + 8;
  return { width, names, rows, x, marks, legend, top, bottom: top + rows.length * ROW, name };
}

function ScoreBars({ name, scores, parts, keys }: { name: string; scores: ScoresAnswer; parts: Part[]; keys: number[] }) {
  const [ref, room] = useWidth<HTMLDivElement>();
  const [at, setAt] = useState<number | null>(null);
  const { rows, ...places } = layout(scores, parts, keys, Math.max(240, Math.floor(room)), name);
  const pointed = at === null ? undefined : rows[at];
  const said = (key: number) => parts.map((part) => `${part.name} ${show(part.values[key])}`).join(" + ");
  const token = pointed ? visible(scores.keys[pointed.key] ?? "") : "";
  const words = pointed ? `${token} (${pointed.key}): ${show(pointed.total)} = ${said(pointed.key)}` : "";
  const step = (event: KeyboardEvent) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    setAt((old) => Math.min(rows.length - 1, Math.max(0, (old ?? -by) + by)));
  };
  const point = (event: PointerEvent) => {
    const box = (event.currentTarget as SVGSVGElement).getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - places.top) / ROW);
    setAt(row >= 0 && row < rows.length ? row : null);
  };
  const { width } = places;
  const height = places.bottom + 24;
  return (
    <div ref={ref} class="stack">
      {room > 0 && (
        <svg
          data-chart=""
          class="att-lines"
          width={width}
          height={height}
          viewBox={`0 0 ${width} ${height}`}
          role="group"
          tabindex={0}
          aria-roledescription="chart"
          aria-label={`Scores of ${rows.length} keys in ${parts.length} parts${name && `, ${name}`}. The up and down keys read them.`}
          onKeyDown={step}
          onPointerMove={point}
          onPointerLeave={() => setAt(null)}
        >
          <Bars rows={rows} tokens={scores.keys} tones={partColours(parts, paint.value)} at={at} {...places} />
        </svg>
      )}
      <p class="small numeric" role="status">
        {words || <span class="muted">The dark mark is the total score. Point at a key to see its parts.</span>}
      </p>
    </div>
  );
}

type BarsProps = ReturnType<typeof layout> & { tokens: string[]; tones: string[]; at: number | null };

function Bars({ rows, tokens, tones, at, width, names, x, marks, legend, top, bottom, name }: BarsProps) {
  const { accent, text } = paint.value;
  return (
    <>
      {name && (
        <text x={names + 8} y={11} font-size={12} fill={text}>
          {shorten(name, width - names - 8)}
        </text>
      )}
      <Frame {...{ legend, tones, marks, x, top, bottom, left: names + 8 }} />
      {rows.map((row, index) => (
        <g key={row.key} transform={`translate(0 ${top + index * ROW})`}>
          {index === at && <rect data-cursor="" width={width} height={ROW} fill={accent} fill-opacity={0.12} />}
          <ScoreRow row={row} name={visible(tokens[row.key] ?? "")} tones={tones} x={x} names={names} />
        </g>
      ))}
    </>
  );
}

interface ScoreRowProps {
  row: Row;
  name: string;
  tones: string[];
  x: (value: number) => number;
  names: number;
}

function ScoreRow({ row, name, tones, x, names }: ScoreRowProps) {
  const { text } = paint.value;
  return (
    <>
      <text x={names} y={14} font-size={12} text-anchor="end" font-family="ui-monospace, monospace" fill={text}>
        {shorten(name, names, 13)}
      </text>
      {row.bars.map((bar, part) => {
        const [from, to] = [x(bar.from), x(bar.to)];
        return (
          <rect
            key={part}
            x={Math.min(from, to)}
            width={Math.abs(to - from)}
            y={4}
            height={ROW - 8}
            fill={tones[part]}
          />
        );
      })}
      <line x1={x(row.total)} x2={x(row.total)} y1={1} y2={ROW - 1} stroke={text} stroke-width={2} />
    </>
  );
}

interface FrameProps {
  legend: Legend;
  tones: string[];
  marks: number[];
  x: (value: number) => number;
  top: number;
  bottom: number;
  left: number;
}

/** The legend over the bars, and the rules behind them. */
function Frame({ legend, tones, marks, x, top, bottom, left }: FrameProps) {
  const colours = paint.value;
  return (
    <>
      {legend.places.map((place, index) => (
        <g key={index} transform={`translate(${left + place.x} ${place.y})`}>
          <rect width={11} height={11} rx={2} fill={tones[index]} />
          <text x={16} y={10} font-size={11} fill={colours.text}>
            {place.name}
          </text>
        </g>
      ))}
      {marks.map((mark) => (
        <g key={mark}>
          <line x1={x(mark)} x2={x(mark)} y1={top} y2={bottom} stroke={mark === 0 ? colours.muted : colours.line} />
          <text x={x(mark)} y={bottom + 16} font-size={11} text-anchor="middle" fill={colours.muted}>
            {show(mark)}
          </text>
        </g>
      ))}
    </>
  );
}

interface Legend {
  places: { x: number; y: number; name: string }[];
  height: number;
}

function legendRows(parts: Part[], room: number, from: number): Legend {
  let x = 0;
  let y = from;
  const places = parts.map((part) => {
    const name = shorten(part.name, room - 30);
    const size = 16 + name.length * 6.3 + 14;
    if (x > 0 && x + size > room) {
      x = 0;
      y += 17;
    }
    const place = { x, y, name };
    x += size;
    return place;
  });
  return { places, height: y + 17 };
}
