// What a head does, in a sentence: its kind from the atlas, and the clearest case of it in the picture.
import { Term } from "../../components/Term";
import type { HeadEntry } from "../../generated/api";
import type { Matrix } from "../../lib/matrix";
import { percent } from "../../lib/numbers";
import { visible } from "../../lib/tokens";
import { ONE, type Side, useAtlas } from "./side";

const MEASURED = 256; // tokens that the atlas reads: for a longer text it is asked for on its own page

/** What the atlas says of the head that is shown; null for long texts, and until it is known. */
export function useHeadEntry(side: Side): HeadEntry | null {
  const brief = side.kind !== "cross" && side.queries.length > 1 && side.queries.length <= MEASURED;
  const atlas = useAtlas(side, brief);
  return atlas.data?.heads.find((one) => one.kind === side.kind && one.layer === side.layer && one.head === side.head) ?? null;
}

export function HeadWords({ head, side, matrix }: { head: HeadEntry; side: Side; matrix: Matrix }) {
  const share = head.shares[head.label];
  return (
    <p class="small att-words">
      <strong class="numeric">
        {head.layer}·{head.head}
      </strong>{" "}
      <Term name={head.label}>{NAMES[head.label] ?? head.label}</Term>
      {share !== null && share !== undefined && `, ${percent(share)} of its weight on average`}.{" "}
      {example(head.label, matrix, side.queries)}
    </p>
  );
}

const NAMES: Record<string, string> = { first: "sink", previous: "previous token", same: "same token", itself: "the token itself", mixed: "no clear kind" };

interface Pair {
  query: number;
  key: number;
  since: number;
}

const weightOf = (matrix: Matrix, query: number, key: number): number => (matrix.values[query * matrix.columns + key] ?? 0) / ONE;

/** The pair of tokens that shows best what a head of this kind does; null where its kind is not one of pairs. */
export function clearest(label: string, matrix: Matrix, tokens: string[]): Pair | null {
  const weight = ({ query, key }: Pair) => weightOf(matrix, query, key);
  return candidates(label, tokens).reduce<Pair | null>((top, pair) => (top === null || weight(pair) > weight(top) ? pair : top), null);
}

/** The query that is worth showing before the reader has chosen one: of heads whose other lines hide what they do. */
export function suggestedQuery(label: string, matrix: Matrix, tokens: string[]): number | null {
  return label === "induction" || label === "same" ? (clearest(label, matrix, tokens)?.query ?? null) : null;
}

/** What a head does, by its clearest case in the picture, with the weight that is there. */
export function example(label: string, matrix: Matrix, tokens: string[]): string {
  const name = (index: number) => `“${visible(tokens[index] ?? "")}”`;
  const best = clearest(label, matrix, tokens);
  if (!best) {
    const { key, share } = mostAttended(matrix);
    return `On average ${percent(share)} of its weight is on ${name(key)} (${key}), more than on any other token.`;
  }
  const much = percent(weightOf(matrix, best.query, best.key));
  const at = `At ${name(best.query)} (${best.query})`;
  if (label === "induction") return `${at} it attends to what followed the previous ${name(best.since)}: ${name(best.key)}, ${much}.`;
  if (label === "previous") return `${at} it attends to ${name(best.key)} before it, ${much}.`;
  if (label === "first") return `${at} ${much} of the weight is on the first token.`;
  if (label === "itself") return `${at} ${much} of the weight is on that token itself.`;
  return `${at} it attends to the earlier ${name(best.key)}, ${much}.`;
}

/** The key with the largest weight, in the mean over all queries. */
function mostAttended(matrix: Matrix): { key: number; share: number } {
  const sums = new Float64Array(matrix.columns);
  matrix.values.forEach((value, at) => (sums[at % matrix.columns]! += value / ONE));
  const shares = Array.from(sums, (sum) => sum / matrix.rows);
  const key = shares.indexOf(Math.max(...shares));
  return { key, share: shares[key] ?? 0 };
}

function candidates(label: string, tokens: string[]): Pair[] {
  const pairs: Pair[] = [];
  const seen = new Map<string, number>();
  tokens.forEach((token, query) => {
    const since = seen.get(token);
    if (label === "previous" && query > 0) pairs.push({ query, key: query - 1, since: query - 1 });
    if (label === "first" && query > 0) pairs.push({ query, key: 0, since: 0 });
    if (label === "itself" && query > 0) pairs.push({ query, key: query, since: query });
    if (label === "induction" && since !== undefined && since + 1 < query) pairs.push({ query, key: since + 1, since });
    if (label === "same" && since !== undefined) pairs.push({ query, key: since, since });
    seen.set(token, query);
  });
  return pairs;
}
