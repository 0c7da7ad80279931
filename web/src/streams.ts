// A stream of events that a page starts, follows and may stop. Leaving the page stops it.
import { useEffect, useRef, useState } from "preact/hooks";
import { type Event, events, Trouble } from "./api";
import type { WorkProgress } from "./generated/api";
import { asTrouble } from "./hooks";

/** The result of work that reports on its way (events `progress` and `result`). */
export async function resultOf<T>(
  method: "GET" | "POST",
  path: string,
  body: unknown,
  signal: AbortSignal | undefined,
  progress: (now: WorkProgress) => void,
): Promise<T> {
  for await (const { event, data } of events(method, path, body, { signal })) {
    if (event === "progress") progress(data as WorkProgress);
    if (event === "result") return data as T;
  }
  throw new Trouble("broken", "The server ended without a result.", "Retry.");
}

export interface Stream {
  /** When it began (performance.now), or null where none runs. */
  since: number | null;
  trouble: Trouble | null;
  run: (method: "GET" | "POST", path: string, body: unknown, take: (event: Event) => void, seconds?: number) => void;
  stop: () => void;
}

export function useStream(): Stream {
  const [state, setState] = useState<{ since: number | null; trouble: Trouble | null }>({ since: null, trouble: null });
  const running = useRef<AbortController | null>(null);
  useEffect(() => () => running.current?.abort(), []);

  const stop = () => {
    running.current?.abort();
    running.current = null;
    setState({ since: null, trouble: null });
  };
  const run: Stream["run"] = (method, path, body, take, seconds = 60) => {
    running.current?.abort();
    const controller = new AbortController();
    running.current = controller;
    setState({ since: performance.now(), trouble: null });
    const follow = async () => {
      for await (const event of events(method, path, body, { signal: controller.signal, seconds })) {
        if (controller.signal.aborted) return;
        take(event);
      }
    };
    follow().then(
      () => {
        if (!controller.signal.aborted) setState({ since: null, trouble: null });
      },
      (error: unknown) => {
        if (!controller.signal.aborted) setState({ since: null, trouble: asTrouble(error) });
      },
    );
  };
  return { ...state, run, stop };
}
