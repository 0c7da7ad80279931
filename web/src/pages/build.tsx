// Build: a model put together from parts, with its code, its sizes, a drawing, and the command that trains it.
import { get, post } from "../api";
import { Code } from "../components/Code";
import { Tabs } from "../components/controls";
import { Figure } from "../components/Figure";
import { Busy, Card, Facts, PageHead, Problem } from "../components/state";
import { useAnswer } from "../hooks";
import { byteSize, show } from "../lib/numbers";
import { route, useParam } from "../router";
import type { FigureData } from "../types";
import { Diagram } from "./build/diagram";
import { BuildForm } from "./build/form";
import type { BuildAnswer, BuildChoices } from "../generated/api";
import { settingsOf } from "./build/settings";
import "./build.css";

export default function Page() {
  const answer = useAnswer("choices", (signal) => get<BuildChoices>("/build/choices", { signal }));
  return (
    <>
      <PageHead title="Build" words="Assemble a model from parts. The page shows its code, size, block diagram and training settings." />
      {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
      {answer.since !== null && !answer.data && <Busy words="Loading the parts" since={answer.since} />}
      {answer.data && <Workshop choices={answer.data} />}
    </>
  );
}

function Workshop({ choices }: { choices: BuildChoices }) {
  const settings = settingsOf(choices, route.value.params);
  const answer = useAnswer(JSON.stringify(settings), (signal) => post<BuildAnswer>("/build", { settings }, { signal }), 200);
  return (
    <div class="grid side">
      <BuildForm choices={choices} settings={settings} />
      <div class="stack">
        {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
        {answer.since !== null && !answer.data && <Busy words="Building" since={answer.since} />}
        {answer.data && <Model built={answer.data} stale={answer.trouble !== null} />}
      </div>
    </div>
  );
}

const TABS = [
  { id: "code", label: "Python" },
  { id: "train", label: "Train it" },
  { id: "json", label: "Spec as JSON" },
];

function Model({ built, stale }: { built: BuildAnswer; stale: boolean }) {
  const [view, setView] = useParam("show", "code");
  const shown = TABS.some((tab) => tab.id === view) ? view : "code";
  const longest = built.cache_bytes[built.cache_bytes.length - 1];
  const first = built.cache_bytes[0];
  return (
    <div class="stack" aria-busy={stale}>
      {stale && <p class="note small">Below is the last valid model.</p>}
      <Card title="Size">
        <Facts
          facts={[
            { name: "parameters", value: built.parameters.toLocaleString("en-US") },
            ...(first && longest
              ? [
                  { name: `cache at ${show(first.context)} tokens`, value: byteSize(first.bytes) },
                  { name: `cache at ${show(longest.context)} tokens`, value: byteSize(longest.bytes) },
                ]
              : [{ name: "cache", value: "none" }]),
          ]}
        />
      </Card>
      <Card title="Code and settings">
        <Tabs label="Code or settings" tabs={TABS} value={shown} onChange={setView}>
          {shown === "code" && <Code label="Python for this model" text={built.code} file="model.py" type="text/x-python" />}
          {shown === "json" && <Code label="The spec as JSON" text={JSON.stringify(built.spec_json, null, 2)} file="spec.json" type="application/json" />}
          {shown === "train" && <Training built={built} />}
        </Tabs>
      </Card>
      <Card title="Block">
        <Diagram layers={built.layers} />
      </Card>
      <Card title="Where the parameters and bytes are">
        <div class="bld-sizes">
          <Figure figure={sizes(built)} />
        </div>
      </Card>
    </div>
  );
}

function Training({ built }: { built: BuildAnswer }) {
  if (!built.toml || !built.command) {
    return (
      <div class="note">
        <p>
          <b>There is no command for this one.</b>
        </p>
        <p>{built.why_not ? `${built.why_not.charAt(0).toUpperCase()}${built.why_not.slice(1)}.` : "The server gave no reason."}</p>
      </div>
    );
  }
  return (
    <>
      <p class="small">Save the settings as model.toml, then run the command in the same folder.</p>
      <Code label="Settings" text={built.toml} file="model.toml" type="application/toml" />
      <Code label="Command" text={built.command} />
    </>
  );
}

function sizes(built: BuildAnswer): FigureData {
  const parts = built.parameters_by_part.filter((part) => part.count > 0);
  const figure: FigureData = {
    name: "model-size",
    caption: built.cache_bytes.length ? "Parameters by part, and size of keys and values for one row in bfloat16." : "Parameters by part. An encoder keeps no cache.",
    panels: [
      { kind: "bars", title: "parameters", y_label: "parameters", labels: parts.map((part) => part.part), series: [["parameters", parts.map((part) => part.count)]], low: null, high: null, log_y: false },
    ],
  };
  if (built.cache_bytes.length) {
    const line = { name: "cache", x: built.cache_bytes.map((one) => one.context), y: built.cache_bytes.map((one) => one.bytes / 2 ** 20), low: null, high: null, look: "solid" as const };
    figure.panels.push({ kind: "lines", title: "cache", x_label: "tokens", y_label: "MiB", lines: [line], log_x: true, log_y: true, marks: [] });
  }
  return figure;
}
