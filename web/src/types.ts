// What the server says. The same words as the server's routes use; see vantage/serve/studio.

export type Num = number | null;

export interface Line {
  name: string;
  x: number[];
  y: Num[];
  low: Num[] | null;
  high: Num[] | null;
  look: "solid" | "dashed" | "dots";
}

export interface LinesPanel {
  kind: "lines";
  title: string;
  x_label: string;
  y_label: string;
  lines: Line[];
  log_x: boolean;
  log_y: boolean;
  marks: [string, number][];
}

export interface BarsPanel {
  kind: "bars";
  title: string;
  y_label: string;
  labels: string[];
  series: [string, Num[]][];
  low: Num[][] | null;
  high: Num[][] | null;
  log_y: boolean;
}

export interface HeatPanel {
  kind: "heat";
  title: string;
  x_label: string;
  y_label: string;
  values: Num[][];
  x_ticks: string[] | null;
  y_ticks: string[] | null;
  diverging: boolean;
  written: boolean;
}

export interface HistogramPanel {
  kind: "histogram";
  title: string;
  x_label: string;
  samples: [string, number[]][];
  bins: number;
}

export type Panel = LinesPanel | BarsPanel | HeatPanel | HistogramPanel;

export interface FigureData {
  name: string;
  caption: string;
  panels: Panel[];
}

export type Value = number | string;

export interface Parameter {
  name: string;
  default: Value;
  help: string;
  low: number | null;
  high: number | null;
  choices: string[];
}

export interface Encoding {
  name: string;
  title: string;
  about: string;
  parameters: Parameter[];
}

export type ModelKind = "decoder" | "encoder" | "encoder-decoder";

export interface Model {
  name: string;
  loaded: boolean;
  error: string | null;
  kind: ModelKind | null;
  family: string | null;
  layers: number | null;
  heads: number | null;
  kv_heads: number | null;
  width: number | null;
  vocab: number | null;
  context: number | null;
  position: string | null;
  chat: boolean | null;
}

export interface Models {
  default: string;
  models: Model[];
}
