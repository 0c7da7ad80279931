// An encoding as a page speaks of it: in a heading, in a file's name. Pure.
import type { Value } from "../types";
import { show } from "./numbers";

/** The encoding that something was looked at with, as the server says it. */
export interface Said {
  /** Null where a model's own encoding is none of those offered. */
  name: string | null;
  title: string;
  values: Record<string, Value>;
  /** Another one than the model's own. */
  swapped: boolean;
  /** It has weights of its own, and nobody trained them. */
  untrained: boolean;
  /** It is the model's own, put in once more. */
  same: boolean;
}

const said = (value: Value): string => (typeof value === "number" ? show(value) : value);

/** "base 500, pairing halves" */
export const valuesSaid = (values: Record<string, Value>): string =>
  Object.entries(values)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${said(value)}`)
    .join(", ");

/** "its own (RoPE)", or for another one "RoPE, base 500": what is not said is as it comes. */
export function spoken(encoding: Said): string {
  if (!encoding.swapped) return `its own (${encoding.title})`;
  return [encoding.title, valuesSaid(encoding.values)].filter(Boolean).join(", ");
}

/** For the name of a file: "own-rope", "rope-base-500". */
export function slug(encoding: Said): string {
  const words = encoding.swapped
    ? [encoding.name ?? "", ...Object.entries(encoding.values).flat()]
    : ["own", encoding.name ?? encoding.title];
  return words
    .join("-")
    .toLowerCase()
    .replaceAll(/[^a-z0-9.]+/g, "-")
    .replaceAll(/^-+|-+$/g, "")
    .slice(0, 80);
}
