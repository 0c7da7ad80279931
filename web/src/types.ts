// What the server answers, under the names that all pages use. The types themselves are generated (`make types`).
import type { Figure } from "./generated/api";

export type {
  Bars as BarsPanel,
  EncodingEntry as Encoding,
  Figure as FigureData,
  Heat as HeatPanel,
  Histogram as HistogramPanel,
  Line,
  Lines as LinesPanel,
  ModelEntry as Model,
  ModelList as Models,
  Parameter,
} from "./generated/api";

export type Panel = Figure["panels"][number];
export type Num = number | null;
export type Value = number | string;
