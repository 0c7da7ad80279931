// One side of the attention page: which model, layer and head, and the text as that model read it.
import { bytes, get, post } from "../../api";
import { useModel } from "../../components/ModelPicker";
import { type Answer, useAnswer } from "../../hooks";
import { type Matrix, weights } from "../../lib/matrix";
import { put, route, read } from "../../router";
import type { Model } from "../../types";

export type SiteKind = "self" | "cross" | "encoder";

export interface Capture {
  id: string;
  tokens: string[];
  source_tokens: string[] | null;
  length: number;
  sites: { kind: SiteKind; layer: number; heads: number }[];
  ms: number;
}

export interface HeadFacts {
  kind: SiteKind;
  layer: number;
  head: number;
  label: string;
  entropy: number | null;
  distance: number | null;
  shares: Record<string, number | null>;
}

export interface Scores {
  keys: string[];
  score: (number | null)[];
  parts: { name: string; of?: string; values: (number | null)[] }[];
}

export const ONE = 65535;

export interface Side {
  /** "" for the first side, "b_" for the one beside it: what its parameters begin with. */
  prefix: string;
  name: string;
  model: Model | null;
  capture: Answer<Capture>;
  kind: SiteKind;
  kinds: SiteKind[];
  layer: number;
  layers: number[];
  head: number;
  heads: number;
  queries: string[];
  keys: string[];
  /** The query whose scores are shown: the chosen one, or the last. */
  query: number;
  /** The query that was chosen, if one was. */
  chosen: number | null;
  set: (changes: Partial<Record<"model" | "kind" | "layer" | "head" | "query", string | number | null>>) => void;
}

// The same text and model is read once, whichever side asks. A few stay; the server keeps a few as well.
const captures = new Map<string, Promise<Capture>>();

function capture(body: { model: string; text: string; source?: string }): Promise<Capture> {
  const key = JSON.stringify(body);
  let found = captures.get(key);
  if (!found) {
    found = post<Capture>("/attention", body, { seconds: 120 });
    captures.set(key, found);
    found.catch(() => captures.delete(key));
    for (const old of captures.keys()) {
      if (captures.size <= 4) break;
      captures.delete(old);
    }
  }
  return found;
}

export function useSide(prefix: string, text: string, source: string): Side {
  const params = route.value.params;
  const param = <T extends string | number>(name: string, fallback: T): T =>
    read(params[prefix + name] ?? (prefix ? params[name] : undefined), fallback);
  const name = param("model", "");
  const model = useModel(name);
  const body =
    model && text.trim() ? { model: model.name, text, ...(model.kind === "encoder-decoder" ? { source } : {}) } : null;
  const answer = useAnswer(body && JSON.stringify(body), () =>
    body ? capture(body) : Promise.reject(new Error("no model")),
  );
  const data = answer.data;
  const kinds = [...new Set(data?.sites.map((site) => site.kind) ?? [])];
  const wanted = param("kind", "self") as SiteKind;
  const kind = kinds.includes(wanted) ? wanted : (kinds[0] ?? "self");
  const sites = data?.sites.filter((site) => site.kind === kind) ?? [];
  const layers = sites.map((site) => site.layer);
  const layer = clamp(param("layer", 0), 0, (layers.at(-1) ?? 0) || 0);
  const heads = sites.find((site) => site.layer === layer)?.heads ?? 1;
  const queries = (kind === "encoder" ? data?.source_tokens : data?.tokens) ?? data?.tokens ?? [];
  const keys = (kind === "self" ? data?.tokens : data?.source_tokens) ?? data?.tokens ?? [];
  const query = clamp(param("query", queries.length - 1), 0, Math.max(0, queries.length - 1));
  return {
    prefix,
    name,
    model,
    capture: {
      ...answer,
      retry: () => {
        captures.clear();
        answer.retry();
      },
    },
    kind,
    kinds,
    layer,
    layers,
    head: clamp(param("head", 0), 0, heads - 1),
    heads,
    queries,
    keys,
    query,
    chosen: params[`${prefix}query`] === undefined ? null : query,
    set: (changes) => put(Object.fromEntries(Object.entries(changes).map(([key, value]) => [prefix + key, value]))),
  };
}

const clamp = (value: number, low: number, high: number): number => Math.min(high, Math.max(low, Math.round(value)));

/** Whose answer it is: a question about a capture the server has given up is put again with a fresh capture. */
function useOf<T>(side: Side, path: string | null, ask: (path: string, signal: AbortSignal) => Promise<T>): Answer<T> {
  const id = side.capture.data?.id;
  const whole = id && path !== null && side.capture.since === null ? `/attention/${id}/${path}` : null;
  const answer = useAnswer(whole, (signal) => ask(whole ?? "", signal));
  return { ...answer, retry: answer.trouble?.status === 404 ? side.capture.retry : answer.retry };
}

export function useHead(side: Side): Answer<Matrix> {
  return useOf(side, `head?kind=${side.kind}&layer=${side.layer}&head=${side.head}`, async (path, signal) => {
    const { buffer, headers } = await bytes(path, { signal, seconds: 60 });
    return weights(buffer, Number(headers.get("X-Queries")), Number(headers.get("X-Keys")));
  });
}

export interface Small {
  heads: Matrix[];
}

export function useSmall(side: Side): Answer<Small> {
  return useOf(side, `heads?kind=${side.kind}&layer=${side.layer}`, async (path, signal) => {
    const { buffer, headers } = await bytes(path, { signal, seconds: 60 });
    const size = Number(headers.get("X-Size"));
    const cells = size * size;
    const heads = Array.from({ length: Number(headers.get("X-Heads")) }, (_, head) => ({
      rows: size,
      columns: size,
      values: new Uint8Array(buffer, head * cells, cells),
    }));
    return { heads };
  });
}

export function useAtlas(side: Side): Answer<{ heads: HeadFacts[]; tokens?: number }> {
  return useOf(side, "atlas", (path, signal) => get(path, { signal, seconds: 120 }));
}

export function useScores(side: Side): Answer<Scores> {
  const path = side.queries.length
    ? `scores?kind=${side.kind}&layer=${side.layer}&head=${side.head}&query=${side.query}`
    : null;
  return useOf(side, path, (whole, signal) => get<Scores>(whole, { signal, seconds: 60 }));
}
