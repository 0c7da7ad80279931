// What stands where an answer is missing: an error in words, a wait with its time, or nothing yet.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { connected, Trouble } from "../api";
import { Button } from "./controls";

/** With a full stop, where there is none. It may begin with a name, which is left as it is. */
export const sentence = (text: string): string => (/[.!?…]$/.test(text) || !text ? text : `${text}.`);

export function Problem({ trouble, retry }: { trouble: Trouble; retry?: () => void }) {
  if (trouble.kind === "stopped") return null;
  const reload = trouble.kind === "stale";
  return (
    <div class="problem" role="alert">
      <div>
        <p>{sentence(trouble.message)}</p>
        {trouble.advice && <p class="muted small">{trouble.advice}</p>}
      </div>
      {reload ? (
        <Button onClick={() => location.reload()}>Reload</Button>
      ) : (
        retry && (
          <Button
            onClick={() => {
              connected.value = true;
              retry();
            }}
          >
            Retry
          </Button>
        )
      )}
    </div>
  );
}

/** What is going on, and for how long by now; with a way to stop it where there is one. */
export function Busy({ words, since, stop }: { words: string; since: number; stop?: () => void }) {
  const [now, setNow] = useState(performance.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), 200);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.max(0, now - since) / 1000;
  return (
    <span class="row">
      <span class="busy" role="status">
        {words}
        {seconds >= 1 && <span aria-hidden="true"> {seconds.toFixed(seconds < 10 ? 1 : 0)} s</span>}
      </span>
      {stop && (
        <Button little onClick={stop}>
          Stop
        </Button>
      )}
    </span>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <div class="empty">{children}</div>;
}

/** The heading every page begins with. `beside` stands at its right: the model, a switch. */
export function PageHead({ title, words, beside }: { title: string; words: string; beside?: ComponentChildren }) {
  return (
    <div class="page-head">
      <div>
        <h1>{title}</h1>
        <p>{words}</p>
      </div>
      {beside && <div class="row end">{beside}</div>}
    </div>
  );
}

export function Card({
  title,
  beside,
  children,
}: {
  title?: string;
  beside?: ComponentChildren;
  children: ComponentChildren;
}) {
  return (
    <section class="card stack" aria-label={title}>
      {(title || beside) && (
        <div class="row apart">
          {title && <h2>{title}</h2>}
          {beside}
        </div>
      )}
      {children}
    </section>
  );
}

/** Numbers with their names. */
export function Facts({ facts }: { facts: { name: string; value: ComponentChildren; unit?: string }[] }) {
  return (
    <dl class="facts">
      {facts.map((fact) => (
        <div key={fact.name}>
          <dt>{fact.name}</dt>
          <dd>
            {fact.value} {fact.unit && <small>{fact.unit}</small>}
          </dd>
        </div>
      ))}
    </dl>
  );
}

export function Meter({ share, label }: { share: number; label: string }) {
  const percent = Math.round(Math.min(1, Math.max(0, share)) * 100);
  return (
    <div
      class="meter"
      role="progressbar"
      aria-label={label}
      aria-valuenow={percent}
      aria-valuemin={0}
      aria-valuemax={100}
    >
      <div style={{ width: `${percent}%` }} />
    </div>
  );
}
