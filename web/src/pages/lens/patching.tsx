// Two texts of as many tokens: the second read with one activation at a time from the first.
import { useState } from "preact/hooks";
import { Button, Select, TextField } from "../../components/controls";
import { ModelPicker, useModel } from "../../components/ModelPicker";
import { Card, Empty } from "../../components/state";
import { Term } from "../../components/Term";
import { useDraft } from "../../draft";
import type { PatchRequest, SweepAnswer } from "../../generated/api";
import { put, useParam } from "../../router";
import { useJob, Working } from "./job";
import { SweepMap } from "./sweep";
import { ONE_TOKEN, TEXT } from "./text";

const OTHER = "The capital of Italy is";
const ACTIVATIONS = [
  { value: "residual_before", label: "the residual stream, by position" },
  { value: "attention", label: "what attention adds, by position" },
  { value: "feed_forward", label: "what the feed-forward part adds, by position" },
  { value: "heads", label: "the heads" },
];

export function PatchingView() {
  const [name, setName] = useParam("model", "");
  const [linkedClean, setLinkedClean] = useParam("clean", TEXT);
  const [clean, setClean] = useDraft(linkedClean, setLinkedClean);
  const [linkedOther, setLinkedOther] = useParam("corrupted", OTHER);
  const [corrupted, setCorrupted] = useDraft(linkedOther, setLinkedOther);
  const [linkedTarget, setLinkedTarget] = useParam("for", clean === TEXT ? " Paris" : "");
  const [target, setTarget] = useDraft(linkedTarget, setLinkedTarget);
  const [linkedAgainst, setLinkedAgainst] = useParam("against", corrupted === OTHER ? " Rome" : "");
  const [against, setAgainst] = useDraft(linkedAgainst, setLinkedAgainst);
  const [activation, setActivation] = useParam("activation", "residual_before");
  const [linked] = useParam("patched", false);
  const [first] = useState(linked); // a link to a picture draws it; later the button does
  const model = useModel(name);
  const body: PatchRequest | null = model && {
    model: model.name,
    clean,
    corrupted,
    activation: (ACTIVATIONS.some((one) => one.value === activation) ? activation : "residual_before") as PatchRequest["activation"],
    target: target || null,
    against: (target && against) || null,
  };
  const [pressed, setPressed] = useState(false);
  const job = useJob<SweepAnswer>("/lens/patch", body, first && !pressed);
  const run = () => {
    setPressed(true);
    put({ patched: true });
    job.start();
  };
  return (
    <div class="stack wide">
      <Card title="Two texts">
        <div class="lens-pair">
          <TextField label="First text" rows={2} value={clean} onChange={setClean} onSubmit={run} help="The source: its activations are copied into the second." />
          <TextField label="Second text" rows={2} value={corrupted} onChange={setCorrupted} onSubmit={run} help="The target. As many tokens as the first, at most 128." />
          <TextField label="Answer to the first" value={target} onChange={setTarget} placeholder="the best guess" help={ONE_TOKEN} />
          <TextField label="Answer to the second" value={against} onChange={setAgainst} placeholder="none: its log-probability" help={ONE_TOKEN} disabled={!target} />
          <Select label="Activation" value={body?.activation ?? "residual_before"} options={ACTIVATIONS} onChange={setActivation} />
          <ModelPicker value={name} onChange={setName} fits={(one) => one.kind === "decoder"} />
        </div>
        <div class="row">
          <Button look="main" disabled={!model || job.since !== null || !clean.trim() || !corrupted.trim()} onClick={run}>
            Patch
          </Button>
          <span class="small muted">
            <Term name="Patching" /> in every layer: seconds for short texts.
          </span>
        </div>
        <Working job={job} words="Patching" />
      </Card>
      {job.data ? (
        <Card title="Which activations carry the difference">
          <SweepMap data={job.data} stale={job.stale} what="1: this activation alone brings the second text to the first one's answer. 0: it changes nothing." />
        </Card>
      ) : (
        job.since === null && !job.trouble && <Empty>Press Patch to see a map over layers and positions.</Empty>
      )}
    </div>
  );
}
