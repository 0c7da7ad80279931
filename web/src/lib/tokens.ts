// Tokens as text: what can be seen of them, and which of them a piece of text is made of. Pure.
import type { TokenWeight } from "../generated/api";

/** A token as it can be read: white space and line breaks get signs, an empty one says so. */
export function visible(token: string): string {
  if (token === "") return "∅";
  return token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ /, "·").replace(/ /g, "·");
}

/** The tokens from `from` on whose text together is (or holds) `text`: [first, last + 1], or null where it is not. */
export function locate(tokens: string[], text: string, from: number): [number, number] | null {
  const wanted = text.trim();
  if (!wanted) return null;
  let joined = "";
  const starts: number[] = [];
  for (let index = from; index < tokens.length; index += 1) {
    starts.push(joined.length);
    joined += tokens[index] ?? "";
  }
  const at = joined.lastIndexOf(wanted);
  if (at < 0) return null;
  const end = at + wanted.length;
  let first = -1;
  let last = -1;
  starts.forEach((start, index) => {
    const stop = starts[index + 1] ?? joined.length;
    if (first < 0 && stop > at) first = index;
    if (start < end) last = index;
  });
  return first < 0 ? null : [from + first, from + last + 1];
}

/** How strong each token is tinted, 0 to 1. The first token often takes most of the weight and says little: it does not set the scale. */
export function tints(attention: TokenWeight[]): Map<number, number> {
  const rest = attention.filter((entry) => entry.key !== 0);
  const top =
    Math.max(0, ...rest.map((entry) => entry.weight)) || Math.max(0, ...attention.map((entry) => entry.weight));
  const found = new Map<number, number>();
  if (top > 0) for (const { key, weight } of attention) found.set(key, Math.sqrt(Math.min(1, weight / top)));
  return found;
}
