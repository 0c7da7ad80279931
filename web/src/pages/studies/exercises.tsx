// The exercises: a task, an editor, and a grader that says what is wrong. The code stays in this browser.
import { useEffect, useState } from "preact/hooks";
import { get, post, Trouble } from "../../api";
import { Code } from "../../components/Code";
import { Button } from "../../components/controls";
import { Prose } from "../../components/Prose";
import { Busy, Card, Problem } from "../../components/state";
import { useAnswer } from "../../hooks";
import { href, useParam } from "../../router";
import { Editor } from "./editor";
import type { ExerciseAnswer, ExerciseEntry, GradeAnswer } from "../../generated/api";
import { GROUPS } from "./results";
import { type SavedCode, saveCode, savedCode } from "./storage";

export function Exercises() {
  const [tag] = useParam("exercise", "");
  const answer = useAnswer("exercises", (signal) => get<ExerciseEntry[]>("/exercises", { signal, seconds: 60 }));
  const list = answer.data;
  const chosen = list?.find((one) => one.tag.toLowerCase() === tag.toLowerCase());
  return (
    <>
      {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
      {answer.since !== null && !list && <Busy words="Loading the exercises" since={answer.since} />}
      {list && tag && !chosen && <Problem trouble={new Trouble("refused", `There is no exercise ${tag}.`, "Choose one from the list.")} />}
      {list && !chosen && <List exercises={list} />}
      {list && chosen && <One key={chosen.tag} exercises={list} exercise={chosen} />}
    </>
  );
}

const link = (tag: string): string => href("studies", { view: "exercises", exercise: tag });

function List({ exercises }: { exercises: ExerciseEntry[] }) {
  return (
    <div class="stack wide">
      {GROUPS.map(([letter, name]) => {
        const group = exercises.filter((one) => one.tag.startsWith(letter));
        if (!group.length) return null;
        return (
          <section key={letter} class="stack" aria-label={name}>
            <h2>{name}</h2>
            <ul class="stu-list">
              {group.map((one) => {
                const mine = savedCode(one.tag);
                return (
                  <li key={one.tag}>
                    <a class="card stu-entry" href={link(one.tag)}>
                      <span class="row apart">
                        <span class="stu-tag">{one.tag}</span>
                        {mine.passed ? <span class="tag good">solved</span> : mine.tried && <span class="tag warn">tried</span>}
                      </span>
                      <span class="stu-title">{one.title}</span>
                      <span class="small muted stu-says">{one.task}</span>
                    </a>
                  </li>
                );
              })}
            </ul>
          </section>
        );
      })}
    </div>
  );
}

function One({ exercises, exercise }: { exercises: ExerciseEntry[]; exercise: ExerciseEntry }) {
  const at = exercises.indexOf(exercise);
  const [before, after] = [exercises[at - 1], exercises[at + 1]];
  const study = exercise.tag.split("-")[0] ?? exercise.tag;
  return (
    <article class="stack wide">
      <nav class="row apart small" aria-label="Exercises before and after">
        <span>{before && <a href={link(before.tag)}>← {before.tag} {before.title}</a>}</span>
        <a href={href("studies", { view: "exercises" })}>All exercises</a>
        <span>{after && <a href={link(after.tag)}>{after.tag} {after.title} →</a>}</span>
      </nav>
      <div>
        <p class="small">
          <span class="stu-tag">{exercise.tag}</span>
        </p>
        <h2 class="stu-name">{exercise.title}</h2>
      </div>
      <div class="grid two">
        <Card title="Task" beside={<a class="small" href={href("studies", { study })}>Study {study}</a>}>
          <Prose text={exercise.task} label="Matrices and maps" />
        </Card>
        <Work exercise={exercise} />
      </div>
    </article>
  );
}

function Work({ exercise }: { exercise: ExerciseEntry }) {
  const [mine, setMine] = useState<SavedCode>(() => savedCode(exercise.tag));
  const [asked, setAsked] = useState<{ code: string; turn: number } | null>(null);
  const [answerShown, setAnswerShown] = useState(false);
  const code = mine.code ?? exercise.starter;
  const change = (changes: Partial<SavedCode>) =>
    setMine((old) => {
      const next = { ...old, ...changes };
      saveCode(exercise.tag, next);
      return next;
    });
  const grade = useAnswer(asked && `${exercise.tag} ${asked.turn}`, (signal) =>
    post<GradeAnswer>(`/exercises/${encodeURIComponent(exercise.tag)}/grade`, { code: asked?.code }, { signal, seconds: 120 }),
  );
  const found = grade.since === null ? grade.data : null;
  useEffect(() => {
    if (found) change({ tried: true, passed: mine.passed || found.passed });
  }, [found]);
  const hand = () => setAsked((old) => ({ code, turn: (old?.turn ?? 0) + 1 }));
  return (
    <Card title="Your answer" beside={mine.passed ? <span class="tag good">solved</span> : null}>
      <Editor label={`Python for ${exercise.tag}`} value={code} onChange={(next) => change({ code: next })} onSubmit={hand} />
      <div class="row">
        <Button look="main" disabled={grade.since !== null} onClick={hand}>
          Grade
        </Button>
        {code !== exercise.starter && (
          <Button look="quiet" onClick={() => change({ code: null })}>
            Start over
          </Button>
        )}
        {mine.tried && (
          <Button look="quiet" pressed={answerShown} onClick={() => setAnswerShown(!answerShown)}>
            {answerShown ? "Hide the answer" : "Show the answer"}
          </Button>
        )}
        {grade.since !== null && <Busy words="Grading" since={grade.since} />}
      </div>
      {grade.trouble && <Problem trouble={grade.trouble} retry={grade.retry} />}
      {found && <Checks grade={found} />}
      {answerShown && <Answer tag={exercise.tag} />}
    </Card>
  );
}

function Checks({ grade }: { grade: GradeAnswer }) {
  const good = grade.checks.filter((check) => check.passed).length;
  return (
    <div class="stack" role="status">
      <p>
        <span class={grade.passed ? "tag good" : "tag warn"}>{grade.passed ? "Correct" : "Not yet"}</span> {good} of {grade.checks.length} checks passed.
      </p>
      <ul class="stu-checks">
        {grade.checks.map((check) => (
          <li key={check.name}>
            <span class={check.passed ? "tag good" : "tag bad"}>{check.passed ? "passed" : "not yet"}</span>
            <span>
              <b>{check.name}</b>
              {check.words && <Prose text={check.words} />}
            </span>
          </li>
        ))}
      </ul>
      {grade.output && (
        <pre class="scroll code" tabIndex={0} role="region" aria-label="What your code printed">
          {grade.output}
        </pre>
      )}
    </div>
  );
}

function Answer({ tag }: { tag: string }) {
  const answer = useAnswer(tag, (signal) => get<ExerciseAnswer>(`/exercises/${encodeURIComponent(tag)}/answer`, { signal }));
  return (
    <section class="stack" aria-label="Answer">
      {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
      {answer.since !== null && <Busy words="Loading the answer" since={answer.since} />}
      {answer.data && (
        <>
          <Code label="An answer" text={answer.data.code} />
          <Prose text={answer.data.words} />
        </>
      )}
    </section>
  );
}
