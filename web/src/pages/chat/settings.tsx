// How tokens are chosen, and whose attention is watched. All of it stands in the address.
import { Select, Slider, TextField } from "../../components/controls";
import { NumberField } from "../../components/numbers";
import { Card } from "../../components/state";
import { put, useParam } from "../../router";
import type { Model } from "../../types";
import type { Sampling } from "./store";

export interface Settings {
  sampling: Sampling;
  watch: number | "mean" | null;
  system: string;
}

const DEFAULTS = { temperature: 0.7, top_k: 0, top_p: 1, min_p: 0, seed: 0, max_tokens: 200 };

const SLIDERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, off: { at: 0, words: "0: greedy" } },
  { name: "top_p", label: "Top-p", min: 0.05, max: 1, step: 0.05, off: { at: 1, words: "off" } },
  { name: "top_k", label: "Top-k", min: 0, max: 100, step: 1, off: { at: 0, words: "off" } },
  { name: "min_p", label: "Min-p", min: 0, max: 0.5, step: 0.01, off: { at: 0, words: "off" } },
] as const;

export function useSettings(): Settings {
  const [temperature] = useParam("temperature", DEFAULTS.temperature);
  const [topK] = useParam("top_k", DEFAULTS.top_k);
  const [topP] = useParam("top_p", DEFAULTS.top_p);
  const [minP] = useParam("min_p", DEFAULTS.min_p);
  const [seed] = useParam("seed", DEFAULTS.seed);
  const [most] = useParam("max_tokens", DEFAULTS.max_tokens);
  const [watch] = useParam("watch", "mean");
  const [system] = useParam("system", "");
  return {
    sampling: {
      temperature,
      top_k: topK > 0 ? topK : null,
      top_p: topP < 1 ? topP : null,
      min_p: minP > 0 ? minP : null,
      seed,
      max_tokens: most,
    },
    watch: watch === "off" ? null : watch === "mean" ? "mean" : Number(watch),
    system,
  };
}

export function SettingsCard({ model, begun }: { model: Model | null; begun: boolean }) {
  const { sampling, system } = useSettings();
  const [watch] = useParam("watch", "mean");
  const set = (name: keyof typeof DEFAULTS) => (value: number) =>
    put({ [name]: value === DEFAULTS[name] ? null : value });
  const layers = Array.from({ length: model?.layers ?? 0 }, (_, layer) => ({
    value: String(layer),
    label: `Layer ${layer}`,
  }));
  return (
    <Card title="Settings">
      <div class="chat-settings">
        {SLIDERS.map(({ name, label, off, ...bounds }) => (
          <Slider
            key={name}
            label={label}
            value={sampling[name] ?? DEFAULTS[name]}
            {...bounds}
            onChange={set(name)}
            format={(value) => (value === off.at ? off.words : String(Number(value.toFixed(2))))}
          />
        ))}
        <NumberField
          label="Seed"
          value={sampling.seed ?? 0}
          min={0}
          max={4294967295}
          step={1}
          onChange={(n) => set("seed")(Math.round(n))}
        />
        <NumberField
          label="Maximum tokens"
          value={sampling.max_tokens}
          min={1}
          max={4096}
          step={1}
          onChange={(n) => set("max_tokens")(Math.round(n))}
        />
        <Select
          label="Show attention of"
          value={watch}
          options={[{ value: "mean", label: "all layers (mean)" }, ...layers, { value: "off", label: "none" }]}
          onChange={(value) => put({ watch: value === "mean" ? null : value })}
        />
      </div>
      {!begun && (
        <TextField
          label="System message"
          value={system}
          rows={2}
          placeholder="Empty: the model's default"
          onChange={(value) => put({ system: value || null })}
        />
      )}
    </Card>
  );
}
