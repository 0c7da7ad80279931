// One side of the attention page: which model, encoding, layer and head, and the text as that model read it.
import { signal } from "@preact/signals";
import { useMemo, useRef } from "preact/hooks";
import { bytes, get } from "../../api";
import { useModel } from "../../components/ModelPicker";
import { type Answer, useAnswer } from "../../hooks";
import { slug, spoken } from "../../lib/encoding";
import { halved, type Matrix, weights } from "../../lib/matrix";
import { put, route, read } from "../../router";
import { resultOf } from "../../streams";
import type { AtlasAnswer, AttentionSite, EncodingInfo, HeadEntry, ReadTextAnswer, ReadTextRequest, ScoresAnswer, WorkProgress } from "../../generated/api";
import type { Model } from "../../types";

export type SiteKind = AttentionSite["kind"];

export const ONE = 65535;

export interface Side {
  /** "" for the first side, "b_" for the one beside it: what its parameters begin with. */
  prefix: string;
  name: string;
  model: Model | null;
  /** With which encoding, where that is of interest: beside another one. */
  encoding: EncodingInfo | null;
  capture: Reported<ReadTextAnswer>;
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
  /** No head was asked for, and one worth seeing is being looked for. */
  seeking: Reported<AtlasAnswer> | null;
  set: (changes: Partial<Record<"model" | "kind" | "layer" | "head" | "query", string | number | null>>) => void;
}

/** What is being read or measured, by what was asked: how far it is, and how it is stopped. */
interface Going extends WorkProgress {
  stop: () => void;
}
const going = signal<Record<string, Going>>({});

/** Work that reports on its way, and that the reader may stop. `outer`: it also ends with whoever asked. */
function reported<T>(key: string, method: "GET" | "POST", path: string, body: unknown, outer?: AbortSignal): Promise<T> {
  const controller = new AbortController();
  const stop = () => controller.abort();
  outer?.addEventListener("abort", stop);
  const progress = (now: WorkProgress) => (going.value = { ...going.peek(), [key]: { ...now, stop } });
  progress({ share: 0, doing: "" });
  return resultOf<T>(method, path, body, controller.signal, progress).finally(() => {
    outer?.removeEventListener("abort", stop);
    const { [key]: _, ...rest } = going.peek();
    going.value = rest;
  });
}

/** An answer with how far it is. */
export interface Reported<T> extends Answer<T> {
  going: Going | null;
}

// The same text and model is read once, whichever side asks. A few stay; the server keeps a few as well.
const captures = new Map<string, Promise<ReadTextAnswer>>();

function capture(body: ReadTextRequest, signal: AbortSignal): Promise<ReadTextAnswer> {
  const key = JSON.stringify(body);
  let found = captures.get(key);
  if (!found) {
    // Another encoding is asked for by one side alone, so it may be stopped: a slider asks for many on its way.
    found = reported<ReadTextAnswer>(key, "POST", "/attention/events", body, body.position ? signal : undefined);
    captures.set(key, found);
    found.catch(() => captures.delete(key));
    for (const old of captures.keys()) {
      if (captures.size <= 4) break;
      captures.delete(old);
    }
  }
  return found;
}

export interface SideOptions {
  /** Says its encoding: another one stands beside it. */
  named?: boolean;
  /** The encoding to be put into the first side's model. */
  asked?: EncodingInfo;
}

/** The text as a side's model reads it; or, where the address names one, an answer of a conversation. */
function useCapture(model: Model | null, text: string, source: string, asked: EncodingInfo | undefined): Reported<ReadTextAnswer> {
  const { conversation, turn } = route.value.params;
  const body: ReadTextRequest | null =
    model && (conversation || text.trim())
      ? {
          model: model.name,
          ...(conversation ? { answer: { conversation, turn: read(turn, 0) } } : { text }),
          ...(model.kind === "encoder-decoder" ? { source } : {}),
          ...(asked?.name ? { position: { name: asked.name, values: asked.values } } : {}),
        }
      : null;
  const key = body && JSON.stringify(body);
  const answer = useAnswer(
    key,
    (signal) => (body ? capture(body, signal) : Promise.reject(new Error("no model"))),
    asked ? 250 : 0,
  );
  const retry = () => {
    captures.clear();
    answer.retry();
  };
  return { ...answer, retry, going: (key && going.value[key]) || null };
}

export function useSide(
  prefix: string,
  text: string,
  source: string,
  { named = false, asked }: SideOptions = {},
): Side {
  const params = route.value.params;
  // The same model reads the same tokens with another encoding: then the model and the query are one for both sides.
  const key = (name: string) => (asked && (name === "model" || name === "query") ? name : prefix + name);
  const param = <T extends string | number>(name: string, fallback: T): T =>
    read(params[key(name)] ?? (prefix ? params[name] : undefined), fallback);
  const name = param("model", "");
  const model = useModel(name);
  const answer = useCapture(model, text, source, asked);
  const data = answer.data;
  const settled = answer.since === null && !answer.trouble;
  const sought = useSought(!prefix && !params["compare"] && !SEEN.some((one) => params[one] !== undefined), data, settled);
  const kinds = [...new Set(data?.sites.map((site) => site.kind) ?? [])];
  const wanted = param("kind", "self") as SiteKind;
  const kind = kinds.includes(wanted) ? wanted : (kinds[0] ?? "self");
  const sites = data?.sites.filter((site) => site.kind === kind) ?? [];
  const layers = sites.map((site) => site.layer);
  const layer = clamp(param("layer", sought.head?.layer ?? 0), 0, (layers.at(-1) ?? 0) || 0);
  const heads = sites.find((site) => site.layer === layer)?.heads ?? 1;
  const queries = (kind === "encoder" ? data?.source_tokens : data?.tokens) ?? data?.tokens ?? [];
  const keys = (kind === "self" ? data?.tokens : data?.source_tokens) ?? data?.tokens ?? [];
  const head = clamp(param("head", sought.head?.head ?? 0), 0, heads - 1);
  const query = clamp(param("query", queries.length - 1), 0, Math.max(0, queries.length - 1));
  return {
    prefix,
    name,
    model,
    encoding: (named || (asked && settled) ? data?.position : asked) ?? asked ?? null,
    capture: answer,
    kind,
    kinds,
    layer,
    layers,
    head,
    seeking: sought.seeking,
    heads,
    queries,
    keys,
    query,
    chosen: params[key("query")] === undefined ? null : query,
    set: (changes) => {
      // A head that was found stays when something else is changed.
      const here = sought.head && !("model" in changes) ? { layer, head } : {};
      put(Object.fromEntries(Object.entries({ ...here, ...changes }).map(([name, value]) => [key(name), value])));
    },
  };
}

const SEEN = ["layer", "head", "kind"];
const MEASURED = 256; // tokens: what the atlas reads of a text; a longer one takes too long to be asked unasked

/** The clearest head of a kind, where nobody asked for one: `find` in the address, or an induction head. */
function useSought(wanted: boolean, data: ReadTextAnswer | null, settled: boolean): { head: HeadEntry | null; seeking: Reported<AtlasAnswer> | null } {
  const fits = wanted && data !== null && data.length > 1 && data.length <= MEASURED;
  const key = `${data?.id} sought`;
  const atlas = useAnswer(fits && settled ? `/attention/${data.id}/atlas/events` : null, (signal) =>
    reported<AtlasAnswer>(key, "GET", `/attention/${data?.id}/atlas/events`, undefined, signal),
  );
  const kind = route.value.params["find"] ?? "induction";
  return {
    head: fits && atlas.data ? clearest(atlas.data.heads, kind) : null,
    seeking: fits && !atlas.data && !atlas.trouble ? { ...atlas, going: going.value[key] ?? null } : null,
  };
}

/** The head with the largest share of a kind; where no head has one, of the text's own kinds. */
export function clearest(heads: HeadEntry[], kind: string): HeadEntry | null {
  const own = heads.filter((head) => head.kind === "self");
  const by = (name: string) => [...own].sort((a, b) => (b.shares[name] ?? 0) - (a.shares[name] ?? 0))[0] ?? null;
  const best = by(kind);
  return best && (best.shares[kind] ?? 0) > 0 ? best : by("previous");
}

/** What is seen, in words. */
export function title(side: Side): string {
  const where = `${side.kind} attention, layer ${side.layer}, head ${side.head}`;
  return side.encoding ? `${where}, ${spoken(side.encoding)}` : where;
}

/** The same, brief: the kind of attention only where there are several. */
export const heading = (side: Side): string =>
  side.kinds.length > 1 ? title(side) : title(side).replace(`${side.kind} attention, layer`, "layer");

/** A file's name, with the encoding where that is of interest. */
export const file = (side: Side, ...parts: (string | number)[]): string =>
  [...parts, ...(side.encoding ? [slug(side.encoding)] : [])].join("-");

/** A table with the encoding in a last column, where that is of interest: two of them can then be put into one. */
export const encoded = <T>(side: Side, rows: (T | string)[][]): (T | string)[][] => {
  const { encoding } = side;
  return encoding ? rows.map((row, at) => [...row, at ? spoken(encoding) : "encoding"]) : rows;
};

const clamp = (value: number, low: number, high: number): number => Math.min(high, Math.max(low, Math.round(value)));

/** Whose answer it is: a question about a capture the server has given up is put again with a fresh capture. */
function useOf<T>(
  side: Side,
  path: string | null,
  ask: (path: string, signal: AbortSignal) => Promise<T>,
  wait = 0,
): Answer<T> {
  const id = side.capture.data?.id;
  const whole = id && path !== null && side.capture.since === null ? `/attention/${id}/${path}` : null;
  const answer = useAnswer(whole, (signal) => ask(whole ?? "", signal), wait);
  return { ...answer, retry: answer.trouble?.status === 404 ? side.capture.retry : answer.retry };
}

const LARGE = 1000; // tokens: over so many a picture has less than a pixel for each cell, and half as many show the same
const STILL = 150; // milliseconds without another head, after which all of a large one is worth bringing

interface Placed {
  path: string | null;
  matrix: Matrix;
}

/**
 * A head's weights. With `quick`, those of a large one come at half their size at first: a quarter of the bytes and of
 * the drawing, so that a picture follows a slider.
 */
export function useHead(side: Side, quick: boolean): Answer<Matrix> {
  const [rows, columns] = [side.queries.length, side.keys.length];
  const large = quick && Math.min(rows, columns) > LARGE;
  const path = `head?kind=${side.kind}&layer=${side.layer}&head=${side.head}`;
  const ask = async (whole: string, signal: AbortSignal): Promise<Placed> => {
    const { buffer, headers } = await bytes(whole, { signal, seconds: 60 });
    return { path, matrix: weights(buffer, Number(headers.get("X-Queries")), Number(headers.get("X-Keys"))) };
  };
  const half = useOf(side, large ? `${path}&half=true` : null, ask);
  const all = useOf(side, path, ask, large ? STILL : 0);
  const small = half.data?.path === path ? half.data.matrix : undefined;
  const come = useMemo(() => {
    if (all.data?.path === path) return small ? { ...all.data.matrix, half: small } : all.data.matrix;
    return small ? halved(rows, columns, small) : null;
  }, [small, all.data, path, rows, columns]);
  const last = useRef<Matrix | null>(null); // stays on the page, undisturbed, until something of the next one comes
  if (come) last.current = come;
  return { ...all, data: all.data || come ? last.current : null, trouble: all.trouble ?? half.trouble };
}

/** Every head of a layer, small: each cell the largest weight in it, 255 for one, on a scale of square roots. */
export async function smallHeads(path: string, signal: AbortSignal): Promise<Matrix[]> {
  const { buffer, headers } = await bytes(path, { signal, seconds: 60 });
  const size = Number(headers.get("X-Size"));
  const cells = size * size;
  return Array.from({ length: Number(headers.get("X-Heads")) }, (_, head) => ({
    rows: size,
    columns: size,
    values: new Uint8Array(buffer, head * cells, cells),
  }));
}

export const useSmall = (side: Side): Answer<Matrix[]> => useOf(side, `heads?kind=${side.kind}&layer=${side.layer}`, smallHeads);

export function useAtlas(side: Side, wanted = true): Reported<AtlasAnswer> {
  const key = `${side.capture.data?.id} atlas`;
  const answer = useOf(side, wanted ? "atlas/events" : null, (path, signal) => reported<AtlasAnswer>(key, "GET", path, undefined, signal));
  return { ...answer, going: going.value[key] ?? null };
}

export function useScores(side: Side): Answer<ScoresAnswer> {
  const path = side.queries.length
    ? `scores?kind=${side.kind}&layer=${side.layer}&head=${side.head}&query=${side.query}`
    : null;
  return useOf(side, path, (whole, signal) => get<ScoresAnswer>(whole, { signal, seconds: 60 }));
}
