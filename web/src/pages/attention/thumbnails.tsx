// A small picture of every head, for the atlas: brought layer by layer, as the server has them.
import { useEffect, useState } from "preact/hooks";
import { rgb } from "../../lib/colour";
import type { Matrix } from "../../lib/matrix";
import { paint } from "../../theme";
import { type Side, smallHeads } from "./side";

/** By layer, as far as they have come. One after the other: whoever opens a head meanwhile waits for one layer at most. */
export function useLayers(side: Side, layers: number): Map<number, Matrix[]> {
  const id = side.capture.data?.id;
  const [come, setCome] = useState(new Map<number, Matrix[]>());
  useEffect(() => {
    setCome(new Map());
    if (!id) return;
    const controller = new AbortController();
    const bring = async () => {
      for (let layer = 0; layer < layers && !controller.signal.aborted; layer += 1) {
        const heads = await smallHeads(`/attention/${id}/heads?kind=${side.kind}&layer=${layer}`, controller.signal);
        setCome((old) => new Map(old).set(layer, heads));
      }
    };
    // Without them the atlas still says by its colours what each head does.
    bring().catch(() => undefined);
    return () => controller.abort();
  }, [id, side.kind, layers]);
  return come;
}

export interface ThumbnailsProps {
  heads: Matrix[];
  /** Of each head. */
  colours: string[];
  x: number;
  y: number;
  /** What a head has on the page, each way. */
  cell: number;
  row: number;
}

const GAP = 3; // on each side of a head, where the frame of its cell is seen

/** A layer's heads side by side, each in the colour of what it does: the stronger a weight, the fuller. */
export function Thumbnails({ heads, colours, x, y, cell, row }: ThumbnailsProps) {
  const [picture, setPicture] = useState("");
  const { surface } = paint.value;
  const key = colours.join();
  useEffect(() => setPicture(drawn(heads, colours, surface, cell, row)), [heads, key, surface, cell, row]);
  return picture ? (
    <image class="att-thumbnails" href={picture} x={x} y={y} width={heads.length * cell} height={row} preserveAspectRatio="none" />
  ) : null;
}

function drawn(heads: Matrix[], colours: string[], surface: string, cell: number, row: number): string {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * heads.length * cell, 2 * row];
  const context = canvas.getContext("2d");
  if (!context) return "";
  const one = document.createElement("canvas");
  const small = one.getContext("2d");
  heads.forEach((matrix, head) => {
    if (!small) return;
    [one.width, one.height] = [matrix.columns, matrix.rows];
    const image = small.createImageData(matrix.columns, matrix.rows);
    const [own, ground] = [rgb(colours[head] ?? "#888888"), rgb(surface)];
    matrix.values.forEach((value, at) => {
      for (let channel = 0; channel < 3; channel += 1) {
        const from = ground[channel] ?? 0;
        image.data[4 * at + channel] = from + (((own[channel] ?? 0) - from) * value) / 255;
      }
      image.data[4 * at + 3] = 255;
    });
    small.putImageData(image, 0, 0);
    context.drawImage(one, 2 * (head * cell + GAP), 2 * GAP, 2 * (cell - 2 * GAP), 2 * (row - 2 * GAP));
  });
  return canvas.toDataURL();
}
