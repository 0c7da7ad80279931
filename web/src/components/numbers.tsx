// Numbers of another kind: over many sizes, with a slider by ratio; and ones that may be left out.
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { show } from "../lib/numbers";
import { rounded } from "../lib/values";
import { Field } from "./controls";

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
export function WideNumber({ label, value, min, max, whole = false, onChange, help, disabled }: WideNumberProps) {
  const id = useId();
  const [text, setText] = useState(String(value));
  const last = useRef(value);
  useEffect(() => {
    if (value !== last.current) setText(String(value));
    last.current = value;
  }, [value]);
  const read = Number(text);
  const wrong = problem(text, read, min, max);
  const at = Math.round((Math.log(Math.min(max, Math.max(min, value)) / min) / Math.log(max / min)) * STEPS);
  const slide = (place: number) => {
    const next = Math.min(max, Math.max(min, rounded(min * (max / min) ** (place / STEPS), whole)));
    last.current = next;
    setText(String(next));
    onChange(next);
  };
  return (
    <Field label={label} help={help} wrong={wrong} id={id}>
      <input
        id={id}
        class="input numeric"
        type="number"
        inputMode="decimal"
        min={min}
        max={max}
        step={whole ? 1 : "any"}
        value={text}
        disabled={disabled}
        aria-invalid={wrong !== null}
        aria-describedby={help ? `${id}-help` : undefined}
        onInput={(event) => {
          const next = event.currentTarget.value;
          setText(next);
          if (problem(next, Number(next), min, max) !== null) return;
          last.current = Number(next);
          onChange(Number(next));
        }}
      />
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
    </Field>
  );
}

function problem(text: string, read: number, min: number, max: number, whole = false): string | null {
  if (text.trim() === "" || !Number.isFinite(read)) return "A number is needed here.";
  if (whole && !Number.isInteger(read)) return "A whole number is needed here.";
  if (read < min) return `At least ${show(min)}.`;
  return read > max ? `At most ${show(max)}.` : null;
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
  const [text, setText] = useState(value === null ? "" : String(value));
  const last = useRef(value);
  useEffect(() => {
    if (value !== last.current) setText(value === null ? "" : String(value));
    last.current = value;
  }, [value]);
  const wrong = text.trim() === "" ? null : problem(text, Number(text), min, max, whole);
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
          setText(next);
          const empty = next.trim() === "";
          if (!empty && problem(next, Number(next), min, max, whole) !== null) return;
          last.current = empty ? null : Number(next);
          onChange(last.current);
        }}
      />
    </Field>
  );
}
