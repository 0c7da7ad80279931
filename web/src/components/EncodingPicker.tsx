// The encodings there are, and the one that was chosen with its parameters, as they stand in the address.
import { get } from "../api";
import { type Answer, useAnswer } from "../hooks";
import { valuesGone, valuesIn, valuesPatch } from "../lib/values";
import { put, route } from "../router";
import type { EncodingList } from "../generated/api";
import type { Encoding, Value } from "../types";
import { Button, Parameters, Select } from "./controls";

export interface Chosen {
  encoding: Encoding;
  /** Only what is not as it comes. */
  values: Record<string, Value>;
  known: boolean;
  place: Place;
}

/** What the address calls them: the encoding's name, what its values begin with, and the one that needs no name. */
export interface Place {
  name: string;
  values: string;
  fallback: string;
}

const HERE: Place = { name: "encoding", values: "p", fallback: "rope" };

export const useEncodings = (): Answer<EncodingList> =>
  useAnswer("positions", (signal) => get("/positions", { signal }));

export function useChosen(encodings: Encoding[], place = HERE): Chosen {
  const { params } = route.value;
  const name = params[place.name] ?? place.fallback;
  const found = encodings.find((one) => one.name === name);
  const encoding = found ?? encodings.find((one) => one.name === place.fallback) ?? encodings[0];
  if (!encoding) throw new Error("the server offers no encoding");
  const values = valuesIn(encoding.parameters, params, place.values);
  return { encoding, values, known: found !== undefined || name === place.fallback, place };
}

/** The changes to the address that choose an encoding, as it comes. */
export const choosing = (name: string, place = HERE): Record<string, string | null> => ({
  ...valuesGone(route.peek().params, place.values),
  [place.name]: name === place.fallback ? null : name,
});

interface PickerProps {
  encodings: Encoding[];
  chosen: Chosen;
  /** Says what the encoding is, beneath it. */
  about?: boolean;
}

export function EncodingSelect({ encodings, chosen, about = false }: PickerProps) {
  return (
    <div class="stack">
      <Select
        label="Encoding"
        value={chosen.encoding.name}
        options={encodings.map((one) => ({ value: one.name, label: one.title }))}
        onChange={(name) => put(choosing(name, chosen.place))}
        help={about ? chosen.encoding.about : undefined}
      />
      {!chosen.known && (
        <p class="wrong-note" role="alert">
          The address names an unknown encoding; this one is shown instead.
        </p>
      )}
    </div>
  );
}

export function EncodingValues({ chosen: { encoding, values, place } }: { chosen: Chosen }) {
  return (
    <>
      <Parameters
        key={encoding.name}
        parameters={encoding.parameters}
        values={values}
        onChange={(next) => put(valuesPatch(encoding.parameters, next, place.values))}
      />
      {Object.keys(values).length > 0 && (
        <div class="row">
          <Button little onClick={() => put(valuesGone(route.peek().params, place.values))}>
            Reset
          </Button>
        </div>
      )}
    </>
  );
}

export function EncodingControls(props: PickerProps) {
  return (
    <div class="stack">
      <EncodingSelect {...props} about />
      <EncodingValues chosen={props.chosen} />
    </div>
  );
}
