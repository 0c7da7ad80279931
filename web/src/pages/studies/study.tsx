// One study, as for a lecture: what the document says, why, what we find, and whether the two agree.
import { useEffect, useRef, useState } from "preact/hooks";
import { Trouble } from "../../api";
import { Button, Parameters } from "../../components/controls";
import { Prose } from "../../components/Prose";
import { Busy, Card, Meter, Problem } from "../../components/state";
import { duration } from "../../lib/numbers";
import { valuesGone, valuesIn, valuesPatch } from "../../lib/values";
import { go, href, put, route, useParam } from "../../router";
import { useStream } from "../../streams";
import { explained } from "../../terms";
import { Outcome } from "./outcome";
import type { StudyEntry, StudyResult, WorkProgress } from "../../generated/api";
import { keep, results } from "./results";

export function StudyView({ studies, tag }: { studies: StudyEntry[]; tag: string }) {
  const at = studies.findIndex((study) => study.tag.toLowerCase() === tag.toLowerCase());
  const study = studies[at];
  if (!study) {
    const trouble = new Trouble("refused", `There is no study ${tag}.`, "Choose one from the list.");
    return (
      <>
        <Problem trouble={trouble} retry={() => go("studies")} />
        <a href={href("studies")}>All studies</a>
      </>
    );
  }
  return (
    <article class="stack wide">
      <Way studies={studies} at={at} />
      <Body study={study} />
      <Way studies={studies} at={at} />
    </article>
  );
}

function Way({ studies, at }: { studies: StudyEntry[]; at: number }) {
  const [before, after] = [studies[at - 1], studies[at + 1]];
  return (
    <nav class="row apart small" aria-label="Studies before and after">
      <span>{before && <a href={href("studies", { study: before.tag })}>← {before.tag} {before.title}</a>}</span>
      <a href={href("studies")}>All studies</a>
      <span>{after && <a href={href("studies", { study: after.tag })}>{after.tag} {after.title} →</a>}</span>
    </nav>
  );
}

function Body({ study }: { study: StudyEntry }) {
  const values = valuesIn(study.parameters, route.value.params);
  const [ran] = useParam("ran", false);
  const stream = useStream();
  const [doing, setDoing] = useState<WorkProgress | null>(null);
  const result = results.value[study.tag] ?? null;
  const run = () => {
    setDoing(null);
    put({ ran: true });
    stream.run(
      "POST",
      `/studies/${encodeURIComponent(study.tag)}`,
      { values },
      ({ event, data }) => {
        if (event === "progress") setDoing(data as WorkProgress);
        if (event === "result") keep(study.tag, data as StudyResult);
      },
      120,
    );
  };
  // A link to a result that takes no time shows it; a long one waits for its button.
  const opened = useRef(false);
  useEffect(() => {
    if (opened.current) return;
    opened.current = true;
    if (ran && !result && !study.trains && study.seconds <= 5) run();
  }, []);
  const running = stream.since !== null;
  const changed = result !== null && study.parameters.some(({ name, default: plain }) => String(values[name] ?? plain) !== String(result.values[name]));
  return (
    <>
      <div>
        <p class="row small">
          <span class="stu-tag">{study.tag}</span>
          {study.sources.map((source) => (
            <span class="tag" key={source} title={explained(source)}>
              {source}
            </span>
          ))}
          {study.trains && <span class="tag warn">trains models</span>}
        </p>
        <h2 class="stu-name">{study.title}</h2>
      </div>
      <div class="grid aside">
        <div class="stack">
          <Card title="The document says">
            <blockquote class="stu-statement">
              <Prose text={study.statement} />
            </blockquote>
          </Card>
          <Card title="Background">
            <Prose text={study.explanation} />
          </Card>
        </div>
        <Card title="Try it">
          {study.parameters.length > 0 ? (
            <Parameters parameters={study.parameters} values={values} onChange={(next) => put(valuesPatch(study.parameters, next))} disabled={running} />
          ) : (
            <p class="small muted">This study has no parameters.</p>
          )}
          <div class="row">
            {running ? (
              <Button onClick={stream.stop}>Stop</Button>
            ) : (
              <Button look="main" onClick={run}>
                {result ? "Run again" : "Run"}
              </Button>
            )}
            {Object.keys(values).length > 0 && !running && (
              <Button look="quiet" onClick={() => put(valuesGone(route.peek().params))}>
                Reset
              </Button>
            )}
            {!running && <span class="small muted">about {duration(study.seconds * 1000)}</span>}
          </div>
          {stream.since !== null && <Busy words={doing?.doing ?? "Starting"} since={stream.since} />}
          {running && <Meter share={doing?.share ?? 0} label="Progress of the study" />}
          {study.needs.length > 0 && <p class="small muted">It needs {study.needs.join(", ")}.</p>}
        </Card>
      </div>
      {stream.trouble && <Problem trouble={stream.trouble} retry={run} />}
      {result && changed && !running && <p class="note small">What stands below was found with other values; press Run again.</p>}
      {result && <Outcome tag={study.tag} result={result} />}
    </>
  );
}
