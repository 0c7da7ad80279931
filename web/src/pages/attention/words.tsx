// What a head does, in a sentence: its kind from the atlas, and the clearest case of it in the picture.
import { Term } from "../../components/Term";
import type { HeadEntry } from "../../generated/api";
import type { Matrix } from "../../lib/matrix";
import { percent } from "../../lib/numbers";
import { visible } from "../../lib/tokens";
import { ONE, type Side, useAtlas } from "./side";

const MEASURED = 256; // tokens that the atlas reads: for a longer text it is asked for on its own page

export function HeadWords({ side, matrix }: { side: Side; matrix: Matrix }) {
  const brief = side.kind !== "cross" && side.queries.length > 1 && side.queries.length <= MEASURED;
  const atlas = useAtlas(side, brief);
  const head = atlas.data?.heads.find((one) => one.kind === side.kind && one.layer === side.layer && one.head === side.head);
  if (!head) return null;
  const share = head.shares[head.label];
  return (
    <p class="small att-words">
      <strong class="numeric">
        {head.layer}·{head.head}
      </strong>{" "}
      <Term name={head.label}>{NAMES[head.label] ?? head.label}</Term>
      {share !== null && share !== undefined && `, ${percent(share)} of its weight on average`}.{" "}
      {example(head, matrix, side.queries)}
    </p>
  );
}

const NAMES: Record<string, string> = { first: "sink", previous: "previous token", same: "same token" };

interface Pair {
  query: number;
  key: number;
  since: number;
}

/** The pair that shows best what such a head does, with its weight as it is in the picture. */
export function example(head: Pick<HeadEntry, "label">, matrix: Matrix, tokens: string[]): string {
  const weight = ({ query, key }: Pair) => (matrix.values[query * matrix.columns + key] ?? 0) / ONE;
  const name = (index: number) => `“${visible(tokens[index] ?? "")}”`;
  const best = candidates(head.label, tokens).reduce<Pair | null>((top, pair) => (top === null || weight(pair) > weight(top) ? pair : top), null);
  if (!best) return "";
  const much = percent(weight(best));
  if (head.label === "induction") {
    return `At ${name(best.query)} (${best.query}) it attends to what followed the previous ${name(best.since)}: ${name(best.key)}, ${much}.`;
  }
  if (head.label === "previous") return `At ${name(best.query)} (${best.query}) it attends to ${name(best.key)} before it, ${much}.`;
  if (head.label === "first") return `At ${name(best.query)} (${best.query}) ${much} of the weight is on the first token.`;
  return `At ${name(best.query)} (${best.query}) it attends to the earlier ${name(best.key)}, ${much}.`;
}

function candidates(label: string, tokens: string[]): Pair[] {
  const pairs: Pair[] = [];
  const seen = new Map<string, number>();
  tokens.forEach((token, query) => {
    const since = seen.get(token);
    if (label === "previous" && query > 0) pairs.push({ query, key: query - 1, since: query - 1 });
    if (label === "first" && query > 0) pairs.push({ query, key: 0, since: 0 });
    if (label === "induction" && since !== undefined && since + 1 < query) pairs.push({ query, key: since + 1, since });
    if (label === "same" && since !== undefined) pairs.push({ query, key: since, since });
    seen.set(token, query);
  });
  return pairs;
}
