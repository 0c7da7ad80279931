// Numbers to type: plain ones; ones over many sizes, with a slider by ratio; and ones that may be left out.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { show } from "../lib/numbers";
import { rounded } from "../lib/values";
import { Field } from "./controls";

/** What a number may be; a side without a bound is open. */
interface Bounds {
  min?: number;
  max?: number;
  whole?: boolean;
}

function problem(text: string, { min = -Infinity, max = Infinity, whole = false }: Bounds): string | null {
  const read = Number(text);
  if (text.trim() === "" || !Number.isFinite(read)) return "A number is needed here.";
  if (whole && !Number.isInteger(read)) return "A whole number is needed here.";
  if (read < min) return `At least ${show(min)}.`;
  return read > max ? `At most ${show(max)}.` : null;
}

const written = (value: number | null): string => (value === null ? "" : String(value));

/** The text of a number while somebody types it. A value from elsewhere replaces it; the value that was read from the
 * text does not, so that what is typed stays as it is typed. */
function useNumberText(value: number | null) {
  const [text, setText] = useState(written(value));
  const last = useRef(value);
  useEffect(() => {
    if (value !== last.current) setText(written(value));
    last.current = value;
  }, [value]);
  const take = (next: number | null, typed: string) => {
    last.current = next;
    setText(typed);
  };
  return { text, setText, take };
}

export interface NumberFieldProps {
  label: string;
  value: number;
  onChange: (value: number) => void;
  min?: number;
  max?: number;
  step?: number | "any";
  help?: string;
  disabled?: boolean;
}

/** A number to type. What is no number, or out of its bounds, is said beneath it and not handed on. */
export function NumberField(props: NumberFieldProps) {
  return <TypedNumber {...props} typed={useNumberText(props.value)} />;
}

interface TypedNumberProps extends NumberFieldProps {
  typed: ReturnType<typeof useNumberText>;
  children?: ComponentChildren;
}

function TypedNumber({ label, onChange, min, max, step = "any", help, disabled, typed, children }: TypedNumberProps) {
  const id = useId();
  const wrong = problem(typed.text, { min, max });
  return (
    <Field label={label} help={help} wrong={wrong} id={id}>
      <input
        id={id}
        class="input numeric"
        type="number"
        inputMode="decimal"
        min={min}
        max={max}
        step={step}
        value={typed.text}
        disabled={disabled}
        aria-invalid={wrong !== null}
        aria-describedby={help ? `${id}-help` : undefined}
        onInput={(event) => {
          const next = event.currentTarget.value;
          if (problem(next, { min, max }) !== null) return typed.setText(next);
          typed.take(Number(next), next);
          onChange(Number(next));
        }}
      />
      {children}
    </Field>
  );
}

export interface WideNumberProps {
  label: string;
  value: number;
  min: number;
  max: number;
  /** The slider stops at whole numbers. What is typed is for the server to judge. */
  whole?: boolean;
  onChange: (value: number) => void;
  help?: string;
  disabled?: boolean;
}

const STEPS = 240;

/** A number to type, and under it a slider that goes from the least to the most in equal ratios. */
export function WideNumber({ whole = false, ...props }: WideNumberProps) {
  const { label, value, min, max, onChange, disabled } = props;
  const typed = useNumberText(value);
  const at = Math.round((Math.log(Math.min(max, Math.max(min, value)) / min) / Math.log(max / min)) * STEPS);
  const slide = (place: number) => {
    const next = Math.min(max, Math.max(min, rounded(min * (max / min) ** (place / STEPS), whole)));
    typed.take(next, String(next));
    onChange(next);
  };
  return (
    <TypedNumber {...props} step={whole ? 1 : "any"} typed={typed}>
      <input
        type="range"
        min={0}
        max={STEPS}
        step={1}
        value={at}
        disabled={disabled}
        aria-label={`${label}, slider`}
        aria-valuetext={show(value)}
        onInput={(event) => slide(event.currentTarget.valueAsNumber)}
      />
    </TypedNumber>
  );
}

export interface OptionalNumberProps {
  label: string;
  /** Empty: none. */
  value: number | null;
  onChange: (value: number | null) => void;
  min: number;
  max: number;
  whole?: boolean;
  /** What holds where nothing is written. */
  otherwise: string;
  help?: string;
}

export function OptionalNumber({
  label,
  value,
  onChange,
  min,
  max,
  whole = true,
  otherwise,
  help,
}: OptionalNumberProps) {
  const id = useId();
  const { text, setText, take } = useNumberText(value);
  const problemOf = (typed: string) => (typed.trim() === "" ? null : problem(typed, { min, max, whole }));
  const wrong = problemOf(text);
  return (
    <Field label={label} help={help} wrong={wrong} id={id}>
      <input
        id={id}
        class="input numeric"
        inputMode="decimal"
        placeholder={otherwise}
        value={text}
        aria-invalid={wrong !== null}
        aria-describedby={help ? `${id}-help` : undefined}
        onInput={(event) => {
          const next = event.currentTarget.value;
          if (problemOf(next) !== null) return setText(next);
          const number = next.trim() === "" ? null : Number(next);
          take(number, next);
          onChange(number);
        }}
      />
    </Field>
  );
}
