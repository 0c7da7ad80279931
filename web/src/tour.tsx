// A tour of three minutes over the real pages. Where it stands is in the address, so any step can be handed on.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Button } from "./components/controls";
import { go, put, read, route, type Scalar } from "./router";

interface Step {
  page: string;
  params: Record<string, Scalar>;
  title: string;
  words: string;
}

export const STEPS: Step[] = [
  {
    page: "chat",
    params: {},
    title: "The next token",
    words:
      "Send one of the suggested messages. A model writes one token at a time; the panel on the right shows the other candidates. Point at a word of the answer to see the candidates at that word, or choose another candidate to continue from there.",
  },
  {
    page: "attention",
    params: { view: "heat", find: "first" },
    title: "A sink",
    words:
      "Rows are queries, columns are keys. This head puts most of its weight on the first token, whatever the words are: a place for attention that is not needed. The line above the picture says how much.",
  },
  {
    page: "attention",
    params: { view: "lines", find: "induction" },
    title: "An induction head",
    words:
      "This head finds the previous occurrence of the current word and attends to what followed it. This is how a model repeats patterns that it never saw in training. Point at a second “John” or “Mary” on the left.",
  },
  {
    page: "positions",
    params: { view: "move" },
    title: "Move a token",
    words:
      "The words stay the same; only one position number changes. The weights of this head follow the position, not the word. Drag another token along the line.",
  },
  {
    page: "attention",
    params: { view: "heat", compare: "encoding", b_encoding: "alibi", layer: 3, head: 1 },
    title: "Swap to ALiBi",
    words:
      "The same model and head: with its own rotary encoding on the left, with ALiBi instead on the right. ALiBi lowers the scores of distant tokens: see what remains of the pattern.",
  },
  {
    page: "studies",
    params: { view: "exercises", exercise: "A4" },
    title: "An exercise",
    words:
      "Write attention yourself. The grader compares your code with the library and names typical mistakes. This is the end of the tour. All pages are in the menu, and every address can be shared as a link.",
  },
];

const KEY = "vantage-tour";

function asked(): boolean {
  try {
    return localStorage.getItem(KEY) !== null;
  } catch {
    return true;
  }
}

const invited = signal(typeof localStorage !== "undefined" && !asked());

function decline(): void {
  invited.value = false;
  try {
    localStorage.setItem(KEY, "seen");
  } catch {
    // a browser that keeps nothing asks again
  }
}

export function showStep(number: number): void {
  decline();
  const step = STEPS[number - 1];
  if (step) go(step.page, { ...step.params, tour: number });
}

export function TourButton() {
  return (
    <Button little look="quiet" onClick={() => showStep(1)}>
      Tour
    </Button>
  );
}

/** The present step, or the invitation on a first visit. */
export function Tour() {
  const number = read(route.value.params["tour"], 0);
  const step = STEPS[number - 1];
  const panel = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (step) panel.current?.focus({ preventScroll: true });
  }, [number]);
  if (!step) return invited.value ? <Invitation /> : null;
  return (
    <div class="tour stack" role="dialog" aria-label={`Tour, step ${number} of ${STEPS.length}`} tabIndex={-1} ref={panel}>
      <div class="row apart">
        <strong>{step.title}</strong>
        <span class="small muted numeric">
          {number} of {STEPS.length}
        </span>
      </div>
      <p class="small">{step.words}</p>
      <div class="row">
        {number > 1 && (
          <Button little onClick={() => showStep(number - 1)}>
            Back
          </Button>
        )}
        {number < STEPS.length && (
          <Button little look="main" onClick={() => showStep(number + 1)}>
            Next
          </Button>
        )}
        <Button little look="quiet" onClick={() => put({ tour: null })}>
          {number < STEPS.length ? "Exit tour" : "Finish"}
        </Button>
      </div>
    </div>
  );
}

function Invitation() {
  return (
    <div class="tour stack" role="region" aria-label="Tour">
      <p>New here? Take a three-minute tour of the pages.</p>
      <div class="row">
        <Button little look="main" onClick={() => showStep(1)}>
          Start the tour
        </Button>
        <Button little look="quiet" onClick={decline}>
          Not now
        </Button>
      </div>
    </div>
  );
}
