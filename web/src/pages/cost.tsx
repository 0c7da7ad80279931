// Cache and cost: what keys and values take and what a pass computes, worked out; and a cache's worth, measured.
import { Tabs } from "../components/controls";
import { PageHead } from "../components/state";
import { useParam } from "../router";
import { Calculator } from "./cost/calculator";
import { Measure } from "./cost/measure";
import "./cost.css";

const TABS = [
  { id: "calculate", label: "Calculator" },
  { id: "measure", label: "Measure" },
];

export default function Page() {
  const [view, setView] = useParam("view", "calculate");
  const shown = view === "measure" ? "measure" : "calculate";
  return (
    <>
      <PageHead title="Cache & cost" words="The size of the cache by kind of attention, length and batch; and what it saves, measured on a model." />
      <Tabs label="Calculate or measure" tabs={TABS} value={shown} onChange={setView}>
        {shown === "calculate" ? <Calculator /> : <Measure />}
      </Tabs>
    </>
  );
}
