// One encoding in pictures, drawn anew as its parameters change.
import { post } from "../../api";
import { Select } from "../../components/controls";
import { EncodingControls, useChosen } from "../../components/EncodingPicker";
import { Figure } from "../../components/Figure";
import { WideNumber } from "../../components/numbers";
import { Busy, Card, Problem } from "../../components/state";
import { useAnswer } from "../../hooks";
import { href, route, useParam } from "../../router";
import type { EncodingFigures } from "../../generated/api";
import type { Encoding } from "../../types";

const WIDTHS = ["16", "32", "64", "128", "256", "512"];
const HEADS = ["1", "2", "4", "8", "16", "32"];

export function Gallery({ encodings }: { encodings: Encoding[] }) {
  const chosen = useChosen(encodings);
  const [length, setLength] = useParam("length", 256);
  const [width, setWidth] = useParam("width", "64");
  const [heads, setHeads] = useParam("heads", "4");
  const body = { encoding: chosen.encoding.name, values: chosen.values, length, width: Number(width), heads: Number(heads) };
  const answer = useAnswer(JSON.stringify(body), (signal) => post<EncodingFigures>("/positions/show", body, { signal }), 150);
  return (
    <div class="grid side">
      <Card title="Encoding and parameters" beside={answer.since !== null && answer.data ? <Busy words="Drawing" since={answer.since} /> : null}>
        <EncodingControls encodings={encodings} chosen={chosen} />
        <hr class="rule" />
        <WideNumber label="length" value={length} min={2} max={4096} whole onChange={setLength} help="number of positions" />
        <div class="pos-pair">
          <Select label="width" value={width} options={WIDTHS} onChange={setWidth} help="of the model" />
          <Select label="heads" value={heads} options={HEADS} onChange={setHeads} help="per layer" />
        </div>
        <p class="small">
          <a href={href("positions", { ...route.value.params, view: "swap" })}>Try it in the model</a>
        </p>
      </Card>
      <div class="stack">
        {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
        {answer.since !== null && !answer.data && <Busy words="Drawing" since={answer.since} />}
        {answer.data && (
          <div class="pos-figures" aria-busy={answer.since !== null}>
            {answer.data.figures.map((figure) => (
              <section class={`card pos-figure ${figure.panels.length > 1 ? "wide" : ""}`} key={figure.name} aria-label={figure.name}>
                <Figure figure={figure} />
              </section>
            ))}
          </div>
        )}
      </div>
    </div>
  );
}
