// How far the server is with a text or its heads, a way to stop it, and a way to begin again.
import { Button } from "../../components/controls";
import { Busy, Meter } from "../../components/state";
import type { Reported } from "./side";

const LONG = 1; // second after which there is a bar

export function Progress<T>({ of, words, again }: { of: Reported<T>; words: string; again: string }) {
  if (of.trouble?.kind === "stopped") {
    return (
      <div class="row">
        <Button onClick={of.retry}>{again}</Button>
        <span class="small muted">Stopped.</span>
      </div>
    );
  }
  if (of.since === null) return null;
  const { going } = of;
  return (
    <div class="stack">
      <Busy words={going?.doing ? `${words}: ${going.doing}` : words} since={of.since} stop={going?.stop} />
      {going && performance.now() - of.since > 1000 * LONG && <Meter share={going.share} label={words} />}
    </div>
  );
}
