// Every position encoding in a sentence.
import { get } from "../api";
import { Busy, Card, Problem } from "../components/state";
import type { GlossaryAnswer } from "../generated/api";
import { useAnswer } from "../hooks";

export default function Glossary() {
  const answer = useAnswer("glossary", (signal) => get<GlossaryAnswer>("/glossary", { signal }));
  return (
    <Card title="Glossary">
      {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
      {answer.since !== null && <Busy words="Reading" since={answer.since} />}
      <dl>
        {answer.data?.entries.map(({ name, words }) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{words}</dd>
          </div>
        ))}
      </dl>
    </Card>
  );
}
