import { show, tick } from "../../lib/numbers";
import { bin, every, extent, makeScale, ticks } from "../../lib/scale";
import { paint } from "../../theme";
import type { BarsPanel, HistogramPanel } from "../../types";
import { type Box, Plot, type Stop, shorten, textWidth } from "./Plot";

export function BarsChart({ panel, width }: { panel: BarsPanel; width: number }) {
  const colours = paint.value;
  const { labels, series, log_y: log } = panel;
  const values = [...series.flatMap(([, list]) => list), ...(panel.low?.flat() ?? []), ...(panel.high?.flat() ?? [])];
  const domain = extent(log ? values : [0, ...values], log);
  if (!log && !values.some((value) => value !== null && value < 0)) domain[0] = 0;
  if (!log && !values.some((value) => value !== null && value > 0)) domain[1] = 0;
  const marks = ticks(domain, 5, log);
  const left = Math.max(30, ...marks.map((mark) => textWidth(tick(mark)) + 10));
  const colour = (index: number) => colours.series[index % colours.series.length] ?? colours.text;
  const yScale = (box: Box) => makeScale(domain, [box.bottom, box.top], log);
  const slot = (box: Box) => (box.right - box.left) / Math.max(1, labels.length);
  const floor = log ? domain[0] : Math.max(domain[0], 0);

  const roomPer = (width - left - 10) / Math.max(1, labels.length);
  const widest = Math.max(0, ...labels.map((label) => textWidth(label)));
  const slanted = widest > roomPer - 6;
  const bottom = slanted ? Math.min(96, 18 + widest * 0.65) : 22;
  const skip = slanted ? every(labels.length, (width - left) / 16) : 1;

  const stop = (index: number, box: Box): Stop | null => {
    const label = labels[index];
    if (label === undefined) return null;
    const rows = series.map(([name, list], s) => {
      const low = panel.low?.[s]?.[index];
      const band = low === null || low === undefined ? "" : ` (${show(low)} to ${show(panel.high?.[s]?.[index])})`;
      return { name, value: show(list[index]) + band, colour: colour(s) };
    });
    const highest = Math.max(...series.map(([, list]) => list[index] ?? floor));
    return { x: box.left + (index + 0.5) * slot(box), y: yScale(box)(Math.max(highest, floor)), title: label, rows };
  };
  return (
    <Plot
      width={width}
      title={panel.title}
      xLabel=""
      yLabel={panel.y_label}
      plotHeight={Math.min(260, Math.max(170, width * 0.45))}
      left={left}
      bottom={bottom}
      slanted={slanted}
      legend={
        series.length > 1
          ? series.map(([name], index) => ({ name, colour: colour(index), look: "block" as const }))
          : []
      }
      xTicks={(box) =>
        labels.flatMap((label, index) =>
          index % skip
            ? []
            : [{ at: box.left + (index + 0.5) * slot(box), label: slanted ? shorten(label, 110) : label }],
        )
      }
      yTicks={(box) => marks.map((y) => ({ at: yScale(box)(y), label: tick(y) }))}
      stops={labels.length}
      near={(px, _, box) => Math.min(labels.length - 1, Math.max(0, Math.floor((px - box.left) / slot(box))))}
      stop={stop}
      summary={`Bar chart over ${labels.length} labels${series.length > 1 ? ` of ${series.map(([name]) => name).join(", ")}` : ""}.`}
      body={(box) => {
        const y = yScale(box);
        const group = slot(box) * 0.76;
        const bar = group / Math.max(1, series.length);
        return (
          <g>
            {series.map(([name, list], s) =>
              list.map((value, index) => {
                if (value === null || (log && value <= 0)) return null;
                const x = box.left + index * slot(box) + (slot(box) - group) / 2 + s * bar;
                const [low, high] = [panel.low?.[s]?.[index] ?? null, panel.high?.[s]?.[index] ?? null];
                const places = { x, width: bar, from: y(floor), to: y(value) };
                const band = low === null || high === null || (log && low <= 0) ? null : ([y(low), y(high)] as const);
                return <OneBar key={`${name}${index}`} {...places} band={band} colour={colour(s)} />;
              }),
            )}
            {domain[0] < 0 && <line x1={box.left} x2={box.right} y1={y(0)} y2={y(0)} stroke={colours.muted} />}
          </g>
        );
      }}
    />
  );
}

interface OneBarProps {
  x: number;
  width: number;
  from: number;
  to: number;
  band: readonly [number, number] | null;
  colour: string;
}

function OneBar({ x, width, from, to, band, colour }: OneBarProps) {
  const middle = x + width / 2;
  const height = Math.max(0.5, Math.abs(from - to));
  return (
    <g>
      <rect
        x={x}
        width={Math.max(1, width - (width > 4 ? 1 : 0))}
        y={Math.min(from, to)}
        height={height}
        fill={colour}
      />
      {band && <line x1={middle} x2={middle} y1={band[0]} y2={band[1]} stroke={paint.value.text} stroke-width={1.4} />}
    </g>
  );
}

export function HistogramChart({ panel, width }: { panel: HistogramPanel; width: number }) {
  const colours = paint.value;
  const domain = extent(
    panel.samples.flatMap(([, values]) => values),
    false,
    0,
  );
  const counts = panel.samples.map(([, values]) => bin(values, domain, panel.bins));
  const top = Math.max(1, ...counts.flat());
  const marks = ticks([0, top * 1.04], 4).filter(Number.isInteger);
  const left = Math.max(30, ...marks.map((mark) => textWidth(tick(mark)) + 10));
  const colour = (index: number) => colours.series[index % colours.series.length] ?? colours.text;
  const xScale = (box: Box) => makeScale(domain, [box.left, box.right]);
  const yScale = (box: Box) => makeScale([0, top * 1.04], [box.bottom, box.top]);
  const edge = (index: number) => domain[0] + ((domain[1] - domain[0]) * index) / panel.bins;
  return (
    <Plot
      width={width}
      title={panel.title}
      xLabel={panel.x_label}
      yLabel="count"
      plotHeight={Math.min(260, Math.max(170, width * 0.45))}
      left={left}
      legend={
        panel.samples.length > 1
          ? panel.samples.map(([name], i) => ({ name, colour: colour(i), look: "block" as const }))
          : []
      }
      xTicks={(box) =>
        ticks(domain, Math.max(3, (box.right - box.left) / 80)).map((x) => ({ at: xScale(box)(x), label: tick(x) }))
      }
      yTicks={(box) => marks.map((y) => ({ at: yScale(box)(y), label: tick(y) }))}
      stops={panel.bins}
      near={(px, _, box) =>
        Math.min(panel.bins - 1, Math.max(0, Math.floor(((px - box.left) / (box.right - box.left)) * panel.bins)))
      }
      stop={(index, box) => ({
        x: xScale(box)((edge(index) + edge(index + 1)) / 2),
        y: yScale(box)(Math.max(...counts.map((list) => list[index] ?? 0))),
        title: `${show(edge(index))} to ${show(edge(index + 1))}`,
        rows: panel.samples.map(([name], i) => ({ name, value: show(counts[i]?.[index] ?? 0), colour: colour(i) })),
      })}
      summary={`Histogram of ${panel.samples.map(([name]) => name).join(", ")}.`}
      body={(box) =>
        counts.map((list, s) => (
          <g key={s} fill={colour(s)} fill-opacity={counts.length > 1 ? 0.55 : 1}>
            {list.map((count, index) => {
              if (!count) return null;
              const [from, to] = [xScale(box)(edge(index)), xScale(box)(edge(index + 1))];
              const y = yScale(box)(count);
              return <rect key={index} x={from} width={Math.max(0.5, to - from - 0.5)} y={y} height={box.bottom - y} />;
            })}
          </g>
        ))
      }
    />
  );
}
