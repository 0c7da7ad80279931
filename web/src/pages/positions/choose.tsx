// The encoding and its parameters, as they stand in the address. The gallery and the swap share them.
import { Button, Parameters, Select } from "../../components/controls";
import { valuesGone, valuesIn, valuesPatch } from "../../lib/values";
import { put, route } from "../../router";
import type { Value } from "../../types";
import type { Encoding } from "../positions";

export interface Chosen {
  encoding: Encoding;
  /** Only what is not as it comes. */
  values: Record<string, Value>;
  known: boolean;
}

export function useChosen(encodings: Encoding[], fallback = "rope"): Chosen {
  const { params } = route.value;
  const name = params["encoding"] ?? fallback;
  const found = encodings.find((one) => one.name === name);
  const encoding = found ?? encodings.find((one) => one.name === fallback) ?? encodings[0];
  if (!encoding) throw new Error("the server offers no encoding");
  return { encoding, values: valuesIn(encoding.parameters, params), known: found !== undefined || name === fallback };
}

export const chooseEncoding = (name: string, fallback = "rope"): void =>
  put({ ...valuesGone(route.peek().params), encoding: name === fallback ? null : name });

export function EncodingControls({ encodings, chosen }: { encodings: Encoding[]; chosen: Chosen }) {
  const { encoding, values } = chosen;
  const changed = Object.keys(values).length > 0;
  return (
    <div class="stack">
      <Select
        label="Encoding"
        value={encoding.name}
        options={encodings.map((one) => ({ value: one.name, label: one.title }))}
        onChange={(name) => chooseEncoding(name)}
        help={encoding.about}
      />
      {!chosen.known && <p class="wrong-note" role="alert">The address names an encoding that is not here; this one is shown instead.</p>}
      <Parameters key={encoding.name} parameters={encoding.parameters} values={values} onChange={(next) => put(valuesPatch(encoding.parameters, next))} />
      {changed && (
        <div class="row">
          <Button little onClick={() => put(valuesGone(route.peek().params))}>
            As it comes
          </Button>
        </div>
      )}
    </div>
  );
}
