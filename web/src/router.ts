// Where the reader is, held in the hash: `#/attention?layer=3&head=1`. Every state that can be linked stands there.
import { signal } from "@preact/signals";

export type Scalar = string | number | boolean;
export type Params = Record<string, string>;

export interface Route {
  page: string;
  params: Params;
}

export const HOME = "chat";

export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const params: Params = {};
  for (const [name, value] of new URLSearchParams(query)) params[name] = value;
  return { page: path.replace(/\/+$/, "") || HOME, params };
}

export function href(page: string, params: Record<string, Scalar | null | undefined> = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return `#/${page}${text ? `?${text}` : ""}`;
}

const here = typeof location === "undefined" ? "" : location.hash;
export const route = signal<Route>(parse(here));

// The parameters each page had when it was left, so that coming back finds it as it was.
const left = new Map<string, Params>();

export function lastHref(page: string): string {
  return href(page, left.get(page) ?? {});
}

function show(next: Route, how: "push" | "replace"): void {
  left.set(next.page, next.params);
  const address = href(next.page, next.params);
  if (how === "push") history.pushState(null, "", address);
  else history.replaceState(null, "", address);
  route.value = next;
}

/** Go to a page, as a link would: the way back leads here. */
export function go(page: string, params: Record<string, Scalar | null | undefined> = {}): void {
  show(parse(href(page, params)), "push");
}

/** Change some parameters of the page one is on; null takes one away. Leaves no step in the history. */
export function put(changes: Record<string, Scalar | null | undefined>): void {
  const { page, params } = route.peek();
  show(parse(href(page, { ...params, ...changes })), "replace");
}

export function listen(): void {
  left.set(route.value.page, route.value.params);
  addEventListener("hashchange", () => {
    route.value = parse(location.hash);
    left.set(route.value.page, route.value.params);
  });
  addEventListener("popstate", () => {
    route.value = parse(location.hash);
  });
}

/** The text of a parameter as the type of its fallback. What cannot be read is the fallback. */
export function read<T extends Scalar>(text: string | undefined, fallback: T): T {
  if (text === undefined) return fallback;
  if (typeof fallback === "number") {
    const value = Number(text);
    return (text.trim() !== "" && Number.isFinite(value) ? value : fallback) as T;
  }
  if (typeof fallback === "boolean") return (text === "true") as T;
  return text as T;
}

type Wide<T extends Scalar> = T extends number
  ? number
  : T extends boolean
    ? boolean
    : T extends string
      ? string
      : never;

/** One parameter of this page, and how to set it. At its fallback it does not stand in the address. */
export function useParam<T extends Scalar>(name: string, fallback: T): [Wide<T>, (value: Wide<T>) => void] {
  const value = read(route.value.params[name], fallback) as unknown as Wide<T>;
  return [value, (next) => put({ [name]: (next as Scalar) === fallback ? null : (next as Scalar) })];
}
