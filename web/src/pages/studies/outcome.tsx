// What a study found: the verdict, the numbers beside the document's, the figures.
import { Button } from "../../components/controls";
import { Code } from "../../components/Code";
import { Figures } from "../../components/Figure";
import { Card } from "../../components/state";
import { csv } from "../../lib/csv";
import { save } from "../../lib/download";
import { duration, show } from "../../lib/numbers";
import type { Value } from "../../types";
import type { Number as Finding, StudyResult } from "../../generated/api";
import { VERDICTS } from "./results";

export const written = (value: Value | null): string => (typeof value === "number" ? show(value) : (value ?? "–"));

export function Outcome({ tag, result }: { tag: string; result: StudyResult }) {
  const [look, word] = VERDICTS[result.verdict];
  return (
    <>
      <Card title="Result" beside={<span class={`${look} stu-verdict`}>{word}</span>}>
        <p class="stu-words" role="status">
          {result.words}
        </p>
        <Numbers tag={tag} numbers={result.numbers} />
        <p class="small muted">Computed in {duration(result.seconds * 1000)}.</p>
        <Code label="The same in a terminal" text={result.command} />
      </Card>
      {result.figures.length > 0 && (
        <Card title="Figures">
          <Figures figures={result.figures} />
        </Card>
      )}
    </>
  );
}

function Numbers({ tag, numbers }: { tag: string; numbers: Finding[] }) {
  const table = () =>
    csv([["what", "ours", "low", "high", "document", "agrees"], ...numbers.map((n) => [n.what, n.ours, n.interval?.[0], n.interval?.[1], n.document, n.agrees === null ? "" : n.agrees ? "yes" : "no"])]);
  return (
    <div class="stack">
      <div class="scroll" tabIndex={0} role="region" aria-label="Numbers">
        <table class="stu-numbers">
          <caption class="hidden">What was found, beside what the document says</caption>
          <thead>
            <tr>
              <th scope="col">What</th>
              <th scope="col" class="number">
                Ours
              </th>
              <th scope="col" class="number">
                Document
              </th>
              <th scope="col">Agree</th>
            </tr>
          </thead>
          <tbody>
            {numbers.map((one, index) => (
              <tr key={index}>
                <td class="stu-what">{one.what}</td>
                <td class="number">
                  {written(one.ours)}
                  {one.interval && (
                    <span class="muted stu-interval">
                      [{written(one.interval[0])}, {written(one.interval[1])}]
                    </span>
                  )}
                </td>
                <td class="number">{one.document === null ? "" : written(one.document)}</td>
                <td>{one.agrees === null ? "" : <span class={one.agrees ? "tag good" : "tag bad"}>{one.agrees ? "yes" : "no"}</span>}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <div class="row downloads">
        <Button little look="quiet" label={`Download ${tag}-numbers as CSV`} onClick={() => save(`${tag}-numbers.csv`, table(), "text/csv")}>
          CSV
        </Button>
      </div>
    </div>
  );
}
