// A heat map as PNG, SVG or CSV.
import { blobOf, escaped, save } from "../../lib/download";
import type { Matrix } from "../../lib/matrix";
import { Button } from "../controls";
import type { Levels } from "./levels";

export interface DownloadsProps {
  matrix: Matrix;
  one: number;
  rowName: (row: number) => string;
  columnName: (column: number) => string;
  name: string;
  /** What the picture shows; an SVG carries it as its title. */
  title: string;
  /** A column that says the same in every row of the table. */
  column?: { name: string; value: string };
  levels: Levels;
}

const MOST_ROWS = 1_000_000;

export function Downloads({ matrix, one, rowName, columnName, name, title, column, levels }: DownloadsProps) {
  const asPng = () => {
    const picture = levels.picture(0);
    const factor = Math.max(1, Math.floor(1200 / Math.max(picture.width, picture.height)));
    const big = document.createElement("canvas");
    big.width = picture.width * factor;
    big.height = picture.height * factor;
    const context = big.getContext("2d");
    if (!context) return;
    context.imageSmoothingEnabled = false;
    context.drawImage(picture, 0, 0, big.width, big.height);
    void blobOf(big).then((blob) => save(`${name}.png`, blob));
  };
  const asSvg = () => {
    const picture = levels.picture(0);
    const size = `width="${picture.width}" height="${picture.height}"`;
    const image = `<image ${size} style="image-rendering:pixelated" href="${picture.toDataURL()}"/>`;
    save(`${name}.svg`, `<svg xmlns="http://www.w3.org/2000/svg" ${size}><title>${escaped(title)}</title>${image}</svg>`, "image/svg+xml");
  };
  const asCsv = () => {
    const quote = (text: string) => `"${text.replaceAll('"', '""')}"`;
    const last = column ? `,${quote(column.value)}` : "";
    const rows = [`query,key,query token,key token,weight${column ? `,${column.name}` : ""}`];
    for (let r = 0; r < matrix.rows && rows.length <= MOST_ROWS; r += 1) {
      for (let c = 0; c < matrix.columns; c += 1) {
        const value = matrix.values[r * matrix.columns + c] ?? 0;
        if (value > 0)
          rows.push(`${r},${c},${quote(rowName(r))},${quote(columnName(c))},${(value / one).toPrecision(5)}${last}`);
      }
    }
    save(`${name}.csv`, rows.join("\r\n"), "text/csv");
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
