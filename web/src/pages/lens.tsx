// Lens: what a model would write after each layer, what it does without a part, and with activations of another text.
import { Tabs } from "../components/controls";
import { PageHead } from "../components/state";
import { useParam } from "../router";
import "./lens.css";
import { AblationView } from "./lens/ablation";
import { GuessesView } from "./lens/guesses";
import { PatchingView } from "./lens/patching";

const TABS = [
  { id: "guesses", label: "Layer by layer" },
  { id: "ablation", label: "Without a part" },
  { id: "patching", label: "Between two texts" },
];

export default function Page() {
  const [view, setView] = useParam("view", "guesses");
  const shown = TABS.some((tab) => tab.id === view) ? view : "guesses";
  return (
    <>
      <PageHead title="Lens" words="What the model would write after each layer, and what becomes of the answer when a part is taken away or exchanged." />
      <Tabs label="What to do with the model" tabs={TABS} value={shown} onChange={setView}>
        {shown === "guesses" && <GuessesView />}
        {shown === "ablation" && <AblationView />}
        {shown === "patching" && <PatchingView />}
      </Tabs>
    </>
  );
}
