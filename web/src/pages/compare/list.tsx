// Every comparison that was started here, the latest first.
import { get } from "../../api";
import { Button } from "../../components/controls";
import { Busy, Card, Empty, Problem } from "../../components/state";
import type { ComparisonEntry } from "../../generated/api";
import { useAnswer } from "../../hooks";
import { href } from "../../router";

const LOOKS: Record<ComparisonEntry["state"], [string, string]> = {
  running: ["tag warn", "running"],
  done: ["tag good", "finished"],
  stopped: ["tag", "stopped"],
  error: ["tag bad", "failed"],
};

export function StateTag({ state }: { state: ComparisonEntry["state"] }) {
  const [look, words] = LOOKS[state];
  return <span class={look}>{words}</span>;
}

export const when = (text: string): string => text.replace("T", " ").slice(0, 16);

export function All() {
  const answer = useAnswer("all", (signal) => get<ComparisonEntry[]>("/compare", { signal }));
  const list = answer.data;
  return (
    <Card
      title="All comparisons"
      beside={
        <Button little onClick={answer.retry}>
          Refresh
        </Button>
      }
    >
      {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
      {answer.since !== null && !list && <Busy words="Loading the list" since={answer.since} />}
      {list && list.length === 0 && <Empty>No comparisons yet. Start one under New comparison.</Empty>}
      {list && list.length > 0 && (
        <ul class="cmp-list">
          {list.map((entry) => (
            <li key={entry.name}>
              <a href={href("compare", { id: entry.name })}>{entry.title}</a>
              <span class="row">
                <StateTag state={entry.state} />
                <span class="small muted numeric">{when(entry.when)}</span>
              </span>
            </li>
          ))}
        </ul>
      )}
    </Card>
  );
}
