// The same model with another encoding, beside its own.
import { useState } from "preact/hooks";
import {
  type Chosen,
  EncodingSelect,
  EncodingValues,
  type Place,
  useChosen,
  useEncodings,
} from "../../components/EncodingPicker";
import { Busy, Card, Problem } from "../../components/state";
import { valuesText } from "../../lib/encoding";
import type { Encoding } from "../../types";
import { SideCard } from "./card";
import { type Side, useSide } from "./side";

const PLACE: Place = { name: "b_encoding", values: "b_p", fallback: "alibi" };

interface Shared {
  text: string;
  source: string;
  view: string;
}

export function OtherEncoding(shared: Shared) {
  const answer = useEncodings();
  if (answer.data) return <Encoded encodings={answer.data.encodings} {...shared} />;
  return (
    <Card title="Right: another encoding">
      {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
      {answer.since !== null && <Busy words="Loading the encodings" since={answer.since} />}
    </Card>
  );
}

function Encoded({ encodings, text, source, view }: { encodings: Encoding[] } & Shared) {
  const chosen = useChosen(encodings, PLACE);
  const { name, title } = chosen.encoding;
  const asked = { name, title, values: chosen.values, swapped: true, untrained: false, same: false };
  const side = useSide("b_", text, source, { asked });
  return (
    <SideCard
      side={side}
      view={view}
      name="Right"
      pick={<EncodingSelect encodings={encodings} chosen={chosen} />}
    >
      <About key={name} chosen={chosen} />
      {side.encoding?.untrained && (
        <p class="note small">
          This encoding has weights of its own, which the model has never trained. The picture
          says what they do untrained.
        </p>
      )}
      {side.encoding?.same && <p class="note small">This is the model's own encoding: both sides are the same.</p>}
    </SideCard>
  );
}

function About({ chosen }: { chosen: Chosen }) {
  const { about, parameters } = chosen.encoding;
  const [open] = useState(Object.keys(chosen.values).length > 0); // as the link says; later, as the reader likes
  return (
    <details class="att-about" open={open}>
      <summary class="small">{parameters.length ? "Description and parameters" : "Description"}</summary>
      <div class="stack">
        <p class="small muted">{about}</p>
        <EncodingValues chosen={chosen} />
      </div>
    </details>
  );
}

/** What stands at the left: the encoding that the model has. */
export function OwnEncoding({ side }: { side: Side }) {
  const { encoding } = side;
  if (!encoding) return null;
  const values = valuesText(encoding.values);
  return (
    <p class="small">
      Its own encoding: <b>{encoding.title}</b>
      {values && <span class="muted">, {values}</span>}
    </p>
  );
}
