// One token's vector through the layers: what attention, feed-forward parts and heads added to it.
import type { ComponentChildren } from "preact";
import { Figure } from "../../components/Figure";
import { Card } from "../../components/state";
import { Term } from "../../components/Term";
import type { VectorAnswer, VectorStep } from "../../generated/api";
import { percent, show } from "../../lib/numbers";
import { visible } from "../../lib/tokens";
import { type Job, useJob, Working } from "./job";

interface VectorProps {
  model: string;
  text: string;
  target: string;
  position: number;
  /** Another text is being read: its tokens are not known yet. */
  wait: boolean;
  /** What stands at the left of the table. */
  children: ComponentChildren;
}

export function VectorCards({ model, text, target, position, wait, children }: VectorProps) {
  const job = useJob<VectorAnswer>("/lens/vector", wait ? null : { model, text, position, target: target || null }, true);
  return (
    <>
      <div class="grid two">
        {children}
        <Steps job={job} />
      </div>
      {job.data && (
        <Card title="Contribution of each part">
          <div class="grid two">
            {job.data.figures.map((figure) => (
              <Figure key={figure.name} figure={figure} />
            ))}
          </div>
        </Card>
      )}
    </>
  );
}

function Steps({ job }: { job: Job<VectorAnswer> }) {
  const { data } = job;
  return (
    <Card title={data ? `The vector of “${visible(data.token)}”` : "The token's vector"}>
      <Working job={job} words="Following the vector" again="Continue" />
      {data && (
        <>
          <p class="small muted">
            The <Term name="Residual stream" /> of this token, part by part.{" "}
            {data.measure && `The parts add up to the ${data.measure}: ${show(data.logit)}.`}
          </p>
          {data.note && <p class="note small">{data.note}</p>}
          <div class="scroll lens-steps" tabIndex={0} role="region" aria-label="Part by part">
            <table>
              <thead>
                <tr>
                  <th scope="col">part</th>
                  <th scope="col">best guess</th>
                  <th scope="col" class="number" title="norm of the vector that the part adds">adds</th>
                  <th scope="col" class="number" title="norm of the residual stream after the part">norm</th>
                  <th scope="col" class="number" title="direct contribution of the part to the logit">logit</th>
                </tr>
              </thead>
              <tbody>
                {data.steps.map((step) => (
                  <Step key={`${step.layer} ${step.part}`} step={step} />
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
    </Card>
  );
}

function Step({ step }: { step: VectorStep }) {
  return (
    <tr>
      <th scope="row">{step.layer === null ? "embedding" : `${step.layer} ${step.part}`}</th>
      <td>
        <span class="mono">{visible(step.guess)}</span> <span class="muted numeric">{percent(step.probability)}</span>
      </td>
      <td class="number">{show(step.size)}</td>
      <td class="number">{show(step.length)}</td>
      <td class="number">{show(step.adds)}</td>
    </tr>
  );
}
