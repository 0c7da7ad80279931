// Draws any figure the server sends, in the page's colours, and hands it out as PNG, SVG or CSV.
import { useRef } from "preact/hooks";
import { figureCsv } from "../lib/csv";
import { useWidth } from "../hooks";
import type { FigureData, Panel } from "../types";
import { BarsChart, HistogramChart } from "./chart/BarsChart";
import { HeatChart } from "./chart/HeatChart";
import { LinesChart } from "./chart/LinesChart";
import { DownloadRow } from "./DownloadRow";

type Choose = (row: number, column: number) => void;

function PanelChart({ panel, choose }: { panel: Panel; choose?: Choose }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const size = Math.floor(width);
  return (
    <div ref={ref} class="panel-room">
      {size > 0 && <Chart panel={panel} width={size} choose={choose} />}
    </div>
  );
}

function Chart({ panel, width, choose }: { panel: Panel; width: number; choose?: Choose }) {
  switch (panel.kind) {
    case "lines":
      return <LinesChart panel={panel} width={width} />;
    case "bars":
      return <BarsChart panel={panel} width={width} />;
    case "heat":
      return <HeatChart panel={panel} width={width} choose={choose} />;
    case "histogram":
      return <HistogramChart panel={panel} width={width} />;
  }
}

/** `choose`: what a click on a cell of its heat maps does. */
export function Figure({ figure, choose }: { figure: FigureData; choose?: Choose }) {
  const root = useRef<HTMLDivElement>(null);
  return (
    <figure class="figure">
      <div class="panels" ref={root}>
        {figure.panels.map((panel, index) => (
          <PanelChart key={index} panel={panel} choose={choose} />
        ))}
      </div>
      <div class="foot">
        <figcaption>{figure.caption}</figcaption>
        <DownloadRow name={figure.name} root={root} csv={() => figureCsv(figure)} />
      </div>
    </figure>
  );
}

export function Figures({ figures }: { figures: FigureData[] }) {
  return (
    <div class="stack wide">
      {figures.map((figure) => (
        <Figure key={figure.name} figure={figure} />
      ))}
    </div>
  );
}
