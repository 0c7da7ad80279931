// The controls every page uses: a label for each, a visible focus, nothing that only a mouse can reach.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import type { Parameter, Value } from "../types";
import { show } from "../lib/numbers";
import { explained, TERMS } from "../terms";
import { NumberField, WideNumber } from "./numbers";

export interface ButtonProps {
  children: ComponentChildren;
  onClick?: () => void;
  look?: "main" | "plain" | "quiet";
  little?: boolean;
  disabled?: boolean;
  pressed?: boolean;
  submit?: boolean;
  label?: string;
  title?: string;
}

export function Button({
  children,
  onClick,
  look = "plain",
  little,
  disabled,
  pressed,
  submit,
  label,
  title,
}: ButtonProps) {
  return (
    <button
      type={submit ? "submit" : "button"}
      class={`button ${look} ${little ? "little" : ""}`}
      onClick={onClick}
      disabled={disabled}
      aria-pressed={pressed}
      aria-label={label}
      title={title ?? label}
    >
      {children}
    </button>
  );
}

export interface FieldProps {
  label: string;
  help?: string;
  wrong?: string | null;
  /** Stands at the right of the label: a value, a count. */
  beside?: ComponentChildren;
  id: string;
  children: ComponentChildren;
}

/** A label over a control of yours; the control takes the same `id` and `aria-describedby={id + "-help"}`. */
export function Field({ label, help, wrong, beside, id, children }: FieldProps) {
  return (
    <div class="field">
      <div class="label">
        <label for={id} title={explained(label)} class={TERMS[label] ? "explained" : undefined}>
          {label}
        </label>
        {beside !== undefined && <span class="muted numeric">{beside}</span>}
      </div>
      {children}
      {help && (
        <div class="help" id={`${id}-help`}>
          {help}
        </div>
      )}
      {wrong && (
        <div class="wrong" role="alert">
          {wrong}
        </div>
      )}
    </div>
  );
}

export interface SelectProps {
  label: string;
  value: string;
  options: (string | { value: string; label: string; disabled?: boolean })[];
  onChange: (value: string) => void;
  help?: string;
  disabled?: boolean;
}

export function Select({ label, value, options, onChange, help, disabled }: SelectProps) {
  const id = useId();
  return (
    <Field label={label} help={help} id={id}>
      <select
        id={id}
        class="select"
        value={value}
        disabled={disabled}
        aria-describedby={help ? `${id}-help` : undefined}
        onChange={(event) => onChange(event.currentTarget.value)}
      >
        {options.map((option) => {
          const entry = typeof option === "string" ? { value: option, label: option } : option;
          return (
            <option
              key={entry.value}
              value={entry.value}
              disabled={"disabled" in entry && entry.disabled}
              selected={entry.value === value}
            >
              {entry.label}
            </option>
          );
        })}
      </select>
    </Field>
  );
}

export interface SliderProps {
  label: string;
  value: number;
  min: number;
  max: number;
  step?: number;
  onChange: (value: number) => void;
  help?: string;
  format?: (value: number) => string;
  disabled?: boolean;
}

export function Slider({ label, value, min, max, step = 1, onChange, help, format = show, disabled }: SliderProps) {
  const id = useId();
  return (
    <Field label={label} help={help} id={id} beside={format(value)}>
      <input
        id={id}
        type="range"
        min={min}
        max={max}
        step={step}
        value={value}
        disabled={disabled}
        aria-valuetext={format(value)}
        aria-describedby={help ? `${id}-help` : undefined}
        onInput={(event) => onChange(event.currentTarget.valueAsNumber)}
      />
    </Field>
  );
}

export interface TextFieldProps {
  label: string;
  value: string;
  onChange: (value: string) => void;
  placeholder?: string;
  help?: string;
  rows?: number;
  disabled?: boolean;
  mono?: boolean;
  /** What is wrong with what was written. */
  wrong?: string | null;
  /** Ctrl+Enter (or Enter, where there is one row). */
  onSubmit?: () => void;
}

export function TextField({
  label,
  value,
  onChange,
  placeholder,
  help,
  rows = 1,
  disabled,
  mono,
  wrong = null,
  onSubmit,
}: TextFieldProps) {
  const id = useId();
  const shared = {
    id,
    value,
    placeholder,
    disabled,
    "aria-invalid": wrong !== null,
    "aria-describedby": help ? `${id}-help` : undefined,
    onKeyDown: (event: KeyboardEvent) => {
      if (onSubmit && event.key === "Enter" && (rows === 1 || event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        onSubmit();
      }
    },
  };
  const style = mono ? { fontFamily: "var(--mono)", fontSize: "var(--small)" } : undefined;
  return (
    <Field label={label} help={help} wrong={wrong} id={id}>
      {rows === 1 ? (
        <input {...shared} class="input" style={style} onInput={(event) => onChange(event.currentTarget.value)} />
      ) : (
        <textarea
          {...shared}
          class="area"
          style={style}
          rows={rows}
          onInput={(event) => onChange(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

export function Check({
  label,
  value,
  onChange,
  disabled,
  title,
}: {
  label: string;
  value: boolean;
  onChange: (value: boolean) => void;
  disabled?: boolean;
  /** What it is, when the pointer rests on it. */
  title?: string;
}) {
  return (
    <label class="check" title={title}>
      <input
        type="checkbox"
        checked={value}
        disabled={disabled}
        onChange={(event) => onChange(event.currentTarget.checked)}
      />
      {label}
    </label>
  );
}

export interface TabsProps {
  label: string;
  tabs: { id: string; label: string }[];
  value: string;
  onChange: (id: string) => void;
  /** What the chosen tab shows. */
  children: ComponentChildren;
}

/** Arrow keys go from tab to tab. */
export function Tabs({ label, tabs, value, onChange, children }: TabsProps) {
  const base = useId();
  const strip = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // Where the tabs do not all fit, the chosen one is in sight.
    const tab = strip.current?.children[tabs.findIndex((one) => one.id === value)] as HTMLElement | undefined;
    if (!tab || !strip.current) return;
    const { left, right } = strip.current.getBoundingClientRect();
    const box = tab.getBoundingClientRect();
    if (box.left < left) strip.current.scrollLeft -= left - box.left;
    else if (box.right > right) strip.current.scrollLeft += box.right - right;
  }, [value]);
  const step = (event: KeyboardEvent) => {
    const at = tabs.findIndex((tab) => tab.id === value);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const index = (to + tabs.length) % tabs.length;
    const next = tabs[index];
    if (!next) return;
    onChange(next.id);
    (strip.current?.children[index] as HTMLElement | undefined)?.focus();
  };
  return (
    <div class="stack">
      <div class="tabs" role="tablist" aria-label={label} ref={strip} onKeyDown={step}>
        {tabs.map((tab) => (
          <button
            key={tab.id}
            type="button"
            role="tab"
            id={`${base}-${tab.id}`}
            aria-selected={tab.id === value}
            aria-controls={`${base}-panel`}
            tabIndex={tab.id === value ? 0 : -1}
            onClick={() => onChange(tab.id)}
          >
            {tab.label}
          </button>
        ))}
      </div>
      <div class="stack" role="tabpanel" id={`${base}-panel`} aria-labelledby={`${base}-${value}`}>
        {children}
      </div>
    </div>
  );
}

export interface ParametersProps {
  parameters: Parameter[];
  values: Record<string, Value>;
  onChange: (values: Record<string, Value>) => void;
  disabled?: boolean;
}

/** Controls for the parameters of a study or an encoding: a list for choices, a slider for a range, else a number. */
export function Parameters({ parameters, values, onChange, disabled }: ParametersProps) {
  return (
    <div class="stack">
      {parameters.map((parameter) => {
        const value = values[parameter.name] ?? parameter.default;
        const set = (next: Value) => onChange({ ...values, [parameter.name]: next });
        const shared = {
          key: parameter.name,
          label: parameter.name.replaceAll("_", " "),
          help: parameter.help,
          disabled,
        };
        if (parameter.choices.length) {
          return <Select {...shared} value={String(value)} options={parameter.choices} onChange={set} />;
        }
        if (typeof parameter.default === "string")
          return <TextField {...shared} value={String(value)} onChange={set} />;
        const { low, high } = parameter;
        const whole = Number.isInteger(parameter.default) && Number.isInteger(low ?? 0) && Number.isInteger(high ?? 0);
        if (low !== null && high !== null && low > 0 && high / low > 200 && high > 100) {
          return <WideNumber {...shared} value={Number(value)} min={low} max={high} whole={whole} onChange={set} />;
        }
        if (low !== null && high !== null && high - low <= (whole ? 512 : 100)) {
          const step = whole ? 1 : (high - low) / 200;
          return <Slider {...shared} value={Number(value)} min={low} max={high} step={step} onChange={set} />;
        }
        return (
          <NumberField
            {...shared}
            value={Number(value)}
            min={low ?? undefined}
            max={high ?? undefined}
            step={whole ? 1 : "any"}
            onChange={set}
          />
        );
      })}
    </div>
  );
}
