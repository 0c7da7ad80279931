// The parts to choose from.
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { Button, Check, Parameters, Select } from "../../components/controls";
import { NumberField, OptionalNumber } from "../../components/numbers";
import { Card } from "../../components/state";
import { valuesGone, valuesPatch } from "../../lib/values";
import { go, put, route } from "../../router";
import type { BuildChoices } from "../../generated/api";
import { EXPERTS, inAddress, LATENT, type OptionName, PLAIN, type Settings, TAPS } from "./settings";

interface PartProps {
  choices: BuildChoices;
  settings: Settings;
}

/** Into the address, unless it is as it comes. */
const say = (name: string, value: string | number | boolean | null, plain: unknown): void => put({ [name]: value === plain ? null : value });

interface OptionProps extends PartProps {
  name: OptionName;
  label: string;
  /** What stands in an empty field. */
  otherwise?: string;
}

/** An option of the model, as a field for its type, with the bounds that the server says. Nothing where it has none. */
function Option({ choices: { options, defaults }, settings, name, label, otherwise = "none" }: OptionProps) {
  const option = options[name];
  const value = settings[name];
  const set = (next: string | number | boolean | null): void => say(inAddress(name), next, defaults[name]);
  if (!option?.kinds.includes(settings.kind)) return null;
  const { low, high, choices } = option;
  if (typeof value === "boolean") return <Check label={label} value={value} onChange={set} />;
  if (typeof value === "string") return <Select label={label} value={value} options={choices} onChange={set} />;
  const bounds = { min: low ?? undefined, max: high ?? undefined };
  if (defaults[name] === null) return <OptionalNumber label={label} value={value} min={low ?? 0} max={high ?? Number.MAX_SAFE_INTEGER} otherwise={otherwise} onChange={set} />;
  return <NumberField label={label} value={value ?? 0} {...bounds} step={Number.isInteger(high) ? 1 : "any"} onChange={set} />;
}

export function BuildForm({ choices, settings }: PartProps) {
  return (
    <Card
      title="Parts"
      beside={
        Object.keys(route.value.params).length > 0 ? (
          <Button little look="quiet" onClick={() => go("build")}>
            Start over
          </Button>
        ) : null
      }
    >
      <Sizes choices={choices} settings={settings} />
      <Position choices={choices} settings={settings} />
      <Attention choices={choices} settings={settings} />
      <Pattern choices={choices} settings={settings} />
      <FeedForward choices={choices} settings={settings} />
      <Norms choices={choices} settings={settings} />
      <Train choices={choices} settings={settings} />
    </Card>
  );
}

function Group({ title, open = true, children }: { title: string; open?: boolean; children: ComponentChildren }) {
  return (
    <details class="bld-group" open={open}>
      <summary>{title}</summary>
      <div class="stack">{children}</div>
    </details>
  );
}

const KINDS: Record<string, string> = { decoder: "decoder", encoder: "encoder", encoder_decoder: "encoder and decoder" };

function Sizes({ choices, settings }: PartProps) {
  const { kinds, defaults } = choices;
  const parts = { choices, settings };
  return (
    <Group title="Model">
      <Select label="Kind" value={settings.kind} options={kinds.map((kind) => ({ value: kind, label: KINDS[kind] ?? kind }))} onChange={(kind) => put({ kind: kind === defaults.kind ? null : kind, task: null })} />
      <div class="bld-fields">
        <Option {...parts} name="width" label="Width" />
        <Option {...parts} name="layers" label="Layers" />
        <NumberField label="Vocabulary" value={settings.vocab} min={1} max={2 ** 20} step={1} onChange={(vocab) => say("vocab", vocab, defaults.vocab)} />
        <Option {...parts} name="max_length" label="Maximum length" otherwise="any" />
        <Option {...parts} name="dropout" label="Dropout" />
      </div>
      <div class="chips">
        <Option {...parts} name="tied" label="Head tied to the embeddings" />
        <Option {...parts} name="shared" label="Shared embeddings" />
        <Option {...parts} name="bidirectional" label="No causal mask" />
      </div>
    </Group>
  );
}

function Position({ choices: { positions, defaults }, settings }: PartProps) {
  const encoding = positions.find((one) => one.name === settings.position.name);
  return (
    <Group title="Position">
      <Select
        label="Encoding"
        value={settings.position.name}
        options={positions.map((one) => ({ value: one.name, label: one.title }))}
        onChange={(name) => put({ ...valuesGone(route.peek().params), position: name === defaults.position.name ? null : name })}
        help={encoding?.about}
      />
      {encoding && encoding.parameters.length > 0 && (
        <details class="bld-inner" open={Object.keys(settings.position.values).length > 0}>
          <summary>Its parameters</summary>
          <Parameters key={encoding.name} parameters={encoding.parameters} values={settings.position.values} onChange={(next) => put(valuesPatch(encoding.parameters, next))} />
        </details>
      )}
    </Group>
  );
}

/** Whether something hidden is set, or was: fields do not disappear when the last of them goes back to its default. */
function useOpened(set: boolean): boolean {
  const opened = useRef(set);
  opened.current ||= set;
  return opened.current;
}

function Attention({ choices, settings }: PartProps) {
  const { attentions, defaults, normalisers } = choices;
  const parts = { choices, settings };
  const scored = settings.delta === null;
  const more = settings.head_width !== null || settings.softcap !== null || settings.sinks || settings.bias || settings.normaliser !== defaults.normaliser || settings.output !== defaults.output || settings.indexer !== defaults.indexer || settings.kv_sharing !== defaults.kv_sharing;
  return (
    <Group title="Attention">
      <Select label="Kind of attention" value={settings.attention} options={attentions} onChange={(kind) => say("attention", kind, PLAIN)} />
      <div class="bld-fields">
        <Option {...parts} name="heads" label="Heads" />
        {settings.attention === "grouped-query" && <Option {...parts} name="kv_heads" label="Key/value heads" otherwise="as heads" />}
      </div>
      {settings.latent && (
        <div class="bld-fields">
          <NumberField label="Latent width" value={settings.latent.kv_rank} min={1} max={65_536} step={1} onChange={(value) => say("kv_rank", value, LATENT.kv_rank)} />
          <NumberField label="Rotary width" value={settings.latent.rope_dim} min={0} max={1024} step={1} onChange={(value) => say("rope_dim", value, LATENT.rope_dim)} />
          <OptionalNumber label="Plain width" value={settings.latent.nope_dim} min={1} max={65_536} otherwise="a head's" onChange={(value) => say("nope_dim", value, null)} />
          <OptionalNumber label="Value width" value={settings.latent.value_dim} min={1} max={65_536} otherwise="a head's" onChange={(value) => say("value_dim", value, null)} />
          <OptionalNumber label="Query latent" value={settings.latent.q_rank} min={1} max={65_536} otherwise="none" onChange={(value) => say("q_rank", value, null)} />
        </div>
      )}
      {settings.delta && (
        <>
          <div class="bld-fields">
            <OptionalNumber label="Rank of decays" value={settings.delta.rank} min={1} max={65_536} otherwise="a head's width" onChange={(value) => say("rank", value, null)} />
            <NumberField label="Convolution taps" value={settings.delta.taps} min={2} max={16} step={1} onChange={(value) => say("taps", value, TAPS)} />
          </div>
          <p class="small muted">A delta rule keeps a state of fixed size. It has no scores for a position encoding to act on: choose none, or one that is added to the embeddings.</p>
        </>
      )}
      <details class="bld-inner" open={useOpened(more)}>
        <summary>More</summary>
        <div class="stack">
          <div class="bld-fields">
            <OptionalNumber label="Head width" value={settings.head_width} min={1} max={1024} otherwise="width / heads" onChange={(value) => say("head_width", value, null)} />
            {scored && <Select label="Weights by" value={settings.normaliser} options={normalisers.map((one) => ({ value: one.name, label: one.title }))} help={normalisers.find((one) => one.name === settings.normaliser)?.about} onChange={(value) => say("normaliser", value, defaults.normaliser)} />}
            {scored && <OptionalNumber label="Soft cap" value={settings.softcap} min={0.001} max={1000} whole={false} otherwise="none" onChange={(value) => say("softcap", value, null)} />}
          </div>
          <div class="bld-fields">
            <Option {...parts} name="output" label="On the output" />
            <Option {...parts} name="indexer" label="Keys selected by" />
            <Option {...parts} name="kv_sharing" label="Layers per keys" />
          </div>
          <div class="chips">
            <Option {...parts} name="bias" label="Biases" />
            {scored && <Check label="Sinks" value={settings.sinks} onChange={(sinks) => say("sinks", sinks, defaults.sinks)} />}
          </div>
        </div>
      </details>
    </Group>
  );
}

function Pattern({ choices, settings }: PartProps) {
  return (
    <Group title="Layer pattern">
      <div class="bld-fields">
        <Option choices={choices} settings={settings} name="window" label="Window" />
        {settings.kind !== "encoder_decoder" && (
          <OptionalNumber label="Full every" value={settings.full_every} min={2} max={128} otherwise="none" onChange={(value) => say("full_every", value, null)} />
        )}
      </div>
      <p class="small muted">With a window each token attends to that many previous tokens. “Full every” makes every n-th layer attend to all.</p>
      {settings.full_every !== null && (
        <Select
          label="Position in the full layers"
          value={settings.full_position}
          options={["same", "none"]}
          onChange={(value) => say("full_position", value, "same")}
        />
      )}
    </Group>
  );
}

function FeedForward({ choices, settings }: PartProps) {
  const { experts } = settings;
  return (
    <Group title="Feed-forward">
      <div class="bld-fields">
        <Option choices={choices} settings={settings} name="ffn" label="Function" />
        <OptionalNumber label="Hidden width" value={settings.hidden} min={1} max={2 ** 18} otherwise="as usual" onChange={(value) => say("hidden", value, null)} />
      </div>
      <Check label="A mixture of experts" value={experts !== null} onChange={(on) => say("moe", on, false)} />
      {experts && (
        <>
          <div class="bld-fields">
            <NumberField label="Experts" value={experts.count} min={1} max={64} step={1} onChange={(value) => say("experts", value, EXPERTS.count)} />
            <NumberField label="Experts per token" value={experts.k} min={1} max={64} step={1} onChange={(value) => say("of_experts", value, EXPERTS.k)} />
          </div>
          <Check label="With a shared expert" value={experts.shared} onChange={(on) => say("shared", on, false)} />
        </>
      )}
    </Group>
  );
}

function Norms({ choices, settings }: PartProps) {
  return (
    <Group title="Norm and wiring">
      <div class="bld-fields">
        <Option choices={choices} settings={settings} name="norm" label="Norm" />
        <Option choices={choices} settings={settings} name="wiring" label="Wiring" />
      </div>
    </Group>
  );
}

function Train({ choices: { tasks, defaults }, settings }: PartProps) {
  return (
    <Group title="Training" open={settings.task !== null || settings.steps !== defaults.steps}>
      <div class="bld-fields">
        <Select
          label="Task"
          value={settings.task ?? ""}
          options={[{ value: "", label: "one that fits" }, ...tasks]}
          onChange={(task) => say("task", task || null, null)}
        />
        <NumberField label="Steps" value={settings.steps} min={1} max={1_000_000} step={1} onChange={(steps) => say("steps", steps, defaults.steps)} />
      </div>
    </Group>
  );
}
