// Generation with a cache and without one, token by token: keys projected, counted, and time, measured.
import { useState } from "preact/hooks";
import { Button, Slider } from "../../components/controls";
import { Figure } from "../../components/Figure";
import { ModelPicker, useModel } from "../../components/ModelPicker";
import { Busy, Card, Empty, Facts, Meter, Problem } from "../../components/state";
import { compact, duration, show } from "../../lib/numbers";
import { useParam } from "../../router";
import { useStream } from "../../streams";
import type { MeasuredPoint, MeasuredTotal, Spent } from "../../generated/api";
import type { FigureData, LinesPanel } from "../../types";

export function Measure() {
  const [name, setName] = useParam("model", "");
  const [tokens, setTokens] = useParam("tokens", 48);
  const model = useModel(name);
  const stream = useStream();
  const [points, setPoints] = useState<MeasuredPoint[]>([]);
  const [done, setDone] = useState<MeasuredTotal | null>(null);
  const [asked, setAsked] = useState(tokens);
  const start = () => {
    setPoints([]);
    setDone(null);
    setAsked(tokens);
    stream.run(
      "POST",
      "/cost/measure",
      { model: model?.name, tokens },
      ({ event, data }) => {
        if (event === "point") setPoints((old) => [...old, data as MeasuredPoint]);
        if (event === "done") setDone(data as MeasuredTotal);
      },
      120,
    );
  };
  const running = stream.since !== null;
  return (
    <div class="grid side">
      <Card title="What to measure">
        <ModelPicker value={name} onChange={setName} fits={(one) => one.kind === "decoder"} />
        <Slider label="Tokens" value={tokens} min={8} max={512} step={8} onChange={setTokens} disabled={running} help="to generate, twice each: with the cache, and by reading the whole text anew" />
        <div class="row">
          {running ? (
            <Button onClick={stream.stop}>Stop</Button>
          ) : (
            <Button look="main" disabled={!model} onClick={start}>
              Measure
            </Button>
          )}
          {stream.since !== null && <Busy words={points.length ? "Measuring" : "Waiting for the first token"} since={stream.since} />}
        </div>
        <p class="small muted">The measurement stops after 90 seconds.</p>
      </Card>
      <div class="stack">
        {stream.trouble && <Problem trouble={stream.trouble} retry={start} />}
        {points.length ? (
          <Curves points={points} asked={asked} running={running} done={done} />
        ) : (
          !stream.trouble && !running && <Empty>Press Measure to see two curves, token by token.</Empty>
        )}
      </div>
    </div>
  );
}

function Curves({ points, asked, running, done }: { points: MeasuredPoint[]; asked: number; running: boolean; done: MeasuredTotal | null }) {
  const last = points[points.length - 1];
  if (!last) return null;
  return (
    <Card title="With a cache and without">
      {running && <Meter share={last.n / asked} label={`${last.n} of ${asked} tokens`} />}
      <Facts
        facts={[
          { name: "tokens", value: show(last.n), unit: `of ${show(asked)}` },
          { name: "with a cache", value: duration(last.cached.ms), unit: `${compact(last.cached.projections)} keys` },
          { name: "without", value: duration(last.uncached.ms), unit: `${compact(last.uncached.projections)} keys` },
          { name: "times as slow without", value: show(last.uncached.ms / last.cached.ms) },
          { name: "times as many keys", value: show(last.uncached.projections / last.cached.projections) },
        ]}
      />
      <Figure figure={growing(points)} />
      {done && (
        <p class="small" role="status">
          {done.same === done.tokens ? `Both ways chose the same token every time (${show(done.tokens)}).` : `Both ways chose the same token ${show(done.same)} times of ${show(done.tokens)}.`}
          {done.tokens < done.asked && ` The time was up after ${show(done.tokens)} of ${show(done.asked)} tokens.`} It wrote: <q class="cost-said">{done.text.trim()}</q>
        </p>
      )}
      {!running && !done && <p class="small muted">Stopped after {show(last.n)} tokens.</p>}
    </Card>
  );
}

/** The figure so far. */
export function growing(points: MeasuredPoint[]): FigureData {
  const panel = (title: string, what: keyof Spent, y_label: string): LinesPanel => ({
    kind: "lines",
    title,
    x_label: "tokens generated",
    y_label,
    lines: (["cached", "uncached"] as const).map((key) => ({
      name: key === "cached" ? "with a cache" : "without",
      x: points.map((point) => point.n),
      y: points.map((point) => point[key][what]),
      low: null,
      high: null,
      look: "solid" as const,
    })),
    log_x: false,
    log_y: false,
    marks: [],
  });
  return {
    name: "measured",
    caption: "Cumulative: keys projected per layer, and milliseconds. Without a cache each token recomputes the whole text.",
    panels: [panel("keys projected", "projections", "keys"), panel("time", "ms", "ms")],
  };
}
