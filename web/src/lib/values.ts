// Values of parameters as they stand in the address: only those that are not as they come. Pure.
import type { Parameter, Value } from "../types";

type Params = Record<string, string>;

const key = (prefix: string, name: string): string => `${prefix}.${name}`;

/** What the address says about these parameters. What cannot be read counts as not said. */
export function valuesIn(parameters: Parameter[], params: Params, prefix = "p"): Record<string, Value> {
  const found: Record<string, Value> = {};
  for (const parameter of parameters) {
    const text = params[key(prefix, parameter.name)];
    if (text === undefined) continue;
    if (typeof parameter.default === "string") found[parameter.name] = text;
    else if (text.trim() !== "" && Number.isFinite(Number(text))) found[parameter.name] = Number(text);
  }
  return found;
}

/** The changes to the address that make it say these values; a value as it comes is taken out. */
export function valuesPatch(
  parameters: Parameter[],
  values: Record<string, Value>,
  prefix = "p",
): Record<string, Value | null> {
  const patch: Record<string, Value | null> = {};
  for (const { name, default: plain } of parameters) {
    const value = values[name];
    patch[key(prefix, name)] = value === undefined || value === plain ? null : value;
  }
  return patch;
}

/** The changes that take every such value out of the address. */
export function valuesGone(params: Params, prefix = "p"): Record<string, null> {
  const names = Object.keys(params).filter((name) => name.startsWith(`${prefix}.`));
  return Object.fromEntries(names.map((name) => [name, null]));
}

/** Words or numbers in a list, as in `rope,alibi`. */
export const listed = (text: string): string[] =>
  text
    .split(",")
    .map((part) => part.trim())
    .filter(Boolean);

/** Three figures that count, or whole. For what a slider over many sizes gives. */
export function rounded(value: number, whole: boolean): number {
  if (whole && value < 1000) return Math.round(value);
  return Number(value.toPrecision(3));
}
