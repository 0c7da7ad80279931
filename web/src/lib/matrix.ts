// A matrix of numbers and the part of it that is shown. Pure.

export interface Matrix {
  rows: number;
  columns: number;
  /** Row after row. Empty while only half of it has come. */
  values: Float32Array | Uint8Array | Uint16Array;
  /** The same with half as many rows and columns, where that came first. */
  half?: Matrix;
}

/** x and y: the corner that is shown, as shares of the whole; zoom 1 shows all of it. */
export interface View {
  x: number;
  y: number;
  zoom: number;
}

/** Half as many rows and columns, each the largest of four. */
export function coarser({ rows, columns, values }: Matrix): Matrix {
  const [r, c] = [Math.ceil(rows / 2), Math.ceil(columns / 2)];
  const out = new (values.constructor as Float32ArrayConstructor)(r * c);
  for (let y = 0; y < r; y += 1) {
    const upper = 2 * y * columns;
    const lower = 2 * y + 1 < rows ? upper + columns : upper;
    for (let x = 0; x < c; x += 1) {
      const left = 2 * x;
      const right = left + 1 < columns ? left + 1 : left;
      const a = values[upper + left] as number;
      const b = values[upper + right] as number;
      const d = values[lower + left] as number;
      const e = values[lower + right] as number;
      const first = a > b ? a : b;
      const second = d > e ? d : e;
      out[y * c + x] = first > second ? first : second;
    }
  }
  return { rows: r, columns: c, values: out };
}

export function clampView({ x, y, zoom }: View): View {
  const most = 1 - 1 / zoom;
  return { zoom, x: Math.min(most, Math.max(0, x)), y: Math.min(most, Math.max(0, y)) };
}

/** The view after zooming by `factor` about a point of the picture (0 to 1 each), at most down to about eight cells. */
export function zoomed(view: View, factor: number, x: number, y: number, matrix: Matrix): View {
  const most = Math.max(1, Math.max(matrix.rows, matrix.columns) / 8);
  const zoom = Math.min(most, Math.max(1, view.zoom * factor));
  return clampView({
    zoom,
    x: view.x + x / view.zoom - x / zoom,
    y: view.y + y / view.zoom - y / zoom,
  });
}

/** Of a matrix of this size only what it is at half the size. */
export const halved = (rows: number, columns: number, half: Matrix): Matrix => ({
  rows,
  columns,
  values: new Uint16Array(0),
  half,
});

/** Little-endian 16-bit weights, 65535 for one, as shares. */
export function weights(buffer: ArrayBuffer, rows: number, columns: number): Matrix {
  const whole = new Uint16Array(buffer, 0, rows * columns);
  return { rows, columns, values: whole };
}
