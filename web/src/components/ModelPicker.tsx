// Which model a page works with. One that is not loaded is loaded when it is chosen; a failure is said in words.
import { useEffect, useState } from "preact/hooks";
import { Trouble } from "../api";
import { asTrouble } from "../hooks";
import { loadingModel, loadModel, modelNamed, models, modelsTrouble, refreshModels } from "../models";
import type { Model } from "../types";
import { Select } from "./controls";
import { Busy, Problem } from "./state";

export interface ModelPickerProps {
  /** The name, or "" for the default model. */
  value: string;
  onChange: (name: string) => void;
  label?: string;
  /** Which of the models may be chosen here; those of an unknown kind always may. */
  fits?: (model: Model) => boolean;
}

export function ModelPicker({ value, onChange, label = "Model", fits }: ModelPickerProps) {
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const known = models.value;
  const chosen = modelNamed(value);
  const load = (name: string) => {
    setTrouble(null);
    loadModel(name).catch((error: unknown) => setTrouble(asTrouble(error)));
  };
  useEffect(() => {
    if (!known) void refreshModels();
  }, []);
  useEffect(() => {
    setTrouble(null);
    if (chosen && !chosen.loaded && loadingModel.peek()?.name !== chosen.name) load(chosen.name);
  }, [chosen?.name, chosen?.loaded]);

  if (!known) {
    if (modelsTrouble.value) return <Problem trouble={modelsTrouble.value} retry={() => void refreshModels()} />;
    return <Busy words="Loading the list of models" since={performance.now()} />;
  }
  const name = value || known.default;
  const options = known.models.map((model) => {
    const unfit = model.kind !== null && fits !== undefined && !fits(model);
    const note = unfit ? ` (${model.kind})` : model.loaded ? "" : " (not loaded)";
    return { value: model.name, label: model.name + note, disabled: unfit };
  });
  if (!chosen) options.unshift({ value: name, label: `${name} (unknown)`, disabled: true });
  const loading = loadingModel.value;
  return (
    <div class="stack model-picker">
      <Select
        label={label}
        value={name}
        options={options}
        onChange={(next) => onChange(next === known.default ? "" : next)}
      />
      {loading && loading.name === name && <Busy words={`Loading ${name}`} since={loading.since} />}
      {trouble && <Problem trouble={trouble} retry={() => load(name)} />}
      {!chosen && (
        <Problem
          trouble={new Trouble("refused", `There is no model ${name} here.`, "Choose another one from the list.")}
        />
      )}
    </div>
  );
}

/** The chosen model when it is ready for use, else null. */
export function useModel(value: string): Model | null {
  useEffect(() => {
    if (!models.peek()) void refreshModels();
  }, []);
  const model = modelNamed(value);
  return model?.loaded ? model : null;
}
