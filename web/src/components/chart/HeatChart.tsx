// A matrix of a figure. Small ones may carry their numbers; for thousands of rows see Heatmap.
import { useMemo } from "preact/hooks";
import { css, mix, over, type Rgb, rgb, table } from "../../lib/colour";
import { show } from "../../lib/numbers";
import { every } from "../../lib/scale";
import { paint } from "../../theme";
import type { HeatPanel } from "../../types";
import { type Box, type LegendEntry, Plot, type Stop, shorten, textWidth } from "./Plot";

export interface Span {
  low: number;
  high: number;
}

function span(panel: HeatPanel): Span {
  let low = Infinity;
  let high = -Infinity;
  for (const row of panel.values) {
    for (const value of row) {
      if (value === null || !Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return { low: 0, high: 1 };
  if (panel.diverging) {
    const size = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return { low: -size, high: size };
  }
  return { low, high: high > low ? high : low + 1 };
}

/** The place of a value among the colours. The smallest one keeps some colour: without any, a cell is empty. */
function share(value: number, { low, high }: Span, diverging: boolean): number {
  const part = (value - low) / (high - low);
  return diverging ? part : 0.06 + 0.94 * part;
}

function picture(panel: HeatPanel, range: Span, stops: string[]): string {
  const rows = panel.values.length;
  const columns = panel.values[0]?.length ?? 0;
  if (!rows || !columns) return "";
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  if (!context) return "";
  const image = context.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = table(stops);
  panel.values.forEach((row, y) => {
    row.forEach((value, x) => {
      if (value === null || !Number.isFinite(value)) return;
      pixels[y * columns + x] = colours[Math.round(share(value, range, panel.diverging) * 255)] ?? 0;
    });
  });
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

/** How large the matrix is drawn, and which of its names have room. */
function layout(panel: HeatPanel, width: number) {
  const rows = panel.values.length;
  const columns = panel.values[0]?.length ?? 0;
  const yName = (index: number) => panel.y_ticks?.[index] ?? String(index);
  const xName = (index: number) => panel.x_ticks?.[index] ?? String(index);
  const widest = Math.max(24, ...panel.values.map((_, index) => textWidth(yName(index)) + 10));
  const left = panel.y_ticks ? Math.min(width * 0.3, widest) : Math.max(28, textWidth(String(rows)) + 10);
  const plotWidth = width - left - 10;
  const plotHeight = Math.min(420, Math.max(Math.min(rows * 26, 120), (plotWidth * rows) / Math.max(1, columns)));
  const cell = plotWidth / Math.max(1, columns);
  const longest = Math.max(0, ...Array.from({ length: columns }, (_, index) => textWidth(xName(index))));
  const numbers = panel.x_ticks?.every((tick) => Number.isFinite(Number(tick))) ?? true; // some of them will do
  const slanted = !numbers && longest > cell - 4;
  const xStep = every(columns, slanted ? plotWidth / 14 : plotWidth / Math.max(26, longest + 8));
  return { yName, xName, left, plotHeight, cell, longest, slanted, xStep, yStep: every(rows, plotHeight / 14) };
}

function Written({
  panel,
  box,
  cell,
  colourOf,
}: {
  panel: HeatPanel;
  box: Box;
  cell: number;
  colourOf: (value: number) => Rgb;
}) {
  const rows = panel.values.length;
  const columns = panel.values[0]?.length ?? 1;
  return (
    <g font-size={Math.min(12, cell / 3.2)} text-anchor="middle">
      {panel.values.map((row, y) =>
        row.map((value, x) =>
          value === null ? null : (
            <text
              key={`${y} ${x}`}
              x={box.left + ((x + 0.5) / columns) * (box.right - box.left)}
              y={box.top + ((y + 0.5) / rows) * (box.bottom - box.top) + 4}
              fill={over(colourOf(value))}
            >
              {cell < 44 ? value.toFixed(2).replace(/^(-?)0\./, "$1.") : show(value)}
            </text>
          ),
        ),
      )}
    </g>
  );
}

/** The ends of the colour scale, and 0 between them where it has two sides. */
export function legendOf({ low, high }: Span, diverging: boolean, colourOf: (value: number) => Rgb): LegendEntry[] {
  const values = diverging ? [low, 0, high] : [low, high];
  return values.map((value) => ({ name: show(value), colour: css(colourOf(value)), look: "block" as const }));
}

export interface HeatChartProps {
  panel: HeatPanel;
  width: number;
  choose?: (row: number, column: number) => void;
}

export function HeatChart({ panel, width, choose }: HeatChartProps) {
  const colours = paint.value;
  const rows = panel.values.length;
  const columns = panel.values[0]?.length ?? 0;
  const range = useMemo(() => span(panel), [panel]);
  const stops = panel.diverging ? colours.diverging : colours.ramp;
  const image = useMemo(() => picture(panel, range, stops), [panel, stops]);
  const { yName, xName, left, plotHeight, cell, longest, slanted, xStep, yStep } = layout(panel, width);
  const colourOf = (value: number) => mix(stops.map(rgb), share(value, range, panel.diverging));

  const stop = (index: number, box: Box): Stop | null => {
    const [y, x] = [Math.floor(index / columns), index % columns];
    const value = panel.values[y]?.[x];
    return {
      x: box.left + ((x + 0.5) / columns) * (box.right - box.left),
      y: box.top + ((y + 0.5) / rows) * (box.bottom - box.top),
      title: `${panel.y_label || "row"} ${yName(y)}, ${panel.x_label || "column"} ${xName(x)}`,
      rows: [{ name: "", value: value === null || value === undefined ? "nothing" : show(value), colour: undefined }],
    };
  };
  return (
    <Plot
      width={width}
      title={panel.title}
      xLabel={panel.x_label}
      yLabel={panel.y_label}
      plotHeight={plotHeight}
      left={left}
      bottom={slanted ? Math.min(90, 18 + longest * 0.65) : 22}
      slanted={slanted}
      rules={false}
      legend={legendOf(range, panel.diverging, colourOf)}
      xTicks={(box) =>
        Array.from({ length: columns }, (_, index) => index).flatMap((index) =>
          index % xStep
            ? []
            : [
                {
                  at: box.left + ((index + 0.5) / columns) * (box.right - box.left),
                  label: shorten(xName(index), 110),
                },
              ],
        )
      }
      yTicks={(box) =>
        panel.values.flatMap((_, index) =>
          index % yStep
            ? []
            : [
                {
                  at: box.top + ((index + 0.5) / rows) * (box.bottom - box.top),
                  label: shorten(yName(index), left - 8),
                },
              ],
        )
      }
      stops={rows * columns}
      stride={columns}
      near={(px, py, box) => {
        const x = Math.min(columns - 1, Math.max(0, Math.floor(((px - box.left) / (box.right - box.left)) * columns)));
        const y = Math.min(rows - 1, Math.max(0, Math.floor(((py - box.top) / (box.bottom - box.top)) * rows)));
        return y * columns + x;
      }}
      stop={stop}
      choose={choose && ((index) => choose(Math.floor(index / columns), index % columns))}
      summary={`Heat map of ${rows} by ${columns} values.`}
      body={(box) => (
        <g>
          <image
            href={image}
            x={box.left}
            y={box.top}
            width={box.right - box.left}
            height={box.bottom - box.top}
            preserveAspectRatio="none"
            style="image-rendering: pixelated"
          />
          <rect
            x={box.left}
            y={box.top}
            width={box.right - box.left}
            height={box.bottom - box.top}
            fill="none"
            stroke={colours.line}
          />
          {panel.written && cell >= 22 && <Written panel={panel} box={box} cell={cell} colourOf={colourOf} />}
        </g>
      )}
    />
  );
}
