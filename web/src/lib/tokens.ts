// Tokens as text: what can be seen of them, and which of them a piece of text is made of. Pure.
import type { ImagePlace, TokenWeight } from "../generated/api";

/** A token as it can be read: white space and line breaks get signs, an empty one says so. */
export function visible(token: string): string {
  if (token === "") return "∅";
  return token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ /, "·").replace(/ /g, "·");
}

const BYTES = /(?:⟨[0-9A-F]{2}(?: [0-9A-F]{2})*⟩)+/g;

/** The text of some tokens. A character may lie in several of them, which are then written as its bytes: ⟨F0 9F⟩⟨99 82⟩. */
export const joined = (tokens: string[]): string =>
  tokens.join("").replace(BYTES, (run) => {
    const bytes = (run.match(/[0-9A-F]{2}/g) ?? []).map((byte) => Number.parseInt(byte, 16));
    const text = new TextDecoder().decode(new Uint8Array(bytes));
    return text.includes("\ufffd") ? run : text;
  });

/** Some tokens as text that can be shown: those that are parts of one character stand together. */
export interface Piece {
  from: number;
  to: number;
  text: string;
}

const half = (token: string | undefined): boolean => token?.includes("⟨") ?? false;

export function pieces(tokens: string[], from: number, to: number): Piece[] {
  const found: Piece[] = [];
  for (let index = from; index < to; ) {
    let next = index + 1;
    if (half(tokens[index])) while (next < to && half(tokens[next])) next += 1;
    found.push({ from: index, to: next, text: joined(tokens.slice(index, next)) });
    index = next;
  }
  return found;
}

export interface Chip extends Piece {
  /** Which image's tokens these are, from 1; 0: a token of text. */
  image: number;
}

/** Tokens one by one, but for those of an image, which stand together. */
export function withImages(tokens: string[], places: ImagePlace[]): Chip[] {
  const starts = new Map(places.map(({ start, tokens: count }, at) => [start, { count, image: at + 1 }]));
  const chips: Chip[] = [];
  for (let from = 0; from < tokens.length; ) {
    const { count, image } = starts.get(from) ?? { count: 1, image: 0 };
    const to = Math.min(tokens.length, from + Math.max(1, count));
    chips.push({ from, to, text: image ? "" : (tokens[from] ?? ""), image });
    from = to;
  }
  return chips;
}

/** A token by its name in a sentence: what it says, or whose image it is of. */
export function nameOf(key: number, tokens: string[], places: ImagePlace[]): string {
  const image = places.findIndex(({ start, tokens: count }) => start <= key && key < start + count) + 1;
  if (image) return places.length > 1 ? `image ${image}` : "the image";
  return visible(tokens[key] ?? "?");
}

/** The tokens from `from` on whose text together is (or holds) `text`: [first, last + 1], or null where it is not. */
export function locate(tokens: string[], text: string, from: number): [number, number] | null {
  const wanted = text.trim();
  if (!wanted) return null;
  const all = pieces(tokens, from, tokens.length);
  const at = all.map((piece) => piece.text).join("").lastIndexOf(wanted);
  if (at < 0) return null;
  let start = 0;
  let found: [number, number] | null = null;
  for (const piece of all) {
    const stop = start + piece.text.length;
    if (stop > at && start < at + wanted.length) found = [found?.[0] ?? piece.from, piece.to];
    start = stop;
  }
  return found;
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
