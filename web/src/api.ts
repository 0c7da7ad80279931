// The one way to the server: a token on every call, a time limit on every wait, errors in words.
import { signal } from "@preact/signals";

export const BASE = "/studio/api";

export type Kind = "gone" | "late" | "stale" | "refused" | "broken" | "stopped";

/** What went wrong, in the server's words where it gave some, and what the reader can do about it. */
export class Trouble extends Error {
  constructor(
    readonly kind: Kind,
    message: string,
    readonly advice = "",
    readonly code: string | null = null,
    readonly status = 0,
  ) {
    super(message);
  }
}

/** False while the server does not answer. The shell says so and asks again. */
export const connected = signal(true);

let token = "";

const TOKEN = 'meta[name="vantage-token"]';

export function readToken(): void {
  token = document.querySelector<HTMLMetaElement>(TOKEN)?.content ?? "";
}

export interface Options {
  signal?: AbortSignal;
  /** Seconds without an answer after which the call is given up. For a stream: seconds without an event. */
  seconds?: number;
}

const gone = () =>
  new Trouble("gone", "The server does not answer.", "Is `vantage studio` still running? Start it again, then retry.");

const late = (seconds: number) =>
  new Trouble(
    "late",
    `The server did not answer within ${seconds} seconds.`,
    "The server may be busy with other work. Try again.",
  );

/** An abort that fires on its own after some silence, or when the caller wants it. `touch` starts the wait anew. */
class Patience {
  private readonly controller = new AbortController();
  private timer: ReturnType<typeof setTimeout> | undefined;
  late = false;

  constructor(
    readonly seconds: number,
    private readonly outer?: AbortSignal,
  ) {
    if (outer?.aborted) this.controller.abort();
    outer?.addEventListener("abort", this.stop);
    this.touch();
  }

  private readonly stop = (): void => this.controller.abort();

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  touch(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.late = true;
      this.controller.abort();
    }, this.seconds * 1000);
  }

  end(): void {
    clearTimeout(this.timer);
    this.outer?.removeEventListener("abort", this.stop);
  }

  /** What a failed fetch means. */
  trouble(error: unknown): Trouble {
    if (error instanceof Trouble) return error;
    if (this.late) return late(this.seconds);
    if (this.outer?.aborted) return new Trouble("stopped", "Stopped.");
    connected.value = false;
    return gone();
  }
}

interface Envelope {
  error?: { message?: string; code?: string | null };
  detail?: unknown;
}

/** The server's refusal as a Trouble. */
export function refusal(status: number, body: string): Trouble {
  let envelope: Envelope = {};
  try {
    envelope = JSON.parse(body) as Envelope;
  } catch {
    // Not JSON: the status alone has to do.
  }
  const code = envelope.error?.code ?? null;
  const words = envelope.error?.message ?? (typeof envelope.detail === "string" ? envelope.detail : "");
  if (status === 401 || status === 403) {
    return new Trouble(
      "stale",
      words || "The server does not know this page.",
      "It was probably restarted. Reload the page.",
      code,
      status,
    );
  }
  if (status === 429 || status === 503) {
    return new Trouble(
      "refused",
      words || "The server is busy.",
      "Wait a moment, then retry.",
      code,
      status,
    );
  }
  if (status >= 500) {
    const advice = "See the server's output in the terminal. Retry, or restart it.";
    return new Trouble("broken", words || `The server failed (${status}).`, advice, code, status);
  }
  return new Trouble("refused", words || `The server refused this (${status}).`, "", code, status);
}

async function send(method: string, path: string, body: unknown, patience: Patience): Promise<Response> {
  const used = token;
  try {
    return await sendOnce(method, path, body, patience);
  } catch (error) {
    if (!(error instanceof Trouble) || error.code !== "wrong_token") throw error;
    if (token === used) token = await servedToken(patience.signal);
    if (token === used) throw error;
    return sendOnce(method, path, body, patience);
  }
}

/** The token of the page as it is served now: another one after a restart of the server. */
async function servedToken(signal: AbortSignal): Promise<string> {
  const page = await (await fetch("/studio/", { signal, cache: "no-store" })).text();
  return new DOMParser().parseFromString(page, "text/html").querySelector<HTMLMetaElement>(TOKEN)?.content ?? token;
}

async function sendOnce(method: string, path: string, body: unknown, patience: Patience): Promise<Response> {
  const headers: Record<string, string> = { "X-Vantage-Token": token };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(BASE + path, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: patience.signal,
    cache: "no-store",
  });
  connected.value = true;
  if (!response.ok) throw refusal(response.status, await response.text());
  return response;
}

async function ask<T>(
  method: string,
  path: string,
  body: unknown,
  { signal: outer, seconds = 30 }: Options,
  read: (response: Response) => Promise<T>,
): Promise<T> {
  const patience = new Patience(seconds, outer);
  try {
    return await read(await send(method, path, body, patience));
  } catch (error) {
    throw patience.trouble(error);
  } finally {
    patience.end();
  }
}

const json = async <T>(response: Response): Promise<T> => {
  const text = await response.text();
  return (text ? JSON.parse(text) : null) as T;
};

export const get = <T>(path: string, options: Options = {}): Promise<T> =>
  ask("GET", path, undefined, options, (response) => json<T>(response));

export const post = <T>(path: string, body: unknown, options: Options = {}): Promise<T> =>
  ask("POST", path, body, options, (response) => json<T>(response));

export const remove = (path: string, options: Options = {}): Promise<void> =>
  ask("DELETE", path, undefined, options, async (response) => void (await response.text()));

export const text = (path: string, options: Options = {}): Promise<string> =>
  ask("GET", path, undefined, options, (response) => response.text());

export interface Bytes {
  buffer: ArrayBuffer;
  headers: Headers;
}

export const bytes = (path: string, options: Options = {}): Promise<Bytes> =>
  ask("GET", path, undefined, options, async (response) => ({
    buffer: await response.arrayBuffer(),
    headers: response.headers,
  }));

export interface Event<T = unknown> {
  event: string;
  data: T;
}

/** Takes text in any pieces, gives whole events. */
export class EventReader {
  private rest = "";

  take(piece: string): Event[] {
    const text = this.rest + piece;
    const half = text.endsWith("\r") ? "\r" : ""; // its line feed may be in the next piece
    const blocks = text
      .slice(0, text.length - half.length)
      .replace(/\r\n?/g, "\n")
      .split("\n\n");
    this.rest = (blocks.pop() ?? "") + half;
    const events: Event[] = [];
    for (const block of blocks) {
      let event = "message";
      const data: string[] = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) event = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
      if (data.length && data[0] !== "[DONE]") events.push({ event, data: JSON.parse(data.join("\n")) as unknown });
    }
    return events;
  }
}

/** The events of a stream, as they come. An `error` event is thrown; leaving the loop ends the server's work. */
export async function* events<T = unknown>(
  method: "GET" | "POST",
  path: string,
  body: unknown,
  { signal: outer, seconds = 60 }: Options = {},
): AsyncGenerator<Event<T>> {
  const patience = new Patience(seconds, outer);
  let reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
  try {
    const response = await send(method, path, body, patience);
    if (!response.body) throw new Trouble("broken", "The server sent an empty stream.", "Retry.");
    reader = response.body.getReader();
    const decoder = new TextDecoder();
    const parts = new EventReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      patience.touch();
      for (const event of parts.take(decoder.decode(value, { stream: true }))) {
        if (event.event === "error") {
          const said = event.data as { message?: string; code?: string } | null;
          throw new Trouble("refused", said?.message ?? "The server stopped with an error.", "", said?.code ?? null);
        }
        yield event as Event<T>;
      }
    }
  } catch (error) {
    throw patience.trouble(error);
  } finally {
    patience.end();
    void reader?.cancel().catch(() => undefined);
  }
}
