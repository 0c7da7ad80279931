// An encoding as a page speaks of it: in a heading, in a file's name. Pure.
import type { EncodingInfo } from "../generated/api";
import type { Value } from "../types";
import { show } from "./numbers";

const shown = (value: Value): string => (typeof value === "number" ? show(value) : value);

/** "base 500, pairing halves" */
export const valuesText = (values: Record<string, Value>): string =>
  Object.entries(values)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${shown(value)}`)
    .join(", ");

/** "its own (RoPE)", or for another one "RoPE, base 500": what is not said is as it comes. */
export function spoken(encoding: EncodingInfo): string {
  if (!encoding.swapped) return `its own (${encoding.title})`;
  return [encoding.title, valuesText(encoding.values)].filter(Boolean).join(", ");
}

/** For the name of a file: "own-rope", "rope-base-500". */
export function slug(encoding: EncodingInfo): string {
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
