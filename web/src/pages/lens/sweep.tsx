// One intervention in every layer and position or head, as a heat map, with the largest effects in words.
import { Figure } from "../../components/Figure";
import { Facts } from "../../components/state";
import type { SweepAnswer } from "../../generated/api";
import { show } from "../../lib/numbers";

interface SweepMapProps {
  data: SweepAnswer;
  stale: boolean;
  what: string;
  choose?: (at: { layer: number; cell: number }) => void;
}

export function SweepMap({ data, stale, what, choose }: SweepMapProps) {
  const facts = [{ name: data.goal === null ? data.measure : `${data.measure}, second text`, value: show(data.before) }];
  if (data.goal !== null) facts.push({ name: "first text", value: show(data.goal) });
  const cell = choose && ((row: number, column: number) => choose({ layer: data.layers[row] ?? 0, cell: data.cells[column] ?? 0 }));
  return (
    <>
      {stale && <p class="small muted">This result is from before your last change.</p>}
      <Facts facts={facts} />
      <Figure figure={data.figure} choose={cell} />
      <p class="small">
        Largest effects:{" "}
        {data.top.map((one) => `layer ${one.layer}, ${data.by === "heads" ? "head" : "token"} ${one.label}: ${show(Number(one.effect.toFixed(3)))}`).join("; ")}.
      </p>
      <p class="small muted">{what}</p>
    </>
  );
}
