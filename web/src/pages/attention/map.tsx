// The atlas as a picture: every head a cell with its small map, layers down, heads across, coloured by what it does.
import { useRef } from "preact/hooks";
import { DownloadRow } from "../../components/DownloadRow";
import { Term } from "../../components/Term";
import { useWidth } from "../../hooks";
import type { HeadEntry } from "../../generated/api";
import { percent } from "../../lib/numbers";
import { put } from "../../router";
import { paint } from "../../theme";
import { file, type Side } from "./side";
import { Thumbnails, useLayers } from "./thumbnails";

export const KINDS = ["induction", "previous", "first", "same", "itself", "local", "positional", "diagonal", "last", "mixed"];

const ARROWS: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export function AtlasMap({ side, heads, table }: { side: Side; heads: HeadEntry[]; table: () => string }) {
  const [ref, room] = useWidth<HTMLDivElement>();
  const root = useRef<HTMLDivElement>(null);
  const { series, line, muted, text, surface } = paint.value;
  const own = heads.filter((head) => head.kind === side.kind);
  const layers = Math.max(0, ...own.map((head) => head.layer)) + 1;
  const columns = Math.max(0, ...own.map((head) => head.head)) + 1;
  const labels = KINDS.filter((kind) => own.some((head) => head.label === kind));
  const colour = (label: string) => (label === "mixed" ? line : (series[KINDS.indexOf(label) % series.length] ?? line));
  const inked = (label: string) => (label === "mixed" ? muted : colour(label)); // a map in the colour of a line is hardly seen
  const cell = Math.max(12, Math.min(48, Math.floor((Math.min(room, 640) - 34) / columns)));
  const row = Math.max(12, Math.min(cell, Math.floor(1080 / layers)));
  const small = useLayers(side, layers);
  const [width, height] = [Math.max(180, 34 + columns * cell), 18 + layers * row];
  const openHead = (head: HeadEntry) => side.set({ kind: head.kind, layer: head.layer, head: head.head });
  const here = own.find((head) => head.layer === side.layer && head.head === side.head);
  const words = labels.map((label) => `${own.filter((head) => head.label === label).length} ${label}`).join(", ");
  const step = (event: KeyboardEvent) => {
    const [down, right] = ARROWS[event.key] ?? [0, 0];
    if (event.key === "Enter") put({ view: "heat" });
    const next = own.find((head) => head.layer === side.layer + down && head.head === side.head + right);
    if (!(down || right) || !next) return;
    event.preventDefault();
    openHead(next);
  };
  return (
    <div ref={ref} class="stack">
      <div ref={root}>
        {room > 0 && (
          <svg
            data-chart=""
            class="att-map"
            width={width}
            height={height}
            viewBox={`0 0 ${width} ${height}`}
            role="application"
            tabindex={0}
            aria-label={`Every head by what it does: ${words}. Arrow keys choose a head, Enter opens it.`}
            onKeyDown={step}
          >
            {own.map((head) => {
              const share = head.shares[head.label] ?? 0.5;
              const chosen = head === here;
              return (
                <rect
                  key={`${head.layer} ${head.head}`}
                  data-head={`${head.layer}.${head.head}`}
                  x={34 + head.head * cell + 1}
                  y={head.layer * row + 1}
                  width={cell - 2}
                  height={row - 2}
                  rx={2}
                  fill={colour(head.label)}
                  fill-opacity={head.label === "mixed" ? 0.6 : 0.35 + 0.65 * Math.max(0, Math.min(1, share))}
                  stroke={chosen ? text : surface}
                  stroke-width={chosen ? 3 : 0}
                  onClick={() => openHead(head)}
                  onDblClick={() => put({ view: "heat" })}
                >
                  <title>{`${head.layer}·${head.head}: ${head.label}, ${percent(head.shares[head.label] ?? 0)}`}</title>
                </rect>
              );
            })}
            {[...small].map(([layer, maps]) => (
              <Thumbnails
                key={layer}
                heads={maps}
                colours={maps.map((_, head) => inked(own.find((one) => one.layer === layer && one.head === head)?.label ?? "mixed"))}
                {...{ x: 34, y: layer * row, cell, row }}
              />
            ))}
            <g fill={text} font-size={10}>
              {Array.from({ length: layers }, (_, layer) => layer)
                .filter((layer) => layer % Math.ceil(layers / 10) === 0)
                .map((layer) => (
                  <text key={layer} x={28} y={layer * row + row / 2 + 3.5} text-anchor="end">
                    {layer}
                  </text>
                ))}
              <text x={34} y={height - 5}>
                layers down, heads across
              </text>
            </g>
          </svg>
        )}
      </div>
      <ul class="legend">
        {labels.map((label) => (
          <li key={label}>
            <i style={{ background: colour(label), height: "10px" }} />
            <Term name={label} /> {own.filter((head) => head.label === label).length}
          </li>
        ))}
      </ul>
      {here && (
        <p class="small" role="status">
          <strong class="numeric">
            {here.layer}·{here.head}
          </strong>{" "}
          {here.label}. A pale frame: less clearly so. In each cell rows are queries and columns are keys. Enter or a
          double click opens the heat map of this head.
        </p>
      )}
      <DownloadRow name={file(side, "atlas-picture")} root={root} csv={table} />
    </div>
  );
}
