// The parts to choose from.
import type { ComponentChildren } from "preact";
import { Button, Check, NumberField, Parameters, Select } from "../../components/controls";
import { OptionalNumber } from "../../components/numbers";
import { Card } from "../../components/state";
import { valuesGone, valuesPatch } from "../../lib/values";
import { go, put, route } from "../../router";
import type { BuildChoices } from "../../generated/api";
import { EXPERTS, LATENT, type Settings } from "./settings";

interface PartProps {
  choices: BuildChoices;
  settings: Settings;
}

/** Into the address, unless it is as it comes. */
const say = (name: string, value: string | number | boolean | null, plain: unknown): void => put({ [name]: value === plain ? null : value });

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
      <Pattern settings={settings} />
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

function Sizes({ choices: { kinds, defaults }, settings }: PartProps) {
  return (
    <Group title="Model">
      <Select label="Kind" value={settings.kind} options={kinds.map((kind) => ({ value: kind, label: KINDS[kind] ?? kind }))} onChange={(kind) => put({ kind: kind === defaults.kind ? null : kind, task: null })} />
      <div class="bld-fields">
        <NumberField label="Width" value={settings.width} min={1} max={32_768} step={1} onChange={(width) => say("width", width, defaults.width)} />
        <NumberField label="Layers" value={settings.layers} min={1} max={128} step={1} onChange={(layers) => say("layers", layers, defaults.layers)} />
        <NumberField label="Vocabulary" value={settings.vocab} min={1} max={2 ** 20} step={1} onChange={(vocab) => say("vocab", vocab, defaults.vocab)} />
        <OptionalNumber label="Longest text" value={settings.max_length} min={1} max={2 ** 20} otherwise="any" onChange={(value) => say("max_length", value, null)} />
      </div>
      {settings.kind !== "encoder" && <Check label="Head tied to the embeddings" value={settings.tied} onChange={(tied) => say("tied", tied, defaults.tied)} />}
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

function Attention({ choices: { attentions, defaults }, settings }: PartProps) {
  const plain = settings.kind !== "encoder_decoder";
  const more = settings.head_width !== null || settings.softcap !== null || settings.sinks || settings.bias;
  return (
    <Group title="Attention">
      <Select label="Kind of attention" value={settings.attention} options={attentions} onChange={(kind) => say("attention", kind, defaults.attention)} />
      <div class="bld-fields">
        <NumberField label="Heads" value={settings.heads} min={1} max={512} step={1} onChange={(heads) => say("heads", heads, defaults.heads)} />
        {settings.attention === "grouped-query" && (
          <OptionalNumber label="Key/value heads" value={settings.kv_heads} min={1} max={512} otherwise="as heads" onChange={(value) => say("kv_heads", value, null)} />
        )}
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
      <details class="bld-inner" open={more}>
        <summary>More</summary>
        <div class="stack">
          {plain && (
            <div class="bld-fields">
              <OptionalNumber label="Head width" value={settings.head_width} min={1} max={1024} otherwise="width / heads" onChange={(value) => say("head_width", value, null)} />
              <OptionalNumber label="Soft cap" value={settings.softcap} min={0.001} max={1000} whole={false} otherwise="none" onChange={(value) => say("softcap", value, null)} />
            </div>
          )}
          <div class="chips">
            <Check label="Biases" value={settings.bias} onChange={(bias) => say("bias", bias, defaults.bias)} />
            {plain && <Check label="Sinks" value={settings.sinks} onChange={(sinks) => say("sinks", sinks, defaults.sinks)} />}
          </div>
        </div>
      </details>
    </Group>
  );
}

function Pattern({ settings }: { settings: Settings }) {
  return (
    <Group title="Layer pattern">
      <div class="bld-fields">
        <OptionalNumber label="Window" value={settings.window} min={1} max={2 ** 20} otherwise="none" onChange={(value) => say("window", value, null)} />
        {settings.kind !== "encoder_decoder" && (
          <OptionalNumber label="Full every" value={settings.full_every} min={2} max={128} otherwise="none" onChange={(value) => say("full_every", value, null)} />
        )}
      </div>
      <p class="small muted">With a window each token sees so many before it. Every so many layers, one can see everything.</p>
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

function FeedForward({ choices: { ffns, defaults }, settings }: PartProps) {
  const { experts } = settings;
  return (
    <Group title="Feed-forward">
      <div class="bld-fields">
        <Select label="Function" value={settings.ffn} options={ffns} onChange={(ffn) => say("ffn", ffn, defaults.ffn)} />
        <OptionalNumber label="Hidden width" value={settings.hidden} min={1} max={2 ** 18} otherwise="as usual" onChange={(value) => say("hidden", value, null)} />
      </div>
      <Check label="A mixture of experts" value={experts !== null} onChange={(on) => say("moe", on, false)} />
      {experts && (
        <>
          <div class="bld-fields">
            <NumberField label="Experts" value={experts.count} min={1} max={64} step={1} onChange={(value) => say("experts", value, EXPERTS.count)} />
            <NumberField label="For each token" value={experts.k} min={1} max={64} step={1} onChange={(value) => say("of_experts", value, EXPERTS.k)} />
          </div>
          <Check label="And one for all tokens" value={experts.shared} onChange={(on) => say("shared", on, false)} />
        </>
      )}
    </Group>
  );
}

function Norms({ choices: { norms, wirings, defaults }, settings }: PartProps) {
  return (
    <Group title="Norm and wiring">
      <div class="bld-fields">
        <Select label="Norm" value={settings.norm} options={norms} onChange={(norm) => say("norm", norm, defaults.norm)} />
        <Select label="Wiring" value={settings.wiring} options={wirings} onChange={(wiring) => say("wiring", wiring, defaults.wiring)} />
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
