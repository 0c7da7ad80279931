// What pages share: a question to the server with its answer, and the size of an element.
import { effect } from "@preact/signals";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { connected, Trouble } from "./api";

export interface Answer<T> {
  /** The last answer; stays while a newer one is on its way. */
  data: T | null;
  trouble: Trouble | null;
  /** When the running question was put (performance.now), or null. */
  since: number | null;
  retry: () => void;
}

export const asTrouble = (error: unknown): Trouble =>
  error instanceof Trouble ? error : new Trouble("broken", error instanceof Error ? error.message : String(error));

/**
 * Asks when `key` changes, and stops the question before it. A key of null asks nothing. When the server comes back
 * after it was gone, a question that failed is put again.
 */
export function useAnswer<T>(key: string | null, ask: (signal: AbortSignal) => Promise<T>, wait = 0): Answer<T> {
  const [state, setState] = useState<{ data: T | null; trouble: Trouble | null; since: number | null }>({
    data: null,
    trouble: null,
    since: null,
  });
  const [attempt, setAttempt] = useState(0);
  const latest = useRef(ask);
  latest.current = ask;
  const retry = useCallback(() => setAttempt((n) => n + 1), []);

  useEffect(() => {
    if (key === null) {
      setState({ data: null, trouble: null, since: null });
      return;
    }
    const controller = new AbortController();
    setState((old) => ({ ...old, trouble: null, since: performance.now() }));
    const timer = setTimeout(() => {
      latest.current(controller.signal).then(
        (data) => {
          if (!controller.signal.aborted) setState({ data, trouble: null, since: null });
        },
        (error: unknown) => {
          if (!controller.signal.aborted)
            setState((old) => ({ data: old.data, trouble: asTrouble(error), since: null }));
        },
      );
    }, wait);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [key, attempt]);

  const lost = state.trouble?.kind === "gone";
  useEffect(() => {
    if (!lost) return;
    return effect(() => {
      if (connected.value) retry();
    });
  }, [lost]);
  return { ...state, retry };
}

/** The width of an element in CSS pixels, as it changes. */
export function useWidth<E extends Element>(): [(element: E | null) => void, number] {
  const [width, setWidth] = useState(0);
  const observer = useRef<ResizeObserver | null>(null);
  const ref = useCallback((element: E | null) => {
    observer.current?.disconnect();
    observer.current = null;
    if (!element) return;
    setWidth(element.getBoundingClientRect().width);
    observer.current = new ResizeObserver((entries) => {
      const box = entries[0]?.contentRect;
      if (box) setWidth(box.width);
    });
    observer.current.observe(element);
  }, []);
  return [ref, width];
}

/** A value that follows another only after it has been still for a while. */
export function useSettled<T>(value: T, milliseconds: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return settled;
}
