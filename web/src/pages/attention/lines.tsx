// Lines from each token to the tokens it looks at. Up to sixty at a time can be read; a longer text is shown in windows.
import { useRef, useState } from "preact/hooks";
import { shorten } from "../../components/chart/Plot";
import { Slider } from "../../components/controls";
import { DownloadRow } from "../../components/DownloadRow";
import { useWidth } from "../../hooks";
import { csv } from "../../lib/csv";
import { spoken } from "../../lib/encoding";
import { type Link, links, strongest } from "../../lib/links";
import type { Matrix } from "../../lib/matrix";
import { percent } from "../../lib/numbers";
import { visible } from "../../lib/tokens";
import { paint } from "../../theme";
import { encoded, file, ONE, type Side, title } from "./side";

const WINDOW = 60;
const ROW = 19;

export interface LinesViewProps {
  side: Side;
  matrix: Matrix;
  /** The query whose lines are in front while the reader has chosen none. */
  suggested: number | null;
  from: number;
  setFrom: (from: number) => void;
}

export function LinesView({ side, matrix, suggested, from, setFrom }: LinesViewProps) {
  const root = useRef<HTMLDivElement>(null);
  const long = Math.max(matrix.rows, matrix.columns) > WINDOW;
  const start = long ? Math.min(Math.max(0, from), Math.max(matrix.rows, matrix.columns) - WINDOW) : 0;
  // Queries and keys of one text go side by side; two texts of different length keep their own ends.
  const rows = span(start, matrix.rows);
  const columns = side.kind === "cross" ? span(start, matrix.columns) : rows;
  return (
    <div class="stack">
      {long && (
        <Slider
          label="Window"
          value={start}
          min={0}
          max={Math.max(matrix.rows, matrix.columns) - WINDOW}
          onChange={setFrom}
          format={(at) => `tokens ${at} to ${at + WINDOW - 1}`}
          help={`${Math.max(matrix.rows, matrix.columns)} tokens; ${WINDOW} can be read at a time. The heat map shows all.`}
        />
      )}
      <div ref={root}>
        <Picture side={side} matrix={matrix} suggested={suggested} rows={rows} columns={columns} />
      </div>
      <DownloadRow
        name={file(side, "lines", side.kind, side.layer, side.head)}
        root={root}
        csv={() => linesCsv(side, links(matrix, rows, columns, 0.001 * ONE))}
      />
    </div>
  );
}

function linesCsv(side: Side, all: Link[]): string {
  const rows = all.map((link) => [
    link.row,
    link.column,
    visible(side.queries[link.row] ?? ""),
    visible(side.keys[link.column] ?? ""),
    (link.weight / ONE).toPrecision(5),
  ]);
  return csv(encoded(side, [["query", "key", "query token", "key token", "weight"], ...rows]));
}

const span = (start: number, count: number): [number, number] => {
  const first = Math.min(start, Math.max(0, count - WINDOW));
  return [first, Math.min(count, first + WINDOW)];
};

interface PictureProps {
  side: Side;
  matrix: Matrix;
  suggested: number | null;
  rows: [number, number];
  columns: [number, number];
}

function Picture({ side, matrix, suggested, rows, columns }: PictureProps) {
  const [ref, room] = useWidth<HTMLDivElement>();
  const [pointed, setPointed] = useState<number | null>(null);
  const inside = (row: number | null): number | null => (row !== null && row >= rows[0] && row < rows[1] ? row : null);
  const asked = pointed ?? inside(side.chosen);
  const chosen = asked ?? inside(suggested);
  const width = Math.max(220, Math.floor(room));
  const names = Math.min(150, width * 0.31);
  const height = Math.max(rows[1] - rows[0], columns[1] - columns[0]) * ROW + 26;
  const y = (place: number) => 22 + place * ROW + ROW / 2;
  const step = (event: KeyboardEvent) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") side.set({ query: null });
    if (!by) return;
    event.preventDefault();
    setPointed(null);
    side.set({ query: Math.min(rows[1] - 1, Math.max(rows[0], asked === null ? rows[0] : asked + by)) });
  };
  const rowAt = (event: PointerEvent): number | null => {
    const box = (event.currentTarget as SVGSVGElement).getBoundingClientRect();
    const place = Math.floor((event.clientY - box.top - 22) / ROW);
    const index = rows[0] + place;
    return event.clientX - box.left < width * 0.6 && place >= 0 && index < rows[1] ? index : null;
  };
  const words = chosen === null ? "" : describe(side, matrix, chosen);
  return (
    <div ref={ref} class="stack">
      {room > 0 && (
        <svg
          data-chart=""
          class="att-lines"
          width={width}
          height={height}
          viewBox={`0 0 ${width} ${height}`}
          tabindex={0}
          role="group"
          aria-roledescription="chart"
          aria-label={`Attention lines of ${title(side)}. The up and down keys choose a token, Escape none. ${words}`}
          onPointerMove={(event) => setPointed(rowAt(event))}
          onPointerLeave={() => setPointed(null)}
          onPointerUp={(event) => {
            const at = rowAt(event);
            if (at !== null) side.set({ query: at === side.chosen ? null : at });
          }}
          onKeyDown={step}
        >
          <Heads side={side} names={names} width={width} />
          <Strokes {...{ matrix, rows, columns, chosen, names, width, y }} />
          <Names tokens={side.queries} range={rows} x={names} anchor="end" room={names} y={y} strong={chosen} />
          <Names tokens={side.keys} range={columns} x={width - names} anchor="start" room={names} y={y} strong={null} />
        </svg>
      )}
      <p class="small numeric" role="status">
        {words || <span class="muted">Point at a token on the left, or use the up and down keys.</span>}
      </p>
    </div>
  );
}

/** What stands over the two columns, and the encoding between them. */
function Heads({ side, names, width }: { side: Side; names: number; width: number }) {
  const { muted, text } = paint.value;
  return (
    <g font-size={11} fill={muted}>
      <text x={names} y={12} text-anchor="end">
        token
      </text>
      <text x={width - names} y={12}>
        looks at
      </text>
      {side.encoding && (
        <text x={width / 2} y={12} text-anchor="middle" fill={text}>
          {shorten(spoken(side.encoding), width - 2 * names - 12)}
        </text>
      )}
    </g>
  );
}

interface StrokesProps {
  matrix: Matrix;
  rows: [number, number];
  columns: [number, number];
  chosen: number | null;
  names: number;
  width: number;
  y: (place: number) => number;
}

/** A line for every pair of some weight; those of the chosen token in front, the others pale. */
function Strokes({ matrix, rows, columns, chosen, names, width, y }: StrokesProps) {
  const { accent } = paint.value;
  const all = links(matrix, rows, columns, 0.04 * ONE).filter((link) => link.row !== chosen);
  const own = chosen === null ? [] : links(matrix, [chosen, chosen + 1], columns, 0.003 * ONE);
  const path = (link: Link) => curve(names + 6, y(link.row - rows[0]), width - names - 6, y(link.column - columns[0]));
  return (
    <>
      <g stroke={accent} fill="none">
        {all.map((link) => (
          <path
            key={`${link.row} ${link.column}`}
            d={path(link)}
            stroke-opacity={chosen === null ? 0.15 + (0.8 * link.weight) / ONE : 0.15 * (link.weight / ONE)}
            stroke-width={0.6 + (2.4 * link.weight) / ONE}
          />
        ))}
        {own.map((link) => (
          <path
            key={`own ${link.column}`}
            d={path(link)}
            stroke-opacity={0.3 + 0.7 * Math.sqrt(link.weight / ONE)}
            stroke-width={0.8 + (3.4 * link.weight) / ONE}
          />
        ))}
      </g>
      <g fill={accent}>
        {chosen !== null && (
          <rect x={0} y={y(chosen - rows[0]) - ROW / 2} width={names + 3} height={ROW} rx={3} fill-opacity={0.16} />
        )}
        {own.map((link) => (
          <rect
            key={link.column}
            x={width - names - 3}
            y={y(link.column - columns[0]) - ROW / 2}
            width={names + 3}
            height={ROW}
            rx={3}
            fill-opacity={0.45 * Math.sqrt(link.weight / ONE)}
          />
        ))}
      </g>
    </>
  );
}

interface NamesProps {
  tokens: string[];
  range: [number, number];
  x: number;
  anchor: "start" | "end";
  room: number;
  y: (place: number) => number;
  strong: number | null;
}

function Names({ tokens, range, x, anchor, room, y, strong }: NamesProps) {
  const colours = paint.value;
  return (
    <g font-size={12} font-family="ui-monospace, monospace" fill={colours.text}>
      {tokens.slice(...range).map((token, place) => (
        <text
          key={place}
          x={x}
          y={y(place) + 4}
          text-anchor={anchor}
          font-weight={range[0] + place === strong ? 700 : 400}
        >
          {shorten(visible(token), room, 13)}
        </text>
      ))}
    </g>
  );
}

const curve = (x1: number, y1: number, x2: number, y2: number): string => {
  const bend = (x2 - x1) * 0.4;
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
};

function describe(side: Side, matrix: Matrix, row: number): string {
  const best = strongest(matrix, row, 4).map(
    ({ column, weight }) => `${visible(side.keys[column] ?? "")} ${percent(weight / ONE)}`,
  );
  return `${visible(side.queries[row] ?? "")} (${row}) looks at ${best.join(", ")}`;
}
