// A large matrix on a canvas: thousands of rows and columns, zoom, pan, and the pair beneath the pointer.
// Colours are put in once for each size that is looked at; zooming and panning only draw that picture anew. Narrow
// lines survive being made small: each coarser picture holds the largest of four values.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { useWidth } from "../hooks";
import type { Matrix } from "../lib/matrix";
import { percent } from "../lib/numbers";
import { paint } from "../theme";
import { Button } from "./controls";
import { Downloads } from "./heatmap/Downloads";
import { frameOf, paintScene } from "./heatmap/drawing";
import { Legend } from "./heatmap/Legend";
import { Levels, type Scale } from "./heatmap/levels";
import { useMoving } from "./heatmap/moving";

export interface HeatmapProps {
  matrix: Matrix;
  /** The value that gets the last colour. */
  top: number;
  /** The value that stands for 1: what is said and saved is divided by it. */
  one?: number;
  /** How values become colours. */
  scale?: Scale;
  label: string;
  rowName: (row: number) => string;
  columnName: (column: number) => string;
  /** What stands beside the picture where a cell has room for it; without: numbers. */
  rowLabel?: (row: number) => string;
  columnLabel?: (column: number) => string;
  /** What rows and columns are, in a sentence. */
  axes?: string;
  format?: (value: number) => string;
  /** Enter, or a click: this row was chosen. */
  onPick?: (row: number, column: number) => void;
  picked?: number | null;
  maxHeight?: number;
  /** The name of the files that can be downloaded; none: no buttons for it. */
  name?: string;
  /** A column that says the same in every row of the table that can be downloaded. */
  column?: { name: string; value: string };
}

export function Heatmap(props: HeatmapProps) {
  const { matrix, top, one = 1, scale = "linear", label, rowName, columnName, format = percent, picked = null } = props;
  const [room, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const colours = paint.value;
  const levels = useLevels(matrix, top, scale, colours.ramp);
  const frame = frameOf(matrix, props, width, props.maxHeight ?? 620);
  const { w, h, edge } = frame;
  const { view, cell, zoom, whole, handlers } = useMoving(canvas, matrix, frame, props.onPick);
  useEffect(() => {
    if (!canvas.current || !width) return;
    const start = performance.now();
    paintScene(canvas.current, { matrix, levels, view, frame, cell, picked, labels: props, colours });
    performance.measure("heatmap-draw", { start, end: performance.now() });
  }, [levels, matrix, view, w, h, width, cell, picked, colours]);
  const value = cell ? matrix.values[cell.row * matrix.columns + cell.column] : undefined;
  const words =
    cell && value !== undefined ? `${rowName(cell.row)} → ${columnName(cell.column)}: ${format(value / one)}` : "";
  const keys = "Arrow keys move, plus and minus zoom, Enter chooses the row.";
  return (
    <div class="heatmap" ref={room}>
      <div class="plate">
        <canvas
          ref={canvas}
          style={{
            width: `${w + edge.left}px`,
            height: `${h + edge.bottom}px`,
            touchAction: view.zoom > 1 ? "none" : "pan-y",
          }}
          tabIndex={0}
          role="application"
          aria-label={`${label}. ${matrix.rows} by ${matrix.columns}. ${keys}`}
          {...handlers}
        />
      </div>
      <Legend scale={scale} format={(share) => format((share * top) / one)} />
      <div class="bar">
        <span class="numeric" role="status">
          {words || <span class="muted">{props.axes} Point at a cell, or use the arrow keys.</span>}
        </span>
        <span class="row">
          <Button little look="quiet" label="Zoom in" onClick={() => zoom(1.6)}>
            +
          </Button>
          <Button little look="quiet" label="Zoom out" onClick={() => zoom(1 / 1.6)} disabled={view.zoom <= 1}>
            −
          </Button>
          <Button little look="quiet" onClick={whole} disabled={view.zoom <= 1} label="Whole matrix">
            Whole
          </Button>
          {props.name && matrix.values.length > 0 && (
            <Downloads
              {...{ matrix, one, levels, scale, labels: props, format, top }}
              name={props.name}
              title={label}
              axes={props.axes}
              column={props.column}
            />
          )}
        </span>
      </div>
    </div>
  );
}

function useLevels(matrix: Matrix, top: number, scale: Scale, ramp: string[]): Levels {
  const levels = useMemo(() => new Levels(matrix, top, scale, ramp), [matrix, top, scale, ramp]);
  useEffect(() => {
    // The finest picture is needed once the reader zooms in. Made when nothing else is going on, it costs nobody a wait.
    const idle = requestIdleCallback(() => levels.picture(0), { timeout: 4000 });
    return () => cancelIdleCallback(idle);
  }, [levels]);
  return levels;
}
