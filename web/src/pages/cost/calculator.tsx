// The calculator: bytes by kind of attention over length and batch, parameters and operations by part.
import { useRef } from "preact/hooks";
import { post } from "../../api";
import { Button, Select } from "../../components/controls";
import { Figure } from "../../components/Figure";
import { ModelPicker, useModel } from "../../components/ModelPicker";
import { WideNumber } from "../../components/numbers";
import { Busy, Card, Facts, Problem } from "../../components/state";
import { useAnswer } from "../../hooks";
import { csv } from "../../lib/csv";
import { save } from "../../lib/download";
import { byteSize, compact, show } from "../../lib/numbers";
import { useParam } from "../../router";
import type { CostAnswer } from "../../generated/api";
import { ShapeForm, useShape } from "./shape";

const LONGEST = Array.from({ length: 11 }, (_, index) => 2 ** (index + 10));
/** The first of the lengths that a context fits into. */
const roomOf = (context: number): number => LONGEST.find((n) => n >= context) ?? 2 ** 20;
const DTYPES = ["bfloat16", "float16", "float32", "float64"];

export function Calculator() {
  const [of, setOf] = useParam("of", "model");
  const [name, setName] = useParam("model", "");
  const [asked, setLongest] = useParam("context", 0);
  const [batch, setBatch] = useParam("batch", 1);
  const [dtype, setDtype] = useParam("dtype", "bfloat16");
  const model = useModel(name);
  const shape = useShape();
  const own = of !== "shape";
  const longest = asked || (own ? roomOf(model?.context ?? 8192) : 131_072);
  const contexts = LONGEST.filter((n) => n <= longest);
  const about = own ? { model: model?.name } : { shape };
  const body = { ...about, contexts: contexts.length ? contexts : [1024], batch: Math.round(batch), dtype };
  const answer = useAnswer(own && !model ? null : JSON.stringify(body), (signal) => post<CostAnswer>("/cost", body, { signal }), 150);
  return (
    <div class="grid side">
      <Card title="Of what">
        <div class="row" role="group" aria-label="Of what">
          <Button pressed={own} onClick={() => setOf("model")}>
            A model
          </Button>
          <Button pressed={!own} onClick={() => setOf("shape")}>
            A shape
          </Button>
        </div>
        {own ? <ModelPicker value={name} onChange={setName} fits={(one) => one.kind !== "encoder"} /> : <ShapeForm shape={shape} />}
        <hr class="rule" />
        <Select
          label="Longest context"
          value={String(longest)}
          options={LONGEST.map((n) => ({ value: String(n), label: `${show(n)} tokens` }))}
          onChange={(next) => setLongest(Number(next))}
        />
        <WideNumber label="Batch" value={batch} min={1} max={4096} whole onChange={(next) => setBatch(Math.round(next))} help="rows per batch" />
        <Select label="Type" value={dtype} options={DTYPES} onChange={setDtype} help="type of keys and values" />
      </Card>
      <div class="stack wide">
        {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
        {answer.since !== null && !answer.data && <Busy words="Calculating" since={answer.since} />}
        {answer.data && <Found cost={answer.data} busy={answer.since} />}
      </div>
    </div>
  );
}

function Found({ cost, busy }: { cost: CostAnswer; busy: number | null }) {
  const [sizes, operations] = cost.figures;
  const first = cost.table[0];
  const total = first?.bytes_at[first.bytes_at.length - 1] ?? 0;
  const longest = cost.contexts[cost.contexts.length - 1] ?? 0;
  return (
    <>
      <Card title="Cache" beside={busy !== null ? <Busy words="Calculating" since={busy} /> : null}>
        <Facts
          facts={[
            { name: "per token", value: byteSize(first?.bytes_per_token ?? 0) },
            { name: `at ${show(longest)} tokens, batch ${show(cost.batch)}`, value: byteSize(total) },
            { name: "parameters", value: compact(cost.parameters) },
            { name: "type", value: cost.dtype },
          ]}
        />
        <SizesTable cost={cost} />
        {sizes && <Figure figure={sizes} />}
      </Card>
      <Card title="Operations and parameters">
        {operations && <Figure figure={operations} />}
        <div class="cost-tables">
          <OperationsTable cost={cost} />
          <PartsTable cost={cost} />
        </div>
      </Card>
    </>
  );
}

function SizesTable({ cost }: { cost: CostAnswer }) {
  const region = useRef<HTMLDivElement>(null);
  const rows = () => csv([["kind", "bytes a token", ...cost.contexts.map((n) => `bytes at ${n}`)], ...cost.table.map((row) => [row.kind, row.bytes_per_token, ...row.bytes_at])]);
  return (
    <div class="stack">
      <div class="scroll table-scroll" ref={region} tabIndex={0} role="region" aria-label="Bytes of the cache by kind">
        <table class="numeric">
          <caption class="hidden">Bytes of the cache by kind of attention and context, for a batch of {cost.batch}</caption>
          <thead>
            <tr>
              <th scope="col">Kind</th>
              <th scope="col" class="number">
                Per token
              </th>
              {cost.contexts.map((n) => (
                <th key={n} scope="col" class="number">
                  {show(n)}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {cost.table.map((row) => (
              <tr key={row.kind} class={row.own ? "cost-own" : ""}>
                <th scope="row">{row.kind}</th>
                <td class="number cost-cell">{byteSize(row.bytes_per_token)}</td>
                {row.bytes_at.map((size, index) => (
                  <td key={index} class="number cost-cell">
                    {byteSize(size)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <div class="row downloads">
        <Button little look="quiet" label="Download cache-sizes as CSV" onClick={() => save("cache-sizes.csv", rows(), "text/csv")}>
          CSV
        </Button>
      </div>
    </div>
  );
}

function OperationsTable({ cost }: { cost: CostAnswer }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Operations by part">
      <table>
        <caption class="hidden">Operations by part</caption>
        <thead>
          <tr>
            <th scope="col">Part</th>
            <th scope="col" class="number">
              Whole context, FLOP
            </th>
            <th scope="col" class="number">
              One more token, FLOP
            </th>
            <th scope="col" class="number">
              Bytes read
            </th>
          </tr>
        </thead>
        <tbody>
          {cost.operations.map((row) => (
            <tr key={row.part}>
              <th scope="row">{row.part}</th>
              <td class="number">{compact(row.flops)}</td>
              <td class="number">{compact(row.decode)}</td>
              <td class="number cost-cell">{byteSize(row.bytes)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function PartsTable({ cost }: { cost: CostAnswer }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Parameters by part">
      <table>
        <caption class="hidden">Parameters by part</caption>
        <thead>
          <tr>
            <th scope="col">Part</th>
            <th scope="col" class="number">
              Parameters
            </th>
          </tr>
        </thead>
        <tbody>
          {cost.parameters_by_part.map((row) => (
            <tr key={row.part}>
              <th scope="row">{row.part}</th>
              <td class="number">{row.count.toLocaleString("en-US")}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
