// All studies, in their groups, with a filter.
import { Check, Select, TextField } from "../../components/controls";
import { Empty } from "../../components/state";
import { duration } from "../../lib/numbers";
import { sorted } from "../../lib/sort";
import { href, useParam } from "../../router";
import { TERMS } from "../../terms";
import type { StudyEntry } from "../../generated/api";
import { GROUPS, results, VERDICTS } from "./results";

/** Whether every word stands somewhere in the study. */
export function fits(study: StudyEntry, words: string): boolean {
  const text = [study.tag, study.title, study.statement, study.explanation].join(" ").toLowerCase();
  return words
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

export function StudyList({ studies }: { studies: StudyEntry[] }) {
  const [words, setWords] = useParam("find", "");
  const [source, setSource] = useParam("source", "all");
  const [quick, setQuick] = useParam("quick", false);
  const sources = sorted([...new Set(studies.flatMap((study) => study.sources))], (source) => Number(source.slice(1)));
  const found = studies.filter((study) => fits(study, words) && (source === "all" || study.sources.includes(source)) && (!quick || study.seconds <= 2));
  return (
    <div class="stack wide">
      <div class="stu-filter">
        <TextField label="Find" value={words} onChange={setWords} placeholder="a word or a tag" />
        <Select label="Source" value={source} options={[{ value: "all", label: "all" }, ...sources.map((one) => ({ value: one, label: TERMS[one] ? `${one}: ${TERMS[one]}` : one }))]} onChange={setSource} />
        <Check label="Only quick studies (about two seconds)" value={quick} onChange={setQuick} />
      </div>
      <p class="small muted" role="status">
        {found.length} of {studies.length} studies
      </p>
      {found.length === 0 && <Empty>No study matches. Try fewer words.</Empty>}
      {GROUPS.map(([letter, name]) => {
        const group = found.filter((study) => study.tag.startsWith(letter));
        if (!group.length) return null;
        return (
          <section key={letter} class="stack" aria-label={name}>
            <h2>{name}</h2>
            <ul class="stu-list">
              {group.map((study) => (
                <li key={study.tag}>
                  <Entry study={study} />
                </li>
              ))}
            </ul>
          </section>
        );
      })}
    </div>
  );
}

function Entry({ study }: { study: StudyEntry }) {
  const result = results.value[study.tag];
  const [look, word] = result ? VERDICTS[result.verdict] : ["", ""];
  return (
    <a class="card stu-entry" href={href("studies", { study: study.tag })}>
      <span class="row apart">
        <span class="stu-tag">{study.tag}</span>
        <span class="row">
          {word && <span class={look}>{word}</span>}
          {study.trains && <span class="tag warn">trains</span>}
          {study.needs.map((need) => (
            <span class="tag" key={need}>
              {need}
            </span>
          ))}
          <span class="small muted numeric">{study.sources.join(" ")}</span>
        </span>
      </span>
      <span class="stu-title">{study.title}</span>
      <span class="small muted stu-says">{study.statement}</span>
      <span class="small muted numeric">about {duration(study.seconds * 1000)}</span>
    </a>
  );
}
