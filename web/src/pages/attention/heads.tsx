// All heads of a layer as small pictures, and the table of all heads.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { Button, Select } from "../../components/controls";
import { DownloadRow } from "../../components/DownloadRow";
import { Busy, Problem } from "../../components/state";
import { table } from "../../lib/colour";
import { csv } from "../../lib/csv";
import type { HeadEntry } from "../../generated/api";
import { spoken } from "../../lib/encoding";
import { montage, save } from "../../lib/download";
import type { Matrix } from "../../lib/matrix";
import { show } from "../../lib/numbers";
import { sorted } from "../../lib/sort";
import { href, put, route, useParam } from "../../router";
import { explained } from "../../terms";
import { paint } from "../../theme";
import { AtlasMap } from "./map";
import { Progress } from "./progress";
import { encoded, file, type Side, useAtlas, useSmall } from "./side";

export function HeadsView({ side }: { side: Side }) {
  const answer = useSmall(side);
  const list = useRef<HTMLUListElement>(null);
  const picture = () => {
    const drawn = [...(list.current?.querySelectorAll("canvas") ?? [])].map((canvas, head) => ({
      name: `head ${head}`,
      canvas,
    }));
    const caption = side.encoding ? `Layer ${side.layer}, ${spoken(side.encoding)}` : "";
    return montage(drawn, paint.value.text, paint.value.surface, caption);
  };
  return (
    <>
      {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
      {answer.since !== null && <Busy words={`Drawing the heads of layer ${side.layer}`} since={answer.since} />}
      {answer.data && (
        <ul ref={list} class="att-heads" aria-label={`Heads of layer ${side.layer}`}>
          {answer.data.map((matrix, head) => (
            <li key={head}>
              <button
                type="button"
                class="att-small"
                aria-pressed={head === side.head}
                aria-label={`Layer ${side.layer}, head ${head}`}
                onClick={() => side.set({ head })}
                onDblClick={() => put({ view: "heat" })}
              >
                <Small matrix={matrix} />
                <span>head {head}</span>
              </button>
            </li>
          ))}
        </ul>
      )}
      {answer.data && (
        <DownloadRow
          name={file(side, "heads", side.kind, side.layer)}
          picture={picture}
          csv={() => headsCsv(side, answer.data ?? [])}
        />
      )}
      <p class="small muted">
        Rows are queries, columns are keys; darker is more weight. Choose one, then open
        another view.
      </p>
    </>
  );
}

function headsCsv(side: Side, heads: Matrix[]): string {
  const rows: (string | number)[][] = [["head", "row", "column", "largest weight in the cell"]];
  heads.forEach((matrix, head) => {
    matrix.values.forEach((value, at) => {
      if (value)
        rows.push([head, Math.floor(at / matrix.columns), at % matrix.columns, ((value / 255) ** 2).toPrecision(4)]);
    });
  });
  return csv(encoded(side, rows));
}

function Small({ matrix }: { matrix: Matrix }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const ramp = paint.value.ramp;
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    const colours = table(ramp);
    const image = context.createImageData(matrix.columns, matrix.rows);
    const pixels = new Uint32Array(image.data.buffer);
    for (let index = 0; index < pixels.length; index += 1) pixels[index] = colours[matrix.values[index] as number] ?? 0;
    context.putImageData(image, 0, 0);
  }, [matrix, ramp]);
  return <canvas ref={canvas} width={matrix.columns} height={matrix.rows} aria-hidden="true" />;
}

const SHARES = ["previous", "first", "same", "induction", "local", "positional"];
const COLUMNS: { id: string; name: string; help: string; value: (head: HeadEntry) => string | number | null }[] = [
  { id: "layer", name: "Layer", help: "", value: (head) => head.layer },
  { id: "head", name: "Head", help: "", value: (head) => head.head },
  {
    id: "label",
    name: "What it does",
    help: "the kind with the largest weight above its threshold",
    value: (head) => head.label,
  },
  { id: "entropy", name: "Entropy", help: "how spread out its weights are", value: (head) => head.entropy },
  {
    id: "distance",
    name: "Distance",
    help: "how far back it looks, on average, in tokens",
    value: (head) => head.distance,
  },
  ...SHARES.map((id) => ({
    id,
    name: id[0]?.toUpperCase() + id.slice(1),
    help: `share of its weight: ${id}`,
    value: (head: HeadEntry) => head.shares[id] ?? null,
  })),
];

export function AtlasView({ side }: { side: Side }) {
  const answer = useAtlas(side);
  const [order, setOrder] = useParam("sort", "layer");
  const [label, setLabel] = useParam("does", "");
  const [by, down] = order.startsWith("-") ? [order.slice(1), true] : [order, false];
  const heads = answer.data?.heads ?? [];
  const labels = [...new Set(heads.map((head) => head.label))].sort();
  const rows = useMemo(() => {
    const column = COLUMNS.find((entry) => entry.id === by) ?? COLUMNS[0];
    return sorted(
      heads.filter((head) => !label || head.label === label),
      (head) => column?.value(head) ?? null,
      down,
    );
  }, [answer.data, by, down, label]);
  const name = file(side, "atlas");
  const mixed = new Set(heads.map((head) => head.kind)).size > 1;
  return (
    <>
      {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
      <Progress of={answer} words="Measuring every head" again="Measure" />
      {answer.data && (
        <>
          <AtlasMap side={side} heads={heads} table={() => atlasCsv(side, heads)} />
          <div class="row end apart">
            <Select
              label="Show"
              value={label}
              onChange={setLabel}
              options={[
                { value: "", label: `all ${heads.length} heads` },
                ...labels.map((one) => ({
                  value: one,
                  label: `${one} (${heads.filter((head) => head.label === one).length})`,
                })),
              ]}
            />
            <Button little look="quiet" onClick={() => save(`${name}.csv`, atlasCsv(side, rows), "text/csv")}>
              CSV
            </Button>
          </div>
          <div class="scroll att-atlas" tabIndex={0} role="region" aria-label="Atlas of heads">
            <table>
              <caption class="hidden">Every head and what it does with this text. A head's number opens it.</caption>
              <AtlasHead by={by} down={down} onSort={setOrder} />
              <tbody>
                {rows.map((head) => (
                  <AtlasRow key={`${head.kind} ${head.layer} ${head.head}`} head={head} side={side} mixed={mixed} />
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
    </>
  );
}

function atlasCsv(side: Side, heads: HeadEntry[]): string {
  const names = ["kind", ...COLUMNS.map((column) => column.id)];
  const rows = heads.map((head) => [head.kind, ...COLUMNS.map((column) => column.value(head))]);
  return csv(encoded(side, [names, ...rows]));
}

/** A click sorts by a column, another one turns the order. */
function AtlasHead({ by, down, onSort }: { by: string; down: boolean; onSort: (order: string) => void }) {
  return (
    <thead>
      <tr>
        {COLUMNS.map(({ id, name, help }) => (
          <th
            key={id}
            class={id === "label" ? "" : "number"}
            aria-sort={by === id ? (down ? "descending" : "ascending") : "none"}
          >
            <button
              type="button"
              class="att-sort"
              title={explained(name) ?? explained(id) ?? help}
              onClick={() => onSort(by === id && !down ? `-${id}` : id)}
            >
              {name}
              <span aria-hidden="true">{by === id ? (down ? " ▾" : " ▴") : ""}</span>
            </button>
          </th>
        ))}
      </tr>
    </thead>
  );
}

function AtlasRow({ head, side, mixed }: { head: HeadEntry; side: Side; mixed: boolean }) {
  const here = head.kind === side.kind && head.layer === side.layer && head.head === side.head;
  const to = {
    ...route.value.params,
    view: "heat",
    [`${side.prefix}kind`]: head.kind,
    [`${side.prefix}layer`]: head.layer,
    [`${side.prefix}head`]: head.head,
  };
  return (
    <tr class={here ? "att-here" : ""}>
      <td class="number">{head.layer}</td>
      <td class="number">
        <a href={href("attention", to)} aria-label={`Open layer ${head.layer}, head ${head.head}`}>
          {head.head}
        </a>
      </td>
      <td>
        <span title={explained(head.label)}>{head.label}</span>
        {mixed && <span class="muted"> ({head.kind})</span>}
      </td>
      <td class="number">{show(round(head.entropy))}</td>
      <td class="number">{show(round(head.distance))}</td>
      {SHARES.map((name) => {
        const share = head.shares[name] ?? null;
        return (
          <td
            key={name}
            class="number"
            style={
              share === null
                ? undefined
                : { backgroundColor: `rgb(var(--tint) / ${(0.4 * Math.max(0, share)).toFixed(2)})` }
            }
          >
            {share === null ? "–" : share.toFixed(2)}
          </td>
        );
      })}
    </tr>
  );
}

const round = (value: number | null): number | null => (value === null ? null : Number(value.toFixed(2)));
