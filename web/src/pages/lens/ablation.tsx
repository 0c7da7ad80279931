// A head or a layer taken away: how the model goes on with the text, before and after; and every head in turn.
import { Button, Select, Slider, TextField } from "../../components/controls";
import { useModel } from "../../components/ModelPicker";
import { Card, Facts } from "../../components/state";
import { Term } from "../../components/Term";
import type { AblateHeadsRequest, AblateRequest, AblationAnswer, SweepAnswer } from "../../generated/api";
import { percent } from "../../lib/numbers";
import { visible } from "../../lib/tokens";
import { useDraft } from "../../draft";
import { put, useParam } from "../../router";
import { useJob, Working } from "./job";
import { SweepMap } from "./sweep";
import { ONE_TOKEN, TextCard, useText } from "./text";

const PARTS = [
  { value: "head", label: "a head" },
  { value: "attention", label: "the attention of a layer" },
  { value: "feed_forward", label: "the feed-forward part of a layer" },
  { value: "layer", label: "a whole layer" },
];
const WAYS = [
  { value: "zero", label: "nothing (0)" },
  { value: "mean", label: "its mean over the text" },
];

const one = <T extends string>(options: { value: string }[], value: string): T =>
  (options.some((option) => option.value === value) ? value : (options[0]?.value ?? "")) as T;

export function AblationView() {
  const [name] = useParam("model", "");
  const text = useText();
  const [askedPart, setPart] = useParam("part", "head");
  const [askedLayer, setLayer] = useParam("layer", 0);
  const [askedHead, setHead] = useParam("head", 0);
  const [askedHow, setHow] = useParam("how", "zero");
  const [tokens, setTokens] = useParam("tokens", 12);
  const model = useModel(name);
  const last = { layer: (model?.layers ?? 1) - 1, head: (model?.heads ?? 1) - 1 };
  const part = one<AblateRequest["part"]>(PARTS, askedPart);
  const how = one<NonNullable<AblateRequest["how"]>>(WAYS, askedHow);
  const layer = Math.min(Math.max(0, askedLayer), last.layer);
  const head = Math.min(Math.max(0, askedHead), last.head);
  const body: AblateRequest | null = model && { model: model.name, text, part, layer, head: part === "head" ? head : 0, how, tokens };
  const job = useJob<AblationAnswer>("/lens/ablate", body, true);
  return (
    <div class="stack wide">
      <TextCard target={false} />
      <div class="grid side">
        <Card title="What to ablate">
          <Select label="Part" value={part} options={PARTS} onChange={setPart} />
          <Slider label="Layer" value={layer} min={0} max={last.layer} onChange={setLayer} />
          {part === "head" && <Slider label="Head" value={head} min={0} max={last.head} onChange={setHead} />}
          <Select label="Replace with" value={how} options={WAYS} onChange={setHow} />
          <Slider label="Tokens to write" value={tokens} min={1} max={64} onChange={setTokens} />
          <p class="small muted">
            <Term name="Ablation" /> holds for every token that is read and written.
          </p>
        </Card>
        <Card title="Before and after">
          <Working job={job} words="Generating" again="Continue" />
          {job.data && <Result data={job.data} />}
        </Card>
      </div>
      {model && <EveryHead model={model.name} text={text} how={how} choose={(at) => put({ part: null, layer: at.layer || null, head: at.cell || null })} />}
    </div>
  );
}

function Result({ data }: { data: AblationAnswer }) {
  return (
    <>
      <div class="lens-answers">
        {(["before", "after"] as const).map((which) => (
          <div key={which} class="stack">
            <h3>{which === "before" ? "Unchanged" : `Without ${data.part}`}</h3>
            <blockquote data-answer={which}>{data[which].trim() || "(nothing: it stopped at once)"}</blockquote>
          </div>
        ))}
      </div>
      <Facts facts={[{ name: "probability moved to other next tokens", value: percent(data.moved) }]} />
      <div class="scroll lens-steps" tabIndex={0} role="region" aria-label="Next token, before and after">
        <table>
          <thead>
            <tr>
              <th scope="col">next token</th>
              <th scope="col" class="number">before</th>
              <th scope="col" class="number">after</th>
            </tr>
          </thead>
          <tbody>
            {data.candidates.map((candidate) => (
              <tr key={candidate.text}>
                <th scope="row" class="mono">{visible(candidate.text)}</th>
                <td class="number">{percent(candidate.before)}</td>
                <td class="number">{percent(candidate.after)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

interface EveryHeadProps {
  model: string;
  text: string;
  how: NonNullable<AblateRequest["how"]>;
  choose: (at: { layer: number; cell: number }) => void;
}

function EveryHead({ model, text, how, choose }: EveryHeadProps) {
  const [linkedTarget, setLinkedTarget] = useParam("target", "");
  const [target, setTarget] = useDraft(linkedTarget, setLinkedTarget, (next) => next);
  const body: AblateHeadsRequest = { model, text, how, target: target || null };
  const job = useJob<SweepAnswer>("/lens/ablate/heads", body, false);
  return (
    <Card title="Every head in turn">
      <div class="row end">
        <TextField label="Token to measure" value={target} onChange={setTarget} placeholder="the best guess" help={ONE_TOKEN} />
        <Button look="main" disabled={job.since !== null} onClick={job.start}>
          Try every head
        </Button>
      </div>
      <Working job={job} words="Ablating one head after another" />
      {job.data && <SweepMap data={job.data} stale={job.stale} choose={choose} what="Choose a head to see what the model writes without it." />}
    </Card>
  );
}
