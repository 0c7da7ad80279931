// Positions: every encoding in pictures, a token moved to another place, an encoding swapped on the running model.
import { Tabs } from "../components/controls";
import { useEncodings } from "../components/EncodingPicker";
import { Busy, PageHead, Problem } from "../components/state";
import { useParam } from "../router";
import { Gallery } from "./positions/gallery";
import { MoveView } from "./positions/move";
import { SwapView } from "./positions/swap";
import "./positions.css";

const TABS = [
  { id: "show", label: "Encodings" },
  { id: "move", label: "Move a token" },
  { id: "swap", label: "Swap on the model" },
];

export default function Page() {
  const [view, setView] = useParam("view", "show");
  const answer = useEncodings();
  const encodings = answer.data?.encodings;
  const shown = TABS.some((tab) => tab.id === view) ? view : "show";
  return (
    <>
      <PageHead title="Positions" words="How a model knows the position of a token: every encoding as a picture, on a text, and swapped into a loaded model." />
      <Tabs label="What to do with positions" tabs={TABS} value={shown} onChange={setView}>
        {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
        {answer.since !== null && !encodings && <Busy words="Loading the encodings" since={answer.since} />}
        {encodings && shown === "show" && <Gallery encodings={encodings} />}
        {shown === "move" && <MoveView />}
        {encodings && shown === "swap" && <SwapView encodings={encodings} />}
      </Tabs>
    </>
  );
}
