// What a block is made of, in the order it runs, and which layers are alike. Pure.
import type { BlockEntry } from "../../generated/api";

export interface Node {
  kind: "norm" | "attention" | "ffn" | "add";
  text: string;
  detail?: string;
  /** What else an attention has, as a line of its own. */
  around?: string;
  /** Counted from the input. Two parts that run beside each other have the same one. */
  row: number;
  /** Which of how many beside each other. */
  beside?: [number, number];
  /** The row of the sum up to which the way around this part goes; it begins before this node. */
  until?: number;
}

export interface Run {
  /** "A · layers 0 to 6", and so on. */
  name: string;
  block: BlockEntry;
  /** Indices into all layers. */
  layers: number[];
}

type Part = Omit<Node, "row">;

const SUM: Part = { kind: "add", text: "add" };
const norm = (block: BlockEntry): Part => ({ kind: "norm", text: block.norm });

function attention(block: BlockEntry, cross: boolean): Part {
  const shared = block.kv_heads !== block.heads && block.attention !== "Latent" ? `, ${block.kv_heads} key/value` : "";
  const where = cross ? "reads the encoder" : block.position.length ? block.position.join(" + ") : "no position";
  const name = block.attention === "Latent" ? "latent attention" : "attention";
  const around = cross || !block.around.length ? undefined : `with ${block.around.join(", ")}`;
  return { kind: "attention", text: cross ? `cross-${name}` : name, around, detail: `${block.heads} heads of ${block.head_width}${shared} · ${where}` };
}

const feed = (block: BlockEntry): Part => ({ kind: "ffn", text: "feed-forward", detail: block.ffn });

/** From the block's input to its output. */
export function nodes(block: BlockEntry): Node[] {
  if (block.wiring === "parallel") return parallel(block);
  const parts = [attention(block, false), ...(block.cross ? [attention(block, true)] : []), feed(block)];
  const [before, after] = [block.wiring !== "post", block.wiring === "sandwich"];
  const found: Node[] = [];
  for (const part of parts) {
    const sub = [...(before ? [norm(block)] : []), part, ...(after ? [norm(block)] : []), SUM];
    const at = found.length;
    found.push(...sub.map((one, index) => ({ ...one, row: at + index, until: index === 0 ? at + sub.length - 1 : undefined })));
    if (block.wiring === "post") found.push({ ...norm(block), row: found.length });
  }
  return found;
}

/** One norm, all parts beside each other, one sum. */
function parallel(block: BlockEntry): Node[] {
  const parts = [attention(block, false), ...(block.cross ? [attention(block, true)] : []), feed(block)];
  return [
    { ...norm(block), row: 0, until: 2 },
    ...parts.map((part, index): Node => ({ ...part, row: 1, beside: [index, parts.length] })),
    { ...SUM, row: 2 },
  ];
}

const sameAs = (block: BlockEntry): string => JSON.stringify({ ...block, name: "" });

/** The kinds of block, in the order in which they first come. */
export function runs(layers: BlockEntry[]): Run[] {
  const found: { block: BlockEntry; layers: number[] }[] = [];
  layers.forEach((block, index) => {
    const run = found.find((one) => sameAs(one.block) === sameAs(block));
    if (run) run.layers.push(index);
    else found.push({ block, layers: [index] });
  });
  const both = new Set(layers.map((one) => one.stack)).size > 1;
  return found.map((run, index) => {
    const count = `${run.layers.length} layer${run.layers.length === 1 ? "" : "s"}`;
    const sees = found.length > 1 && !both ? (run.block.window ? ", window" : ", full") : "";
    return { ...run, name: `${"ABCDEFGH"[index] ?? "?"} · ${both ? `${run.block.stack}, ` : ""}${count}${sees}` };
  });
}
