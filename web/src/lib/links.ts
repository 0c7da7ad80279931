// The pairs of a weight matrix that are worth a line. Pure.
import type { Matrix } from "./matrix";

export interface Link {
  row: number;
  column: number;
  weight: number;
}

/** All pairs within these ranges whose weight is at least `least`. */
export function links(matrix: Matrix, rows: [number, number], columns: [number, number], least: number): Link[] {
  const found: Link[] = [];
  for (let row = rows[0]; row < Math.min(rows[1], matrix.rows); row += 1) {
    for (let column = columns[0]; column < Math.min(columns[1], matrix.columns); column += 1) {
      const weight = matrix.values[row * matrix.columns + column] as number;
      if (weight >= least && weight > 0) found.push({ row, column, weight });
    }
  }
  return found;
}

/** The columns with the largest weights of a row, the largest first. */
export function strongest(matrix: Matrix, row: number, count: number): Link[] {
  return links(matrix, [row, row + 1], [0, matrix.columns], 0)
    .sort((a, b) => b.weight - a.weight)
    .slice(0, count);
}
