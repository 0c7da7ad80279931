// A block as a drawing: what runs in which order, and which layers are alike.
import { useRef } from "preact/hooks";
import { shorten } from "../../components/chart/Plot";
import { DownloadRow } from "../../components/DownloadRow";
import { useWidth } from "../../hooks";
import { csv } from "../../lib/csv";
import { paint } from "../../theme";
import { type Node, nodes, type Run, runs } from "./block";
import type { BlockEntry } from "../../generated/api";

const BOX = 34;
const GAP = 16;
const FRAME = 34;

export function Diagram({ layers }: { layers: BlockEntry[] }) {
  const [ref, room] = useWidth<HTMLDivElement>();
  const root = useRef<HTMLDivElement>(null);
  const kinds = runs(layers);
  return (
    <div class="stack" ref={ref}>
      <div class="bld-blocks" ref={root}>
        {room > 0 && kinds.map((run) => <OneBlock key={run.name} run={run} />)}
        {room > 0 && <Strip layers={layers} kinds={kinds} width={Math.floor(room)} />}
      </div>
      <DownloadRow
        name="block"
        root={root}
        csv={() =>
          csv([
            ["stack", "layer", "mask", "position", "attention", "around it", "heads", "key/value heads", "head width", "feed-forward", "norm", "wiring"],
            ...layers.map((one) => [one.stack, one.name, one.mask, one.position.join(" "), one.attention, one.around.join(", "), one.heads, one.kv_heads, one.head_width, one.ffn, one.norm, one.wiring]),
          ])
        }
      />
    </div>
  );
}

const WIDTH = 296;
const MIDDLE = 136;

/** One kind of block, from the bottom up. */
function OneBlock({ run }: { run: Run }) {
  const colours = paint.value;
  const list = nodes(run.block);
  const parallel = run.block.wiring === "parallel";
  const count = Math.max(...list.map((node) => node.row)) + 1;
  const height = FRAME + count * (BOX + GAP) + GAP + 18;
  const y = (index: number) => height - 18 - GAP - (index + 1) * BOX - index * GAP;
  const words = `Block of ${run.name}: ${list.map((node) => [node.text, node.around].filter(Boolean).join(" ")).join(", then ")}${parallel ? " (attention and feed-forward side by side)" : ""}.`;
  return (
    <svg data-chart="" class="bld-block" width={WIDTH} height={height} viewBox={`0 0 ${WIDTH} ${height}`} role="img" aria-label={words}>
      <text x={4} y={14} font-size={13} font-weight={650} fill={colours.text}>
        {shorten(run.name, WIDTH - 8, 13)}
      </text>
      <text x={4} y={height - 4} font-size={11} fill={colours.muted}>
        {shorten(run.block.window ? `each token sees ${run.block.window.toLocaleString("en-US")} before it` : maskWords(run.block.mask), WIDTH)}
      </text>
      {/* The way through; where two parts run side by side it goes through both. */}
      <path d={way(list, height, y)} fill="none" stroke={colours.muted} stroke-width={1.5} />
      <path d={`M${MIDDLE - 4} ${FRAME - 8}l4 -7 4 7z`} fill={colours.muted} />
      {list.map((node) => (
        <OneNode key={`${node.row} ${node.beside ?? ""}`} node={node} y={y(node.row)} top={node.until === undefined ? 0 : y(node.until)} />
      ))}
    </svg>
  );
}

function way(list: Node[], height: number, y: (row: number) => number): string {
  const split = list.find((node) => node.beside)?.row;
  const [from, to] = [height - 18, FRAME - 12];
  if (split === undefined) return `M${MIDDLE} ${from}V${to}`;
  return `M${MIDDLE} ${from}V${y(split) + BOX + GAP / 2}M${MIDDLE} ${y(split) - GAP / 2}V${to}`;
}

const maskWords = (mask: string): string => (mask.includes("Causal") ? "each token sees all before it" : "each token sees all of them");

function OneNode({ node, y, top }: { node: Node; y: number; top: number }) {
  const colours = paint.value;
  if (node.kind === "add") {
    return (
      <g transform={`translate(${MIDDLE} ${y + BOX / 2})`}>
        <circle r={11} fill={colours.surface} stroke={colours.muted} stroke-width={1.5} />
        <path d="M-5 0H5M0 -5V5" stroke={colours.text} stroke-width={1.5} />
      </g>
    );
  }
  const fill = { norm: colours.ramp[1], attention: colours.series[0], ffn: colours.series[1], add: colours.surface }[node.kind];
  const ink = node.kind === "norm" ? colours.text : colours.surface;
  const soft = node.kind === "norm";
  const size = soft ? 26 : node.around ? BOX + 12 : BOX;
  const by = 284;
  const [index, count] = node.beside ?? [0, 1];
  const room = 266 / count;
  const wide = soft ? 140 : node.beside ? room - 10 : 236;
  const centre = MIDDLE + (index - (count - 1) / 2) * room;
  return (
    <g>
      {node.until !== undefined && (
        <path
          d={`M${MIDDLE} ${y + BOX + GAP / 2}H${by}V${top + BOX / 2}H${MIDDLE + 12}`}
          fill="none"
          stroke={colours.muted}
          stroke-width={1.5}
          stroke-linejoin="round"
        />
      )}
      {node.beside && <path d={`M${MIDDLE} ${y + BOX + GAP / 2}H${centre}V${y - GAP / 2}H${MIDDLE}`} fill="none" stroke={colours.muted} stroke-width={1.5} />}
      <rect x={centre - wide / 2} y={y + (BOX - size) / 2} width={wide} height={size} rx={6} fill={fill} stroke={soft ? colours.muted : "none"} />
      <text x={centre} y={y + BOX / 2 + (node.around ? -8 : node.detail ? -2 : 4.5)} font-size={12.5} font-weight={600} text-anchor="middle" fill={ink}>
        {shorten(node.text, wide - 8, 12.5)}
      </text>
      {node.detail && (
        <text x={centre} y={y + BOX / 2 + (node.around ? 4 : 12)} font-size={10.5} text-anchor="middle" fill={ink}>
          {shorten(node.detail, wide - 4, 10.5)}
        </text>
      )}
      {node.around && (
        <text x={centre} y={y + BOX / 2 + 16} font-size={10.5} text-anchor="middle" fill={ink}>
          {shorten(node.around, wide - 4, 10.5)}
        </text>
      )}
    </g>
  );
}

/** Every layer as a square, coloured and lettered by its kind of block. */
function Strip({ layers, kinds, width }: { layers: BlockEntry[]; kinds: Run[]; width: number }) {
  const colours = paint.value;
  const size = 22;
  const across = Math.max(1, Math.floor((width - 2) / (size + 4)));
  const height = Math.ceil(layers.length / across) * (size + 4) + 22;
  const kindOf = (index: number) => kinds.findIndex((run) => run.layers.includes(index));
  const words = kinds.map((run, index) => `${"ABCDEFGH"[index] ?? "?"}: ${run.layers.length} × ${run.name}`).join("; ");
  return (
    <svg data-chart="" class="bld-strip" width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={`The layers in order. ${words}.`}>
      <text x={0} y={13} font-size={12} fill={colours.muted}>
        {shorten(`${layers.length} layers in order, first to last`, width, 12)}
      </text>
      {layers.map((_, index) => {
        const kind = kindOf(index);
        return (
          <g key={index} transform={`translate(${(index % across) * (size + 4)} ${20 + Math.floor(index / across) * (size + 4)})`}>
            <rect width={size} height={size} rx={4} fill={colours.series[kind === 0 ? 0 : kind + 1]} />
            <text x={size / 2} y={15.5} font-size={11.5} font-weight={700} text-anchor="middle" fill={colours.surface}>
              {"ABCDEFGH"[kind] ?? "?"}
            </text>
          </g>
        );
      })}
    </svg>
  );
}
