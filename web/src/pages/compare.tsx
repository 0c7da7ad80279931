// Compare: a study from a form, live while it trains, and every report there is.
import { get } from "../api";
import { Tabs } from "../components/controls";
import { Busy, PageHead, Problem } from "../components/state";
import { useAnswer } from "../hooks";
import { go, href, put, route, useParam } from "../router";
import type { CompareChoices } from "../generated/api";
import { NewForm } from "./compare/form";
import { All } from "./compare/list";
import { Watch } from "./compare/watch";
import "./compare.css";

const TABS = [
  { id: "new", label: "New comparison" },
  { id: "all", label: "All comparisons" },
];

export default function Page() {
  const [view, setView] = useParam("view", "new");
  const [id] = useParam("id", "");
  const shown = view === "all" ? "all" : "new";
  return (
    <>
      <PageHead title="Compare" words="Train small models that differ in position encoding or attention, and test how well each works beyond the training length." />
      {id ? (
        <>
          <p class="small cmp-back">
            <a href={href("compare", { view: "all" })}>All comparisons</a> · <a href={href("compare")}>New comparison</a>
          </p>
          <Watch key={id} id={id} />
        </>
      ) : (
        <Tabs label="New or all" tabs={TABS} value={shown} onChange={setView}>
          {shown === "new" ? <Beginning /> : <All />}
        </Tabs>
      )}
    </>
  );
}

function Beginning() {
  const answer = useAnswer("choices", (signal) => get<CompareChoices>("/compare/choices", { signal }));
  return (
    <>
      {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
      {answer.since !== null && !answer.data && <Busy words="Loading the choices" since={answer.since} />}
      {answer.data && (
        <NewForm
          choices={answer.data}
          params={route.value.params}
          say={put}
          started={(id) => go("compare", { id })}
        />
      )}
    </>
  );
}
