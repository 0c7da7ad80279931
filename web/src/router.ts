// Where the reader is, held in the hash: `#/attention?layer=3&head=1`. Every state that can be linked stands there.
import { signal } from "@preact/signals";

export type Scalar = string | number | boolean;
export type Params = Record<string, string>;

export interface Route {
  page: string;
  params: Params;
}

export const HOME = "chat";

// An address of forty thousand characters is none that anybody can hand on. What is longer than this stays in the
// browser, under a short name that the address has in its place.
const LONGEST = 1500;
const KEPT = 24;
const NAME = /^~[0-9a-z]{6,14}$/;
const PREFIX = "vantage-text";

/** Texts of a link that are not in this browser. */
export const missing = signal<string[]>([]);

function shortName(text: string): string {
  let [a, b] = [0x811c9dc5, 0x1b873593];
  for (let index = 0; index < text.length; index += 1) {
    const code = text.charCodeAt(index);
    a = Math.imul(a ^ code, 0x01000193);
    b = Math.imul(b ^ code, 0x85ebca6b) + index;
  }
  return `~${(a >>> 0).toString(36)}${(b >>> 0).toString(36)}`;
}

function shortened(text: string): string {
  if (text.length <= LONGEST || typeof localStorage === "undefined") return text;
  const name = shortName(text);
  try {
    const order = (JSON.parse(localStorage.getItem(PREFIX) ?? "[]") as string[]).filter((one) => one !== name);
    for (const old of order.splice(KEPT - 1)) localStorage.removeItem(PREFIX + old);
    localStorage.setItem(PREFIX + name, text);
    localStorage.setItem(PREFIX, JSON.stringify([name, ...order]));
    return name;
  } catch {
    return text; // a browser that keeps nothing
  }
}

function restored(name: string): string | null {
  try {
    return localStorage.getItem(PREFIX + name);
  } catch {
    return null;
  }
}

export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const params: Params = {};
  const lost: string[] = [];
  for (const [name, value] of new URLSearchParams(query)) {
    const text = NAME.test(value) ? restored(value) : value;
    if (text === null) lost.push(name);
    else params[name] = text;
  }
  if (lost.length || missing.peek().length) missing.value = lost;
  return { page: path.replace(/\/+$/, "") || HOME, params };
}

export function href(page: string, params: Record<string, Scalar | null | undefined> = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, shortened(String(value)));
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
