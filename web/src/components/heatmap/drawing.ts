// What is drawn on the canvas of a heat map: the picture, the marks over it, names and numbers beside it.
import type { Matrix, View } from "../../lib/matrix";
import { ticks } from "../../lib/scale";
import type { Paint } from "../../theme";
import type { Levels } from "./levels";

export interface Cell {
  row: number;
  column: number;
}

export interface Labels {
  rowLabel?: (row: number) => string;
  columnLabel?: (column: number) => string;
}

/** The picture's own size on the page, and the room around it. */
export interface Frame {
  w: number;
  h: number;
  edge: Edge;
}

/** All there is to draw. */
export interface Scene {
  matrix: Matrix;
  levels: Levels;
  view: View;
  frame: Frame;
  cell: Cell | null;
  picked: number | null;
  labels: Labels;
  colours: Paint;
}

/** Cells are square where both sides have room; names or numbers stand at the left and beneath. */
export function frameOf(matrix: Matrix, labels: Labels, width: number, maxHeight: number): Frame {
  const named = labels.columnLabel !== undefined && matrix.columns <= 60 && width >= 480;
  const edge = { left: labels.rowLabel === undefined ? 48 : width < 480 ? 64 : 96, bottom: named ? 76 : 22, named };
  const most = (maxHeight * matrix.columns) / Math.max(1, matrix.rows);
  const w = Math.max(24, Math.floor(Math.min(width - edge.left, Math.max(240, most))));
  const h = Math.max(24, Math.min(maxHeight, Math.round((w * matrix.rows) / Math.max(1, matrix.columns))));
  return { w, h, edge };
}

export function paintScene(canvas: HTMLCanvasElement, scene: Scene): void {
  const context = canvas.getContext("2d");
  if (!context) return;
  const { matrix, levels, view, frame, cell, picked, labels, colours } = scene;
  const { w, h, edge } = frame;
  const ratio = devicePixelRatio || 1;
  const [wide, high] = [Math.round((w + edge.left) * ratio), Math.round((h + edge.bottom) * ratio)];
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== high) canvas.height = high;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, wide, high);
  context.setTransform(ratio, 0, 0, ratio, edge.left * ratio, 0);
  context.save();
  context.beginPath();
  context.rect(0, 0, w, h);
  context.clip();
  draw(context, levels, matrix, view, w, h, ratio);
  mark(context, matrix, view, w, h, cell, picked, colours.danger);
  context.restore();
  annotate(context, matrix, labels, view, frame, colours);
}

/** The room beside and beneath the picture; `named`: names stand beneath, on the slant, else numbers. */
export interface Edge {
  left: number;
  bottom: number;
  named: boolean;
}

function draw(
  context: CanvasRenderingContext2D,
  levels: Levels,
  matrix: Matrix,
  view: View,
  w: number,
  h: number,
  ratio: number,
) {
  const perCell = (w * view.zoom * ratio) / matrix.columns;
  const picture = levels.picture(
    Math.min(levels.count - 1, perCell >= 1 ? 0 : Math.floor(Math.log2(1 / perCell) + 0.3)),
  );
  context.imageSmoothingEnabled = perCell < 1;
  const [pw, ph] = [picture.width, picture.height];
  context.drawImage(picture, view.x * pw, view.y * ph, pw / view.zoom, ph / view.zoom, 0, 0, w, h);
}

function mark(
  context: CanvasRenderingContext2D,
  matrix: Matrix,
  view: View,
  w: number,
  h: number,
  cell: Cell | null,
  picked: number | null,
  colour: string,
) {
  const x = (column: number) => (column / matrix.columns - view.x) * view.zoom * w;
  const y = (row: number) => (row / matrix.rows - view.y) * view.zoom * h;
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  if (picked !== null && picked >= 0) context.strokeRect(-2, y(picked), w + 4, Math.max(1, y(picked + 1) - y(picked)));
  if (!cell) return;
  context.globalAlpha = 0.55;
  context.beginPath();
  context.moveTo(0, y(cell.row + 0.5));
  context.lineTo(w, y(cell.row + 0.5));
  context.moveTo(x(cell.column + 0.5), 0);
  context.lineTo(x(cell.column + 0.5), h);
  context.stroke();
  context.globalAlpha = 1;
}

/** Names where a cell is as high as a line of text, numbers where it is not. */
function annotate(
  context: CanvasRenderingContext2D,
  matrix: Matrix,
  { rowLabel, columnLabel }: Labels,
  view: View,
  { w, h, edge }: Frame,
  colours: Paint,
) {
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.strokeRect(0.5, 0.5, w - 1, h - 1);
  context.fillStyle = colours.muted;
  context.textBaseline = "middle";
  const axis = (
    count: number,
    start: number,
    size: number,
    name: ((index: number) => string) | undefined,
    write: (text: string, at: number) => void,
  ) => {
    const cellSize = (size * view.zoom) / Math.max(1, count);
    const named = name !== undefined && cellSize >= 11;
    context.font = named ? "11px ui-monospace, monospace" : "11px system-ui, sans-serif";
    const [from, to] = [Math.floor(start * count), Math.min(count - 1, Math.ceil((start + 1 / view.zoom) * count))];
    const step = named
      ? 1
      : Math.max(
          1,
          ticks([from, Math.max(from + 1, to)], 5).reduce(
            (gap, tick, i, all) => (i ? tick - (all[i - 1] ?? 0) : gap),
            1,
          ),
        );
    for (let index = Math.ceil(from / step) * step; index <= to; index += step) {
      const at = ((index + 0.5) / count - start) * view.zoom * size;
      if (at >= 0 && at <= size) write(named ? name(index) : String(index), at);
    }
  };
  context.textAlign = "right";
  axis(matrix.rows, view.y, h, rowLabel, (text, at) =>
    // Nothing is drawn above the picture: the number of a flat first row stands a little lower.
    context.fillText(cut(text, edge.left), -6, Math.max(6, at)),
  );
  axis(matrix.columns, view.x, w, edge.named ? columnLabel : undefined, (text, at) => {
    if (!edge.named) {
      context.textAlign = "center";
      context.fillText(text, at, h + 12);
      return;
    }
    context.save();
    context.translate(at, h + 6);
    context.rotate(-Math.PI / 2.6);
    context.fillText(cut(text, edge.bottom), 0, 2);
    context.restore();
  });
}

const cut = (text: string, room: number): string => {
  const letters = Math.max(3, Math.floor((room - 8) / 6.8));
  return text.length > letters ? `${text.slice(0, letters - 1)}…` : text;
};
