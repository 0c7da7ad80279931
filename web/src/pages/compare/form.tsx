// What to compare. Everything filled in stands in the address, so that a study can be handed on as a link.
import { useRef, useState } from "preact/hooks";
import type { CompareChoices, ComparisonStarted } from "../../generated/api";
import { post, Trouble } from "../../api";
import { Button, Check, Select, TextField } from "../../components/controls";
import { NumberField, OptionalNumber } from "../../components/numbers";
import { Busy, Card, Facts, Problem } from "../../components/state";
import { useDraft } from "../../draft";
import { asTrouble } from "../../hooks";
import { duration, show } from "../../lib/numbers";
import { listed } from "../../lib/values";
import { type Params, read, type Scalar } from "../../router";

export interface Filled {
  tasks: string[];
  positions: string[];
  attention: string[];
  train_length: number;
  test_lengths: number[];
  seeds: number;
  steps: number | null;
  budget: string | null;
  batch: number;
  width: number;
  layers: number;
  heads: number;
  test_examples: number;
}

/** Enough to see curves part, and no more: a first impression, not a result. */
const TASTE = { tasks: ["copy"], positions: ["none", "rope", "alibi"], attention: ["multi-head"], seeds: 1, steps: null, budget: "30s" };

const SIZES = ["batch", "width", "layers", "heads", "test_examples"] as const;

/** The form as the address has it. */
export function filled({ defaults }: CompareChoices, params: Params): Filled {
  const list = (name: "tasks" | "positions" | "attention") => (params[name] === undefined ? defaults[name] : listed(params[name]));
  const lengths = params["test_lengths"] === undefined ? defaults.test_lengths : listed(params["test_lengths"]).map(Number);
  const steps = read(params["steps"], 0) || null;
  return {
    tasks: list("tasks"),
    positions: list("positions"),
    attention: list("attention"),
    train_length: read(params["train_length"], defaults.train_length),
    test_lengths: lengths,
    seeds: read(params["seeds"], defaults.seeds),
    steps,
    budget: params["budget"] ?? (steps === null ? defaults.budget : null),
    batch: read(params["batch"], defaults.batch),
    width: read(params["width"], defaults.width),
    layers: read(params["layers"], defaults.layers),
    heads: read(params["heads"], defaults.heads),
    test_examples: read(params["test_examples"], defaults.test_examples),
  };
}

/** Seconds of "14m", "90s", "1.5h" or a plain number; null where it is none. */
export function budgetSeconds(text: string): number | null {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(s|m|min|h)?\s*$/.exec(text);
  if (!found) return null;
  return Number(found[1]) * { s: 1, m: 60, min: 60, h: 3600 }[found[2] ?? "s"]!;
}

export interface NewFormProps {
  choices: CompareChoices;
  params: Params;
  say: (changes: Record<string, Scalar | null>) => void;
  started: (id: string) => void;
}

export function NewForm({ choices, params, say, started }: NewFormProps) {
  const form = filled(choices, params);
  const [since, setSince] = useState<number | null>(null);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const [tasting, setTasting] = useState(false); // what was started last: what is said of it stands beside its button
  const root = useRef<HTMLDivElement>(null);
  const taste = () => {
    setTasting(true);
    run({ ...form, ...TASTE });
  };
  const start = () => {
    setTasting(false);
    // What a field does not take never reached the form: the old value would be started.
    const wrong = root.current?.querySelector<HTMLElement>('[aria-invalid="true"], .wrong-note');
    if (wrong) {
      wrong.focus();
      setTrouble(new Trouble("refused", "One of the fields is not valid.", "Correct the marked field, then start."));
      return;
    }
    run(form);
  };
  const run = (what: Filled) => {
    setSince(performance.now());
    setTrouble(null);
    post<ComparisonStarted>("/compare", what, { seconds: 60 }).then(
      ({ id }) => started(id),
      (error: unknown) => {
        setTrouble(asTrouble(error));
        setSince(null);
      },
    );
  };
  const empty = !form.tasks.length || !form.positions.length || !form.attention.length || !form.test_lengths.length;
  return (
    <div class="stack wide" ref={root}>
      <Card>
        <div class="row apart">
          <p>
            New here? See models with RoPE, with ALiBi and without an encoding learn to copy, in half a minute.
          </p>
          <Button disabled={since !== null} onClick={taste}>
            Try it for 30 seconds
          </Button>
        </div>
        {tasting && since !== null && <Busy words="Starting" since={since} />}
        {tasting && trouble && <Problem trouble={trouble} retry={taste} />}
      </Card>
      <div class="grid aside">
        <div class="stack wide">
          <Card title="What to compare">
            <Many legend="Positions" all={choices.positions} about={choices.about} chosen={form.positions} onChange={(list) => say({ positions: list.join(",") || "," })} />
            <Many legend="Attention" all={choices.attention} about={choices.about} chosen={form.attention} onChange={(list) => say({ attention: list.join(",") || "," })} />
          </Card>
          <Card title="Tasks to train on">
            <Many legend="Tasks" all={choices.tasks} about={choices.about} chosen={form.tasks} onChange={(list) => say({ tasks: list.join(",") || "," })} />
          </Card>
        </div>
        <div class="stack">
          <Card title="Training">
            <Lengths form={form} say={say} />
            <Time form={form} say={say} plain={choices.defaults.budget} />
            <Sizes form={form} say={say} defaults={choices.defaults} />
          </Card>
          <Card title="Time and size">
            <Estimate form={form} choices={choices} />
            <div class="row">
              <Button look="main" disabled={empty || since !== null} onClick={start}>
                Start
              </Button>
              {!tasting && since !== null && <Busy words="Starting" since={since} />}
            </div>
            {empty && <p class="small wrong-note">Choose at least one task, one position and one kind of attention.</p>}
            {!tasting && trouble && <Problem trouble={trouble} retry={start} />}
          </Card>
        </div>
      </div>
    </div>
  );
}
function Many({ legend, all, about, chosen, onChange }: { legend: string; all: string[]; about: Record<string, string>; chosen: string[]; onChange: (chosen: string[]) => void }) {
  const unknown = chosen.filter((name) => !all.includes(name));
  return (
    <fieldset>
      <legend class="legend-title">
        {legend} <span class="muted">({chosen.length})</span>
      </legend>
      <div class="cmp-many">
        {all.map((name) => (
          <Check key={name} label={name} title={about[name]} value={chosen.includes(name)} onChange={(on) => onChange(all.filter((one) => (one === name ? on : chosen.includes(one))))} />
        ))}
      </div>
      {unknown.length > 0 && <p class="wrong-note">Unknown: {unknown.join(", ")}</p>}
    </fieldset>
  );
}

interface PartProps {
  form: Filled;
  say: NewFormProps["say"];
}

/** "20, 40" as the address has it, or null where anything else than numbers stands there. */
export const lengthsOf = (text: string): string | null => (/^[\d\s,]*$/.test(text) && (text.match(/\d+/g) ?? []).join(",")) || null;

function Lengths({ form, say }: PartProps) {
  const [text, setText] = useDraft(form.test_lengths.join(", "), (list) => say({ test_lengths: lengthsOf(list) }), (typed) => lengthsOf(typed)?.replaceAll(",", ", ") ?? null);
  return (
    <>
      <div class="fields">
        <NumberField label="Trained up to length" value={form.train_length} min={1} max={512} step={1} onChange={(value) => say({ train_length: value })} />
        <NumberField label="Seeds" value={form.seeds} min={1} max={16} step={1} onChange={(value) => say({ seeds: value })} />
      </div>
      <TextField label="Tested at lengths" value={text} onChange={setText} help="numbers, separated by commas" wrong={lengthsOf(text) === null ? "Write whole numbers, as in 10, 20, 40." : null} />
    </>
  );
}

function Time({ form, say, plain }: PartProps & { plain: string }) {
  const bySteps = form.steps !== null;
  return (
    <>
      <Select
        label="Trained"
        value={bySteps ? "steps" : "budget"}
        options={[
          { value: "budget", label: "within a time budget" },
          { value: "steps", label: "for a number of steps" },
        ]}
        onChange={(how) => say(how === "steps" ? { steps: 1000, budget: null } : { steps: null, budget: null })}
      />
      {bySteps ? (
        <NumberField label="Steps" value={form.steps ?? 1000} min={1} max={200_000} step={1} onChange={(steps) => say({ steps })} />
      ) : (
        <Budget value={form.budget ?? plain} onChange={(budget) => say({ budget: budget === plain ? null : budget })} />
      )}
    </>
  );
}

function Budget({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const [text, setText] = useDraft(value, onChange, (typed) => (budgetSeconds(typed) === null ? null : typed.trim()));
  return (
    <TextField
      label="Budget"
      value={text}
      onChange={setText}
      help="as in 90s, 14m or 2h: 10 seconds to 24 hours"
      wrong={budgetSeconds(text) === null ? "Write a number and s, m or h, as in 14m." : null}
    />
  );
}

function Sizes({ form, say, defaults }: PartProps & { defaults: CompareChoices["defaults"] }) {
  const own = SIZES.some((name) => form[name] !== defaults[name]);
  return (
    <details open={own}>
      <summary>Sizes of the models</summary>
      <div class="fields cmp-sizes">
        {SIZES.map((name) => (
          <OptionalNumber
            key={name}
            label={name.replace("_", " ")}
            value={form[name]}
            min={1}
            max={{ batch: 1024, width: 512, layers: 16, heads: 32, test_examples: 4096 }[name]}
            otherwise={String(defaults[name])}
            onChange={(value) => say({ [name]: value === defaults[name] ? null : value })}
          />
        ))}
      </div>
    </details>
  );
}

/** How many models are trained: the control answers with one symbol, and is left out of tasks with longer answers. */
export function models(form: Filled, { control, controlled }: Pick<CompareChoices, "control" | "controlled">): number {
  const positions = (task: string) => form.positions.filter((name) => name !== control || controlled.includes(task)).length;
  return form.tasks.reduce((sum, task) => sum + positions(task), 0) * form.attention.length * form.seeds;
}

function Estimate({ form, choices }: { form: Filled; choices: CompareChoices }) {
  const runs = models(form, choices);
  const seconds = form.budget === null ? null : budgetSeconds(form.budget);
  return (
    <>
      <Facts
        facts={[
          { name: "models to train", value: show(runs) },
          { name: "time, about", value: seconds === null ? "unknown" : duration(seconds * 1000) },
          { name: "for each model", value: seconds === null || !runs ? "–" : duration((seconds * 1000) / runs) },
        ]}
      />
      <p class="small muted">
        {seconds === null
          ? "The remaining time is shown once the first step has been timed."
          : "The speed is measured first. Steps and seeds are then chosen so that everything, including the learning-rate search and the report, fits the budget. The report says what was reduced."}{" "}
        Comparisons run one at a time, in their own process, and continue when this page is closed.
      </p>
    </>
  );
}
