// One comparison: how far it is and what it has found so far; its report when it is finished.
import { useEffect, useState } from "preact/hooks";
import { get, post, remove, type Trouble } from "../../api";
import { Button } from "../../components/controls";
import { Figure } from "../../components/Figure";
import { Busy, Card, Empty, Facts, Meter, Problem, sentence } from "../../components/state";
import { asTrouble, useAnswer } from "../../hooks";
import { csv } from "../../lib/csv";
import { save } from "../../lib/download";
import { duration, percent, show } from "../../lib/numbers";
import { useStream } from "../../streams";
import type { CompareDone, CompareProgress, CompareRow, ComparisonEntry } from "../../generated/api";
import type { FigureData } from "../../types";
import { StateTag, when } from "./list";
import { Report } from "./report";

export function Watch({ id }: { id: string }) {
  const stream = useStream();
  const [progress, setProgress] = useState<CompareProgress | null>(null);
  const [curve, setCurve] = useState<FigureData | null>(null);
  const [learning, setLearning] = useState<FigureData | null>(null);
  const [done, setDone] = useState(false);
  const [short, setShort] = useState<string[]>([]);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const [since, setSince] = useState<number | null>(null);
  const entry = useAnswer(id, async (signal) => (await get<ComparisonEntry[]>("/compare", { signal })).find((one) => one.name === id) ?? null);

  const follow = () =>
    stream.run("GET", `/compare/${encodeURIComponent(id)}/events`, undefined, ({ event, data }) => {
      if (event === "progress") setProgress(data as CompareProgress);
      if (event === "curve") setCurve(data as FigureData);
      if (event === "learning") setLearning(data as FigureData);
      if (event === "done") {
        setShort((data as CompareDone).short);
        setDone(true);
      }
    }, 90);
  useEffect(follow, [id]);

  const act = (what: () => Promise<unknown>, then: () => void) => {
    setTrouble(null);
    setSince(performance.now());
    what().then(
      () => {
        setSince(null);
        then();
      },
      (error: unknown) => {
        setSince(null);
        setTrouble(asTrouble(error));
      },
    );
  };
  const stop = () => act(() => remove(`/compare/${encodeURIComponent(id)}`, { seconds: 40 }), () => undefined);
  const resume = () => act(() => post(`/compare/${encodeURIComponent(id)}/resume`, {}, { seconds: 40 }), follow);
  // The server says an end that can be gone on with as an error of the stream.
  const ended = stream.trouble?.code === "stopped" || stream.trouble?.code === "error";
  const state: ComparisonEntry["state"] = done ? "done" : ended ? (stream.trouble?.code as ComparisonEntry["state"]) : "running";
  const lost = stream.trouble !== null && !ended;
  return (
    <div class="stack wide">
      <Card
        title={entry.data?.title ?? "Comparison"}
        beside={
          <span class="row">
            {!lost && progress && <StateTag state={state} />}
            {entry.data && <span class="small muted numeric">{when(entry.data.when)}</span>}
          </span>
        }
      >
        {lost && stream.trouble && <Problem trouble={stream.trouble} retry={follow} />}
        {trouble && <Problem trouble={trouble} retry={state === "running" ? stop : resume} />}
        {ended && stream.trouble && <p class="note small" role="status">{sentence(stream.trouble.message)}</p>}
        {progress && !done && !lost && <Going progress={progress} running={state === "running"} />}
        <div class="row">
          {state === "running" && !lost && progress && (
            <Button disabled={since !== null} onClick={stop}>
              Stop
            </Button>
          )}
          {ended && (
            <Button look="main" disabled={since !== null} onClick={resume}>
              Continue
            </Button>
          )}
          {since !== null && <Busy words={state === "running" ? "Stopping" : "Starting again"} since={since} />}
          {!progress && stream.since !== null && <Busy words="Loading the progress" since={stream.since} />}
        </div>
      </Card>
      {(curve || (progress && progress.rows.length > 0)) && (
        <Card title={done ? "Results" : "Results so far"} beside={done ? <span class="small muted">details in the report below</span> : null}>
          {short.length > 0 && (
            <ul class="cmp-short">
              {short.map((sentence) => (
                <li key={sentence}>{sentence}</li>
              ))}
            </ul>
          )}
          {curve && <Figure figure={curve} />}
          {progress && <Scores rows={progress.rows} />}
        </Card>
      )}
      {learning && !done && (
        <Card title="Learning so far" beside={curve ? null : <span class="small muted">scores appear after the first trained model</span>}>
          <Figure figure={learning} />
        </Card>
      )}
      {progress && !curve && !learning && !done && state === "running" && <Empty>Curves appear here after the first training steps.</Empty>}
      {done && <Report name={id} />}
    </div>
  );
}

function Going({ progress, running }: { progress: CompareProgress; running: boolean }) {
  const share = progress.total ? progress.done / progress.total : 0;
  return (
    <>
      {running && <Meter share={share} label={`${percent(share)} trained`} />}
      <Facts
        facts={[
          { name: "steps done", value: progress.total ? percent(share) : "–", unit: progress.total ? `of ${show(progress.total)}` : "" },
          { name: "time left, about", value: progress.left_s === null || !running ? "–" : duration(progress.left_s * 1000) },
          { name: "models finished", value: show(progress.rows.reduce((sum, row) => sum + row.runs, 0)) },
        ]}
      />
      {running && (progress.message || !progress.total) && <p class="small muted">{progress.message || "Measuring the speed of this machine."}</p>}
    </>
  );
}

const MEASURES: Record<CompareRow["measure"], string> = { exact: "accuracy", tokens: "token accuracy" };

function Scores({ rows }: { rows: CompareRow[] }) {
  const lengths = [...new Set(rows.flatMap((row) => row.at.map((one) => one.length)))].sort((a, b) => a - b);
  const at = (row: CompareRow, length: number) => row.at.find((one) => one.length === length)?.score;
  const table = () => csv([["task", "entry", "scored by", "runs", "diverged", ...lengths.map((n) => `score at ${n}`)], ...rows.map((row) => [row.task, row.entry, MEASURES[row.measure], row.runs, row.diverged, ...lengths.map((n) => at(row, n))])]);
  if (!rows.length) return null;
  return (
    <div class="stack">
      <div class="scroll table-scroll" tabIndex={0} role="region" aria-label="Scores so far">
        <table>
          <caption class="hidden">Share of rows, or of tokens, that are right, by length</caption>
          <thead>
            <tr>
              <th scope="col">Entry</th>
              <th scope="col">Task</th>
              <th scope="col" class="number">
                Runs
              </th>
              {lengths.map((n) => (
                <th key={n} scope="col" class="number">
                  {n}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={`${row.task} ${row.entry}`}>
                <th scope="row">{row.entry}</th>
                <td>
                  {row.task} <span class="muted">({MEASURES[row.measure]})</span>
                </td>
                <td class="number">
                  {row.runs}
                  {row.diverged > 0 && <span class="tag bad"> {row.diverged} diverged</span>}
                </td>
                {lengths.map((n) => (
                  <td key={n} class="number">
                    {at(row, n) === undefined ? "–" : percent(at(row, n) ?? 0)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <div class="row downloads">
        <Button little look="quiet" label="Download scores-so-far as CSV" onClick={() => save("scores-so-far.csv", table(), "text/csv")}>
          CSV
        </Button>
      </div>
    </div>
  );
}
