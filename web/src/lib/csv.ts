// A figure's numbers as a table. One row for each value, the same columns for every panel of a kind.
import type { FigureData, Panel } from "../types";

type Cell = string | number | null | undefined;

function cell(value: Cell): string {
  if (value === null || value === undefined) return "";
  const text = String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export const csv = (rows: Cell[][]): string => rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";

function panelRows(panel: Panel): Cell[][] {
  const { title } = panel;
  switch (panel.kind) {
    case "lines":
      return [
        ["panel", "line", panel.x_label || "x", panel.y_label || "y", "low", "high"],
        ...panel.lines.flatMap((line) =>
          line.x.map((x, i): Cell[] => [title, line.name, x, line.y[i], line.low?.[i], line.high?.[i]]),
        ),
        ...panel.marks.map(([name, y]): Cell[] => [title, name, null, y, null, null]),
      ];
    case "bars":
      return [
        ["panel", "series", "label", panel.y_label || "value", "low", "high"],
        ...panel.series.flatMap(([name, values], s) =>
          panel.labels.map((label, i): Cell[] => [
            title,
            name,
            label,
            values[i],
            panel.low?.[s]?.[i],
            panel.high?.[s]?.[i],
          ]),
        ),
      ];
    case "heat":
      return [
        ["panel", panel.y_label || "row", panel.x_label || "column", "value"],
        ...panel.values.flatMap((row, y) =>
          row.map((value, x): Cell[] => [title, panel.y_ticks?.[y] ?? y, panel.x_ticks?.[x] ?? x, value]),
        ),
      ];
    case "histogram":
      return [
        ["panel", "sample", panel.x_label || "value"],
        ...panel.samples.flatMap(([name, values]) => values.map((value): Cell[] => [title, name, value])),
      ];
  }
}

export function figureCsv(figure: FigureData): string {
  return figure.panels.map((panel) => csv(panelRows(panel))).join("\r\n");
}
