// Studies: every result of the documents with our own beside it; and the exercises, with a grader.
import { get } from "../api";
import { Tabs } from "../components/controls";
import { Busy, PageHead, Problem } from "../components/state";
import { useAnswer } from "../hooks";
import { put, useParam } from "../router";
import { Exercises } from "./studies/exercises";
import { StudyList } from "./studies/list";
import { StudyView } from "./studies/study";
import type { StudyEntry } from "../generated/api";
import "./studies.css";

const TABS = [
  { id: "studies", label: "Studies" },
  { id: "exercises", label: "Exercises" },
];

export default function Page() {
  const [view] = useParam("view", "studies");
  const [tag] = useParam("study", "");
  const shown = view === "exercises" ? "exercises" : "studies";
  const answer = useAnswer(shown === "studies" ? "studies" : null, (signal) => get<StudyEntry[]>("/studies", { signal, seconds: 60 }));
  return (
    <>
      <PageHead title="Studies" words="Claims of course material and papers, checked with this library's own parts; and exercises." />
      <Tabs label="Studies or exercises" tabs={TABS} value={shown} onChange={(next) => put({ view: next === "studies" ? null : next })}>
        {shown === "exercises" && <Exercises />}
        {shown === "studies" && answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
        {shown === "studies" && answer.since !== null && !answer.data && <Busy words="Loading the studies" since={answer.since} />}
        {shown === "studies" && answer.data && (tag ? <StudyView key={tag} studies={answer.data} tag={tag} /> : <StudyList studies={answer.data} />)}
      </Tabs>
    </>
  );
}
