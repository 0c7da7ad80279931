import { show, tick } from "../../lib/numbers";
import { extent, makeScale, ticks } from "../../lib/scale";
import { paint } from "../../theme";
import type { Line, LinesPanel, Num } from "../../types";
import { type Box, Plot, type Stop, textWidth } from "./Plot";

const good = (value: Num | undefined, log: boolean): value is number =>
  value !== null && value !== undefined && Number.isFinite(value) && (!log || value > 0);

export function LinesChart({ panel, width }: { panel: LinesPanel; width: number }) {
  const colours = paint.value;
  const { log_x: logX, log_y: logY, lines } = panel;
  const xs = [...new Set(lines.flatMap((line) => line.x.filter((x) => good(x, logX))))].sort((a, b) => a - b);
  const ys = [
    ...lines.flatMap((line) => [...line.y, ...(line.low ?? []), ...(line.high ?? [])]),
    ...panel.marks.map(([, y]) => y),
  ];
  const xDomain = extent(xs, logX, 0.01);
  const yDomain = extent(ys, logY);
  const yMarks = ticks(yDomain, 5, logY);
  const left = Math.max(30, ...yMarks.map((mark) => textWidth(tick(mark)) + 10));
  const colour = (index: number) => colours.series[index % colours.series.length] ?? colours.text;
  const xScale = (box: Box) => makeScale(xDomain, [box.left, box.right], logX);
  const yScale = (box: Box) => makeScale(yDomain, [box.bottom, box.top], logY);

  const stop = (index: number, box: Box): Stop | null => {
    const x = xs[index];
    if (x === undefined) return null;
    const rows = valuesAt(lines, x, colour);
    const first = rows.find((row) => good(row.y, logY));
    return {
      x: xScale(box)(x),
      y: first ? yScale(box)(first.y) : box.bottom,
      title: `${panel.x_label || "x"} ${show(x)}`,
      rows,
    };
  };
  const legend = lines.map((line, index) => ({ name: line.name, colour: colour(index), look: line.look }));
  return (
    <Plot
      width={width}
      title={panel.title}
      xLabel={panel.x_label}
      yLabel={panel.y_label}
      plotHeight={Math.min(280, Math.max(180, width * 0.5))}
      left={left}
      legend={lines.length > 1 || lines[0]?.name ? legend : []}
      xTicks={(box) =>
        ticks(xDomain, Math.max(3, (box.right - box.left) / 80), logX).map((x) => ({
          at: xScale(box)(x),
          label: show(x),
        }))
      }
      yTicks={(box) => yMarks.map((y) => ({ at: yScale(box)(y), label: tick(y) }))}
      stops={xs.length}
      near={(px, _, box) => nearest(xs.map(xScale(box)), px)}
      stop={stop}
      summary={`Line chart of ${lines.map((line) => line.name).join(", ")}.`}
      body={(box) => (
        <g>
          <Marks marks={panel.marks} box={box} y={yScale(box)} />
          {lines.map((line, index) => (
            <OneLine
              key={`${line.name}${index}`}
              line={line}
              colour={colour(index)}
              x={xScale(box)}
              y={yScale(box)}
              logX={logX}
              logY={logY}
            />
          ))}
        </g>
      )}
    />
  );
}

/** What each line has at x, with its interval. */
function valuesAt(lines: Line[], x: number, colour: (index: number) => string) {
  return lines.flatMap((line, index) => {
    const at = line.x.indexOf(x);
    const y = line.y[at];
    if (at < 0 || y === null || y === undefined) return [];
    const low = line.low?.[at];
    const band = low === null || low === undefined ? "" : ` (${show(low)} to ${show(line.high?.[at])})`;
    return [{ name: line.name, value: show(y) + band, colour: colour(index), y }];
  });
}

function nearest(places: number[], wanted: number): number {
  let best = 0;
  places.forEach((place, index) => {
    if (Math.abs(place - wanted) < Math.abs((places[best] ?? place) - wanted)) best = index;
  });
  return best;
}

function Marks({ marks, box, y }: { marks: [string, number][]; box: Box; y: (value: number) => number }) {
  const { muted } = paint.value;
  return (
    <g>
      {marks.map(([name, value]) => (
        <g key={name}>
          <line x1={box.left} x2={box.right} y1={y(value)} y2={y(value)} stroke={muted} stroke-dasharray="3 4" />
          <text x={box.right} y={y(value) - 4} font-size={11} text-anchor="end" fill={muted}>
            {name}
          </text>
        </g>
      ))}
    </g>
  );
}

interface OneLineProps {
  line: Line;
  colour: string;
  x: (value: number) => number;
  y: (value: number) => number;
  logX: boolean;
  logY: boolean;
}

const place = (value: number): string => value.toFixed(1);

function OneLine({ line, colour, x, y, logX, logY }: OneLineProps) {
  const points = line.x.map((value, index) => {
    const height = line.y[index];
    return good(value, logX) && good(height, logY) ? { x: x(value), y: y(height) } : null;
  });
  let path = "";
  let pen = false;
  for (const point of points) {
    if (point) path += `${pen ? "L" : "M"}${place(point.x)} ${place(point.y)}`;
    pen = point !== null;
  }
  const band = line.low && line.high ? bandPath(line, x, y, logX, logY) : "";
  const few = points.length <= 16;
  return (
    <g>
      {band && <path d={band} fill={colour} fill-opacity={0.16} stroke="none" />}
      {line.look !== "dots" && (
        <path
          d={path}
          fill="none"
          stroke={colour}
          stroke-width={2}
          stroke-linejoin="round"
          stroke-dasharray={line.look === "dashed" ? "6 4" : undefined}
        />
      )}
      {(line.look === "dots" || few) &&
        points.map(
          (point, index) =>
            point && (
              <circle
                key={index}
                cx={place(point.x)}
                cy={place(point.y)}
                r={line.look === "dots" ? 2.4 : 2.8}
                fill={colour}
              />
            ),
        )}
    </g>
  );
}

function bandPath(
  line: Line,
  x: (v: number) => number,
  y: (v: number) => number,
  logX: boolean,
  logY: boolean,
): string {
  const up: string[] = [];
  const down: string[] = [];
  line.x.forEach((value, index) => {
    const [low, high] = [line.low?.[index], line.high?.[index]];
    if (!good(value, logX) || !good(low, logY) || !good(high, logY)) return;
    up.push(`${place(x(value))} ${place(y(high))}`);
    down.push(`${place(x(value))} ${place(y(low))}`);
  });
  return up.length ? `M${[...up, ...down.reverse()].join("L")}Z` : "";
}
