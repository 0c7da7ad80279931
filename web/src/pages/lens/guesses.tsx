// Layers down, tokens across: the best guess in each cell. A chosen cell shows its distribution and its token's vector.
import { useRef } from "preact/hooks";
import { Button } from "../../components/controls";
import { useModel } from "../../components/ModelPicker";
import { Card, Facts } from "../../components/state";
import { Term } from "../../components/Term";
import type { LensAnswer } from "../../generated/api";
import { csv } from "../../lib/csv";
import { save } from "../../lib/download";
import { duration, percent, show } from "../../lib/numbers";
import { visible } from "../../lib/tokens";
import { put, useParam } from "../../router";
import { useJob, Working } from "./job";
import { TextCard, useText } from "./text";
import { VectorCards } from "./vector";

const within = (value: number, count: number): number => (value < 0 || value >= count ? count - 1 : value);
/** After which block; the first stage stands before all of them. */
const stageName = (stage: string): string => (stage === "embedding" ? "the embedding" : `layer ${stage}`);

export function GuessesView() {
  const [name] = useParam("model", "");
  const text = useText();
  const [target] = useParam("target", "");
  const model = useModel(name);
  const body = model && { model: model.name, text, target: target || null };
  const job = useJob<LensAnswer>("/lens", body, true);
  const [stage] = useParam("stage", -1);
  const [token] = useParam("token", -1);
  const { data } = job;
  const at = data && { stage: within(stage, data.stages.length), token: within(token, data.tokens.length) };
  return (
    <div class="stack wide">
      <TextCard target />
      <Card title="Best guesses" beside={data && !job.stale && <span class="small muted numeric">{data.tokens.length} tokens, read in {duration(data.ms)}</span>}>
        <Working job={job} words="Reading every layer" again="Continue" />
        {data && at && <Grid data={data} at={at} />}
      </Card>
      {data && at && model && (
        <VectorCards model={model.name} text={text} target={target} position={at.token} wait={job.stale}>
          <Distribution data={data} at={at} target={target} />
        </VectorCards>
      )}
    </div>
  );
}

interface Place {
  stage: number;
  token: number;
}

function Grid({ data, at }: { data: LensAnswer; at: Place }) {
  const table = useRef<HTMLTableElement>(null);
  const [rows, columns] = [data.stages.length, data.tokens.length];
  const choose = ({ stage, token }: Place) => put({ stage: stage === rows - 1 ? null : stage, token: token === columns - 1 ? null : token });
  const step = (event: KeyboardEvent) => {
    const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!by) return;
    event.preventDefault();
    const stage = Math.min(rows - 1, Math.max(0, at.stage + (by[0] ?? 0)));
    const token = Math.min(columns - 1, Math.max(0, at.token + (by[1] ?? 0)));
    choose({ stage, token });
    table.current?.querySelector<HTMLElement>(`[data-cell="${stage}.${token}"]`)?.focus();
  };
  return (
    <>
      <p class="small muted">
        The <Term name="Logit lens" />: each column is a token of the text, each row the next token that the model would predict after that layer. Darker
        colours are surer guesses; underlined is what the text goes on with. Choose a cell.
      </p>
      <div class="scroll lens-scroll">
        <table ref={table} class="lens-grid" role="grid" aria-label="Best guesses, layers by tokens" onKeyDown={step}>
          <thead>
            <tr>
              <th scope="col">after</th>
              {data.tokens.map((token, index) => (
                <th key={index} scope="col" title={token}>
                  {visible(token)}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {data.stages.map((stage, row) => (
              <tr key={stage}>
                <th scope="row">{stage}</th>
                {data.tokens.map((_, column) => {
                  const word = data.guesses[row]?.[column]?.[0] ?? "";
                  const share = data.probabilities[row]?.[column]?.[0] ?? 0;
                  const here = row === at.stage && column === at.token;
                  return (
                    <td
                      key={column}
                      role="gridcell"
                      data-cell={`${row}.${column}`}
                      tabIndex={here ? 0 : -1}
                      aria-selected={here}
                      title={`${visible(word)} ${percent(share)}`}
                      class={word === data.tokens[column + 1] ? "lens-right" : ""}
                      style={{ backgroundColor: `rgb(var(--tint) / ${(0.42 * share).toFixed(3)})` }}
                      onClick={() => choose({ stage: row, token: column })}
                    >
                      {visible(word)}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <div class="row downloads">
        <Button little look="quiet" label="Download lens as CSV" onClick={() => save("lens.csv", gridCsv(data), "text/csv")}>
          CSV
        </Button>
      </div>
    </>
  );
}

function gridCsv(data: LensAnswer): string {
  const rows: (string | number)[][] = [["after", "position", "token", "place", "guess", "probability"]];
  data.stages.forEach((stage, row) =>
    data.tokens.forEach((token, column) =>
      data.guesses[row]?.[column]?.forEach((guess, place) =>
        rows.push([stage, column, visible(token), place + 1, visible(guess), data.probabilities[row]?.[column]?.[place] ?? 0]),
      ),
    ),
  );
  return csv(rows);
}

function Distribution({ data, at, target }: { data: LensAnswer; at: Place; target: string }) {
  const guesses = data.guesses[at.stage]?.[at.token] ?? [];
  const shares = data.probabilities[at.stage]?.[at.token] ?? [];
  const own = data.target?.[at.stage]?.[at.token];
  const rank = data.rank?.[at.stage]?.[at.token];
  const facts = [
    { name: "entropy", value: show(data.entropy[at.stage]?.[at.token]), unit: "nats" },
    { name: "KL to the output", value: show(data.divergence[at.stage]?.[at.token]), unit: "nats" },
  ];
  if (own !== undefined && rank !== undefined)
    facts.push({ name: `probability of ${visible(target)}`, value: percent(Math.exp(own)), unit: `place ${show(rank + 1)}` });
  return (
    <Card title={`After ${stageName(data.stages[at.stage] ?? "")}, at “${visible(data.tokens[at.token] ?? "")}”`}>
      <ol class="lens-shares" aria-label="Likeliest next tokens">
        {guesses.map((guess, index) => (
          <li key={index}>
            <span class="mono">{visible(guess)}</span>
            <span class="lens-bar" aria-hidden="true">
              <span style={{ width: `${100 * (shares[index] ?? 0)}%` }} />
            </span>
            <span class="numeric">{percent(shares[index] ?? 0)}</span>
          </li>
        ))}
      </ol>
      <Facts facts={facts} />
    </Card>
  );
}
