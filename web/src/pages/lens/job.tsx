// Work of the server that says how far it is and can be stopped: its progress, its result, and what the result is of.
import { useEffect, useState } from "preact/hooks";
import type { Trouble } from "../../api";
import { Button } from "../../components/controls";
import { Busy, Meter, Problem } from "../../components/state";
import type { WorkProgress } from "../../generated/api";
import { useStream } from "../../streams";

export interface Job<T> {
  data: T | null;
  progress: WorkProgress | null;
  since: number | null;
  trouble: Trouble | null;
  /** What stands there is of something else than what is asked now. */
  stale: boolean;
  /** The reader stopped it. */
  stopped: boolean;
  start: () => void;
  stop: () => void;
}

/** `auto`: it starts by itself when what is asked has been still for a moment. A body of null asks nothing. */
export function useJob<T>(path: string, body: object | null, auto: boolean): Job<T> {
  const stream = useStream();
  const [progress, setProgress] = useState<WorkProgress | null>(null);
  const [result, setResult] = useState<{ key: string; data: T } | null>(null);
  const [stopped, setStopped] = useState(false);
  const key = body && JSON.stringify(body);
  const start = () => {
    if (!key) return;
    setProgress(null);
    setStopped(false);
    stream.run("POST", path, body, ({ event, data }) => {
      if (event === "progress") setProgress(data as WorkProgress);
      if (event === "result") setResult({ key, data: data as T });
    });
  };
  useEffect(() => {
    if (!auto || !key || result?.key === key) return;
    const timer = setTimeout(start, 300);
    return () => clearTimeout(timer);
  }, [key, auto]);
  const stop = () => {
    stream.stop();
    setStopped(true);
  };
  const stale = result !== null && result.key !== key;
  return { data: result?.data ?? null, progress, since: stream.since, trouble: stream.trouble, stale, stopped, start, stop };
}

/** How far a job is, with a way to stop it; what is wrong; a way to begin it again. */
export function Working<T>({ job, words, again }: { job: Job<T>; words: string; again?: string }) {
  return (
    <>
      {job.trouble && <Problem trouble={job.trouble} retry={job.start} />}
      {job.since !== null && (
        <div class="stack">
          <Busy words={job.progress ? `${words}: ${job.progress.doing}` : words} since={job.since} stop={job.stop} />
          <Meter share={job.progress?.share ?? 0} label={words} />
        </div>
      )}
      {again && job.stopped && job.since === null && (
        <div class="row">
          <Button onClick={job.start}>{again}</Button>
          {job.stale && <span class="small muted">This result is from before your last change.</span>}
        </div>
      )}
    </>
  );
}
