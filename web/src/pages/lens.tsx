// Lens: what a model would write after each layer, what it does without a part, and with activations of another text.
import { Tabs } from "../components/controls";
import { PageHead } from "../components/state";
import { useParam } from "../router";
import "./lens.css";
import { AblationView } from "./lens/ablation";
import { GuessesView } from "./lens/guesses";
import { PatchingView } from "./lens/patching";

const TABS = [
  { id: "guesses", label: "Logit lens" },
  { id: "ablation", label: "Ablation" },
  { id: "patching", label: "Patching" },
];

export default function Page() {
  const [view, setView] = useParam("view", "guesses");
  const shown = TABS.some((tab) => tab.id === view) ? view : "guesses";
  return (
    <>
      <PageHead title="Lens" words="What the model would predict after each layer, and how the answer changes when a part is ablated or patched." />
      <Tabs label="What to do with the model" tabs={TABS} value={shown} onChange={setView}>
        {shown === "guesses" && <GuessesView />}
        {shown === "ablation" && <AblationView />}
        {shown === "patching" && <PatchingView />}
      </Tabs>
    </>
  );
}
