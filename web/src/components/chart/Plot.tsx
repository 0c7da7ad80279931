// What all charts share: a title, axes, a legend inside the picture (so that a download has it), and a cursor that
// follows the pointer or the arrow keys and says the values beneath it.
import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { paint } from "../../theme";

export interface Box {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

export interface LegendEntry {
  name: string;
  colour: string;
  look?: "solid" | "dashed" | "dots" | "block";
}

export interface Tick {
  at: number;
  label: string;
}

export interface Stop {
  x: number;
  y: number;
  title: string;
  rows: { name: string; value: string; colour?: string }[];
}

const SMALL = 11;
const LETTER = 0.56;

/** About as wide as the letters are in common sans-serif fonts: "MHA" takes nearly twice the room of "lit". */
export const textWidth = (text: string, size = SMALL): number =>
  [...text].reduce((sum, sign) => sum + size * letterWidth(sign), 0);

const letterWidth = (sign: string): number => {
  if (/[ .,:;'!|()[\]/fijlrt]/.test(sign)) return 0.36;
  if (/[mwMW%@]/.test(sign)) return 0.92;
  return /[A-Z]/.test(sign) ? 0.7 : 0.61;
};

export const shorten = (text: string, room: number, size = SMALL): string => {
  const letters = Math.max(2, Math.floor(room / (size * LETTER)));
  return text.length <= letters ? text : `${text.slice(0, letters - 1)}…`;
};

export function wrap(text: string, room: number, size: number): string[] {
  const lines: string[] = [];
  let line = "";
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const longer = line ? `${line} ${word}` : word;
    if (line && textWidth(longer, size) > room) {
      lines.push(line);
      line = word;
    } else line = longer;
  }
  if (line) lines.push(line);
  return lines;
}

interface Placed extends LegendEntry {
  x: number;
  y: number;
}

function placeLegend(entries: LegendEntry[], width: number): { placed: Placed[]; height: number } {
  const placed: Placed[] = [];
  let x = 0;
  let y = 0;
  for (const entry of entries) {
    const name = shorten(entry.name, width - 24);
    const size = 22 + textWidth(name) + 14;
    if (x > 0 && x + size > width) {
      x = 0;
      y += 16;
    }
    placed.push({ ...entry, name, x, y });
    x += size;
  }
  return { placed, height: entries.length ? y + 20 : 0 };
}

export interface PlotProps {
  width: number;
  title: string;
  xLabel: string;
  yLabel: string;
  plotHeight: number;
  /** Room for the labels of the y axis and of the x axis. */
  left: number;
  bottom?: number;
  legend: LegendEntry[];
  xTicks: (box: Box) => Tick[];
  yTicks: (box: Box) => Tick[];
  rules?: boolean;
  slanted?: boolean;
  body: (box: Box) => ComponentChildren;
  /** How many places the cursor has, which one is nearest to a point, and what stands there. */
  stops: number;
  near: (x: number, y: number, box: Box) => number;
  stop: (index: number, box: Box) => Stop | null;
  /** How far the up and down keys go; 0: not at all. */
  stride?: number;
  /** A click on a place, or Enter where the cursor stands. */
  choose?: (index: number) => void;
  /** Said to who cannot see it. */
  summary: string;
}

export function Plot(props: PlotProps) {
  const { width, title, xLabel, yLabel, left, bottom = 22, legend } = props;
  const colours = paint.value;
  const [cursor, setCursor] = useState<number | null>(null);
  const svg = useRef<SVGSVGElement>(null);
  const lines = title ? wrap(title, width - 8, 13) : [];
  const { placed, height: legendHeight } = placeLegend(legend, width - left);
  const top = lines.length * 17 + (lines.length ? 4 : 0) + legendHeight + (yLabel ? 18 : 6);
  const box: Box = { left, top, right: width - 10, bottom: top + props.plotHeight };
  const height = box.bottom + bottom + (xLabel ? 18 : 0);
  const stop = cursor === null || cursor >= props.stops ? null : props.stop(cursor, box);

  const under = (event: MouseEvent): number | null => {
    const frame = svg.current?.getBoundingClientRect();
    if (!frame || !props.stops) return null;
    const scale = width / frame.width;
    return props.near((event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale, box);
  };
  const follow = (event: PointerEvent) => setCursor(under(event));
  const click = (event: MouseEvent) => {
    const at = under(event);
    if (at !== null) props.choose?.(at);
  };
  const step = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: props.stride ?? 0, ArrowUp: -(props.stride ?? 0) }[event.key];
    if (event.key === "Escape") setCursor(null);
    if (event.key === "Enter" && cursor !== null) props.choose?.(cursor);
    if (!by || !props.stops) return;
    event.preventDefault();
    setCursor((old) => (old === null ? 0 : Math.min(props.stops - 1, Math.max(0, old + by))));
  };

  return (
    <div class="panel">
      <svg
        ref={svg}
        data-chart=""
        viewBox={`0 0 ${width} ${height}`}
        width={width}
        height={height}
        role="group"
        aria-roledescription="chart"
        aria-label={`${title || props.summary}. ${props.summary} Arrow keys read the values${props.choose ? ", Enter chooses one" : ""}.`}
        style={props.choose ? "cursor: pointer" : undefined}
        tabindex={0}
        onClick={click}
        onPointerMove={follow}
        onPointerDown={follow}
        onPointerLeave={() => setCursor(null)}
        onBlur={() => setCursor(null)}
        onKeyDown={step}
      >
        {lines.map((line, index) => (
          <text key={index} x={0} y={13 + index * 17} font-size={13} font-weight={600} fill={colours.text}>
            {line}
          </text>
        ))}
        <g transform={`translate(${left} ${lines.length * 17 + (lines.length ? 14 : 8)})`}>
          {placed.map((entry) => (
            <g key={entry.name} transform={`translate(${entry.x} ${entry.y})`}>
              <LegendMark entry={entry} />
              <text x={22} y={4} font-size={SMALL} fill={colours.text}>
                {entry.name}
              </text>
            </g>
          ))}
        </g>
        {yLabel && (
          <text x={0} y={top - 7} font-size={SMALL} fill={colours.muted}>
            {shorten(yLabel, width)}
          </text>
        )}
        <Axes {...props} box={box} bottom={bottom} />
        {props.body(box)}
        {stop && <Cursor stop={stop} box={box} colour={colours.text} />}
      </svg>
      {stop && <Tip stop={stop} width={width} />}
      <div class="hidden" aria-live="polite">
        {stop && `${stop.title}: ${stop.rows.map((row) => `${row.name} ${row.value}`).join(", ")}`}
      </div>
    </div>
  );
}

function LegendMark({ entry }: { entry: LegendEntry }) {
  if (entry.look === "block") return <rect x={2} y={-5} width={12} height={10} rx={2} fill={entry.colour} />;
  if (entry.look === "dots") return <circle cx={8} cy={0} r={3} fill={entry.colour} />;
  return (
    <line
      x1={0}
      x2={16}
      stroke={entry.colour}
      stroke-width={2.2}
      stroke-dasharray={entry.look === "dashed" ? "5 3" : undefined}
    />
  );
}

function Axes({
  box,
  bottom,
  xLabel,
  xTicks,
  yTicks,
  rules = true,
  slanted,
}: PlotProps & { box: Box; bottom: number }) {
  const colours = paint.value;
  return (
    <g>
      {yTicks(box).map((tick) => (
        <g key={`${tick.at}${tick.label}`}>
          {rules && <line x1={box.left} x2={box.right} y1={tick.at} y2={tick.at} stroke={colours.line} />}
          <text x={box.left - 6} y={tick.at + 4} font-size={SMALL} text-anchor="end" fill={colours.muted}>
            {tick.label}
          </text>
        </g>
      ))}
      {xTicks(box).map((tick) =>
        slanted ? (
          <text
            key={`${tick.at}${tick.label}`}
            transform={`translate(${tick.at + 4} ${box.bottom + 12}) rotate(-40)`}
            font-size={SMALL}
            text-anchor="end"
            fill={colours.muted}
          >
            {tick.label}
          </text>
        ) : (
          <text
            key={`${tick.at}${tick.label}`}
            x={Math.min(tick.at, box.right + 10 - textWidth(tick.label) / 2)}
            y={box.bottom + 16}
            font-size={SMALL}
            text-anchor="middle"
            fill={colours.muted}
          >
            {tick.label}
          </text>
        ),
      )}
      {rules && <line x1={box.left} x2={box.right} y1={box.bottom} y2={box.bottom} stroke={colours.muted} />}
      {xLabel && (
        <text
          x={(box.left + box.right) / 2}
          y={box.bottom + bottom + 12}
          font-size={SMALL}
          text-anchor="middle"
          fill={colours.muted}
        >
          {shorten(xLabel, box.right - box.left + box.left)}
        </text>
      )}
    </g>
  );
}

function Cursor({ stop, box, colour }: { stop: Stop; box: Box; colour: string }) {
  return (
    <g data-cursor="">
      <line x1={stop.x} x2={stop.x} y1={box.top} y2={box.bottom} stroke={colour} stroke-opacity={0.45} />
      <circle cx={stop.x} cy={stop.y} r={3.5} fill={colour} />
    </g>
  );
}

function Tip({ stop, width }: { stop: Stop; width: number }) {
  const right = stop.x > width / 2;
  const place = right
    ? { right: `${((width - stop.x + 10) / width) * 100}%` }
    : { left: `${((stop.x + 10) / width) * 100}%` };
  return (
    <div class="tip" style={{ ...place, top: "24px" }} aria-hidden="true">
      <b>{stop.title}</b>
      {stop.rows.slice(0, 12).map((row) => (
        <div key={row.name}>
          {row.colour && <span style={{ color: row.colour }}>■ </span>}
          {row.name && `${row.name}: `}
          {row.value}
        </div>
      ))}
    </div>
  );
}
