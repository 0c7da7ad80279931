// A heat map as PNG, SVG or CSV.
import { csv } from "../../lib/csv";
import { blobOf, escaped, save } from "../../lib/download";
import type { Matrix } from "../../lib/matrix";
import { Button } from "../controls";
import { paint } from "../../theme";
import { frameOf, type Labels, paintScene } from "./drawing";
import { marksOf } from "./Legend";
import { type Levels, type Scale, shade } from "./levels";

export interface DownloadsProps {
  matrix: Matrix;
  one: number;
  /** The value that gets the last colour. */
  top: number;
  scale: Scale;
  labels: Labels;
  format: (value: number) => string;
  name: string;
  /** What the picture shows; it stands over it. */
  title: string;
  /** What rows and columns are; it stands beside the title. */
  axes?: string;
  /** A column that says the same in every row of the table. */
  column?: { name: string; value: string };
  levels: Levels;
}

const WIDE = 1000;
const HEAD = 34; // over the picture, for its title
const FOOT = 48; // beneath it, for what the colours stand for

/** The whole matrix with its names or numbers beside it, its title and what its colours stand for. */
function drawn({ matrix, levels, labels, title, axes, scale, format, top, one }: DownloadsProps): HTMLCanvasElement {
  const frame = frameOf(matrix, labels, WIDE, 900);
  const plate = document.createElement("canvas");
  const view = { x: 0, y: 0, zoom: 1 };
  paintScene(plate, { matrix, levels, view, frame, cell: null, picked: null, labels, colours: paint.value });
  const ratio = devicePixelRatio || 1;
  const canvas = document.createElement("canvas");
  canvas.width = plate.width;
  canvas.height = plate.height + (HEAD + FOOT) * ratio;
  const context = canvas.getContext("2d");
  if (!context) return canvas;
  const { surface, text, ramp } = paint.value;
  context.fillStyle = surface;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(plate, 0, HEAD * ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = text;
  context.font = "14px system-ui, sans-serif";
  context.fillText(title, 8, 22);
  const wide = context.measureText(title).width;
  context.font = "11px system-ui, sans-serif";
  if (axes) context.fillText(axes, 8 + wide + 16, 22);
  const [left, right, y] = [frame.edge.left, frame.edge.left + Math.min(320, frame.w), canvas.height / ratio - FOOT + 12];
  const colours = context.createLinearGradient(left, 0, right, 0);
  ramp.forEach((stop, at) => colours.addColorStop(at / (ramp.length - 1), stop));
  context.fillStyle = colours;
  context.fillRect(left, y, right - left, 10);
  context.fillStyle = text;
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "center";
  for (const mark of marksOf(scale)) context.fillText(format((mark * top) / one), left + (right - left) * shade(scale, mark), y + 24);
  return canvas;
}

export function Downloads(props: DownloadsProps) {
  const { matrix, one, labels, name, title, column } = props;
  const { rowLabel = String, columnLabel = String } = labels;
  const asPng = () => void blobOf(drawn(props)).then((blob) => save(`${name}.png`, blob));
  const asSvg = () => {
    const picture = drawn(props);
    const size = `width="${picture.width}" height="${picture.height}"`;
    const image = `<image ${size} href="${picture.toDataURL()}"/>`;
    save(`${name}.svg`, `<svg xmlns="http://www.w3.org/2000/svg" ${size}><title>${escaped(title)}</title>${image}</svg>`, "image/svg+xml");
  };
  const asCsv = () => {
    const names = ["query", "key", "query token", "key token", "weight", ...(column ? [column.name] : [])];
    const parts = [csv([names])]; // a row of the matrix at a time: one text of millions of lines is too long for a browser
    for (let r = 0; r < matrix.rows; r += 1) {
      const cells = Array.from({ length: matrix.columns }, (_, c) => c).filter((c) => (matrix.values[r * matrix.columns + c] ?? 0) > 0);
      const weight = (c: number) => ((matrix.values[r * matrix.columns + c] ?? 0) / one).toPrecision(5);
      if (cells.length) parts.push(csv(cells.map((c) => [r, c, rowLabel(r), columnLabel(c), weight(c), ...(column ? [column.value] : [])])));
    }
    save(`${name}.csv`, new Blob(parts, { type: "text/csv;charset=utf-8" }));
  };
  return (
    <>
      <Button little look="quiet" label={`Download ${name} as PNG`} onClick={asPng}>
        PNG
      </Button>
      <Button little look="quiet" label={`Download ${name} as SVG`} onClick={asSvg}>
        SVG
      </Button>
      <Button little look="quiet" label={`Download ${name} as CSV`} onClick={asCsv}>
        CSV
      </Button>
    </>
  );
}
