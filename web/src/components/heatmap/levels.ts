// A matrix in colours, at several sizes.
import { table } from "../../lib/colour";
import { coarser, type Matrix } from "../../lib/matrix";

/** How a share of the largest value becomes a share of the colours. Small weights are to be seen as well. */
export type Scale = "linear" | "root" | "log";
const DECADES = 3; // that the logarithm shows: from a thousandth on

export const shade = (scale: Scale, share: number): number =>
  scale === "root" ? Math.sqrt(share) : scale === "log" ? Math.max(0, 1 + Math.log10(Math.max(share, 1e-9)) / DECADES) : share;

/** The matrix at one size after another, each half of the one before. Each is made when it is first looked at. */
export class Levels {
  private readonly matrices: Matrix[];
  private readonly pictures: (HTMLCanvasElement | undefined)[] = [];
  private readonly colours: Uint32Array;
  readonly count: number;
  private readonly finest: number;

  constructor(
    matrix: Matrix,
    private readonly top: number,
    private readonly scale: Scale,
    stops: string[],
  ) {
    this.matrices = matrix.half ? [matrix, matrix.half] : [matrix];
    this.finest = matrix.values.length || !matrix.half ? 0 : 1;
    this.colours = table(stops);
    this.count = 1 + Math.max(0, Math.ceil(Math.log2(Math.max(matrix.rows, matrix.columns, 1) / 300)));
  }

  private matrix(level: number): Matrix {
    for (let at = this.matrices.length; at <= level; at += 1)
      this.matrices.push(coarser(this.matrices[at - 1] as Matrix));
    return this.matrices[level] as Matrix;
  }

  /** At this size, or the finest that is there. */
  picture(wanted: number): HTMLCanvasElement {
    const level = Math.max(wanted, this.finest);
    return (this.pictures[level] ??= colour(this.matrix(level), this.top, this.scale, this.colours));
  }
}

function colour(matrix: Matrix, top: number, scale: Scale, colours: Uint32Array): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, matrix.columns);
  canvas.height = Math.max(1, matrix.rows);
  const context = canvas.getContext("2d");
  if (!context) return canvas;
  const image = context.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  const { values } = matrix;
  // 4096 steps from value to colour: a table is faster than a square root for every cell.
  const steps = new Uint32Array(4097);
  for (let index = 0; index <= 4096; index += 1) {
    steps[index] = colours[Math.round(shade(scale, index / 4096) * 255)] ?? 0;
  }
  const factor = 4096 / (top || 1);
  for (let index = 0; index < values.length; index += 1) {
    const step = (values[index] as number) * factor;
    pixels[index] = steps[step >= 4096 ? 4096 : step <= 0 ? 0 : step | 0] as number;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
