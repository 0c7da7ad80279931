// A finished report in a frame of its own. It is fetched with the page's token, and shown where no script can run.
import { useEffect, useState } from "preact/hooks";
import { bytes, type Trouble } from "../../api";
import { Button } from "../../components/controls";
import { Busy, Card, Problem } from "../../components/state";
import { asTrouble, useAnswer } from "../../hooks";
import { save } from "../../lib/download";

const FILES: [string, string, string][] = [
  ["scores.csv", "text/csv", "scores.csv"],
  ["verdicts.csv", "text/csv", "verdicts.csv"],
  ["report.json", "application/json", "report.json"],
  ["", "text/html", "report.html"],
];

/** In the frame, links to the files beside the report lead nowhere: their names stay, the buttons here bring them. */
export const framed = (html: string): string => html.replace(/<a href="(?!https?:|#)[^"]*">([^<]*)<\/a>/g, "<code>$1</code>");

export function Report({ name }: { name: string }) {
  const path = `/reports/${encodeURIComponent(name)}/`;
  const answer = useAnswer(path, async (signal) => new TextDecoder().decode((await bytes(path, { signal })).buffer));
  const [address, setAddress] = useState<string | null>(null);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  useEffect(() => {
    if (answer.data === null) return;
    const made = URL.createObjectURL(new Blob([framed(answer.data)], { type: "text/html;charset=utf-8" }));
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [answer.data]);
  const bring = (file: string, type: string, as: string) => {
    setTrouble(null);
    bytes(path + file).then(
      ({ buffer }) => save(`${name}-${as}`, new Blob([buffer], { type })),
      (error: unknown) => setTrouble(asTrouble(error)),
    );
  };
  return (
    <Card
      title="Report"
      beside={
        <div class="row" role="group" aria-label="Download the report">
          {FILES.map(([file, type, as]) => (
            <Button key={as} little look="quiet" label={`Download ${as}`} onClick={() => bring(file, type, as)}>
              {as}
            </Button>
          ))}
        </div>
      }
    >
      {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
      {trouble && <Problem trouble={trouble} />}
      {answer.since !== null && !address && <Busy words="Opening the report" since={answer.since} />}
      {address && <iframe class="cmp-report" src={address} sandbox="" title="Report of the comparison" />}
    </Card>
  );
}
