// Another encoding on the model that runs: its perplexity and what it says, before and after.
import { useState } from "preact/hooks";
import { get, post } from "../../api";
import { Button, Slider, TextField } from "../../components/controls";
import { choosing, EncodingControls, useChosen } from "../../components/EncodingPicker";
import { Figure } from "../../components/Figure";
import { ModelPicker, useModel } from "../../components/ModelPicker";
import { Busy, Card, Empty, Facts, Problem } from "../../components/state";
import { useDraft } from "../../draft";
import { useAnswer } from "../../hooks";
import { valuesText } from "../../lib/encoding";
import { show } from "../../lib/numbers";
import { valuesPatch } from "../../lib/values";
import { put, useParam } from "../../router";
import type { EncodingSwapAnswer, ModelEncoding } from "../../generated/api";
import type { Encoding } from "../../types";

const TEXT =
  "The lighthouse stood at the end of a long stone pier. Every evening an old woman walked out to it, lit the lamp, and walked home again before the tide came in. " +
  "Fishermen said that she had never missed a night, not even in the great storm, when waves broke over the pier and no boat dared to leave the harbour. " +
  "One evening a boy from the village followed her, because he wanted to know what she did in the tower when";

export function SwapView({ encodings }: { encodings: Encoding[] }) {
  const [name, setName] = useParam("model", "");
  const [linkedText, setLinkedText] = useParam("swap_text", TEXT);
  const [text, setText] = useDraft(linkedText, setLinkedText);
  const [tokens, setTokens] = useParam("tokens", 24);
  const [linked] = useParam("swapped", false);
  const model = useModel(name);
  const chosen = useChosen(encodings);
  const body = { model: model?.name, text, position: { name: chosen.encoding.name, values: chosen.values }, tokens };
  const now = JSON.stringify(body);
  const [pressed, setPressed] = useState<string | null>(null);
  const asked = pressed ?? (linked && model ? now : null);
  const answer = useAnswer(asked, (signal) => post<EncodingSwapAnswer>("/positions/swap", JSON.parse(asked ?? "{}"), { signal, seconds: 240 }));
  const stale = asked !== null && asked !== now;
  const swap = () => {
    put({ swapped: true });
    setPressed(now);
    if (asked === now) answer.retry();
  };
  return (
    <div class="grid side">
      <div class="stack">
        <Card title="Put into">
          <ModelPicker value={name} onChange={setName} fits={(one) => one.kind === "decoder"} />
          {model && <OwnEncoding model={model.name} encodings={encodings} />}
        </Card>
        <Card title="New encoding">
          <EncodingControls encodings={encodings} chosen={chosen} />
        </Card>
      </div>
      <div class="stack">
        <Card title="Measured on">
          <TextField label="Text" value={text} rows={4} onChange={setText} help="16 to 1,024 tokens. Its perplexity is measured, and the model goes on with it." />
          <Slider label="Tokens to write" value={tokens} min={1} max={128} onChange={setTokens} />
          <div class="row">
            <Button look="main" disabled={!model || answer.since !== null || !text.trim()} onClick={swap}>
              Swap
            </Button>
            {answer.since !== null && <Busy words="Measuring before and after" since={answer.since} />}
            {stale && answer.data && answer.since === null && <span class="small muted">The result below is from before your last change.</span>}
          </div>
        </Card>
        {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
        {answer.data ? <Result found={answer.data} /> : answer.since === null && !answer.trouble && <Empty>Choose an encoding and press Swap to see perplexity and text before and after.</Empty>}
      </div>
    </div>
  );
}

function OwnEncoding({ model, encodings }: { model: string; encodings: Encoding[] }) {
  const answer = useAnswer(model, (signal) => get<ModelEncoding>(`/positions/of/${encodeURIComponent(model)}`, { signal, seconds: 120 }));
  const own = answer.data?.position;
  const encoding = encodings.find((one) => one.name === own?.name);
  const begin = () => {
    if (!own || !encoding) return;
    put({ ...choosing(own.name), ...valuesPatch(encoding.parameters, own.values) });
  };
  if (answer.trouble) return <Problem trouble={answer.trouble} retry={answer.retry} />;
  if (!answer.data) return null;
  if (!own || !encoding) return <p class="small muted">The model's own encoding is not in this list.</p>;
  const values = valuesText(own.values);
  return (
    <>
      <p class="small">
        Its own: <b>{encoding.title}</b>
        {values && <span class="muted">, {values}</span>}
      </p>
      <div class="row">
        <Button little onClick={begin}>
          Start from its own
        </Button>
      </div>
    </>
  );
}

function Result({ found }: { found: EncodingSwapAnswer }) {
  const { before, after } = found.perplexity;
  return (
    <Card title="Before and after">
      {found.untrained && <p class="note small">This encoding has weights of its own, which the model has never trained. The result shows them untrained.</p>}
      <Facts
        facts={[
          { name: "perplexity before", value: show(before) },
          { name: "perplexity after", value: show(after) },
          { name: "ratio", value: show(after / before) },
          { name: "tokens read", value: show(found.tokens) },
        ]}
      />
      <div class="pos-said">
        {(["before", "after"] as const).map((which) => (
          <div key={which} class="stack">
            <h3>{which === "before" ? "It goes on, before" : "It goes on, after"}</h3>
            <blockquote data-said={which}>{found.text[which].trim() || "(nothing: it stopped at once)"}</blockquote>
          </div>
        ))}
      </div>
      <Figure figure={found.over_position} />
    </Card>
  );
}
