// The form as it stands in the address, and as the server wants it. Pure.
import type { BuildChoices, BuildSettings, OptionEntry } from "../../generated/api";
import { valuesIn } from "../../lib/values";
import { type Params, read } from "../../router";

export type Settings = BuildSettings;

/** The options of a model (vantage/spec/options.py), as far as a form can say them: the server lists them, with bounds. */
export type OptionName = {
  [Name in keyof Settings]: Settings[Name] extends number | string | boolean | null ? Name : never;
}[keyof Settings];

export const LATENT = { kv_rank: 128, rope_dim: 32 };
export const TAPS = 4;
export const EXPERTS = { count: 8, k: 2 };

const number = (params: Params, name: string, plain: number | null): number | null => numberIn(params[name], plain);

const numberIn = (text: string | undefined, plain: number | null): number | null => {
  if (text === undefined) return plain;
  const value = Number(text);
  return text.trim() !== "" && Number.isFinite(value) ? value : plain;
};

/** An option's name in the address: "shared" is that of the experts there. */
export const inAddress = (name: OptionName): string => (name === "shared" ? "one_table" : name);

/** The options as the address has them, each of the type that it comes with. What this kind of model lacks is left out. */
function optionsOf({ defaults, options }: BuildChoices, params: Params, kind: Settings["kind"]): Partial<Settings> {
  const found: Record<string, number | string | boolean | null> = {};
  for (const [name, option] of Object.entries(options) as [OptionName, OptionEntry][]) {
    const plain = defaults[name];
    const text = option.kinds.includes(kind) ? params[inAddress(name)] : undefined;
    found[name] = plain === null ? numberIn(text, null) : read(text, plain);
  }
  return found as Partial<Settings>;
}

/** As many key/value heads as heads: that is what a form that says nothing builds. */
export const PLAIN = "multi-head";

/** What the server is asked. Fields of a kind of attention that is not chosen are left out: they would be refused. */
export function settingsOf(choices: BuildChoices, params: Params): Settings {
  const { defaults, positions } = choices;
  const kind = read(params["kind"], defaults.kind);
  const attention = read(params["attention"], params["kv_heads"] === undefined ? PLAIN : defaults.attention);
  const name = read(params["position"], defaults.position.name);
  const encoding = positions.find((one) => one.name === name);
  const optional = (field: keyof Settings): number | null => number(params, field, null);
  const options = optionsOf(choices, params, kind);
  return {
    ...defaults,
    ...options,
    kv_heads: attention === "grouped-query" ? (options.kv_heads ?? null) : null,
    kind,
    vocab: read(params["vocab"], defaults.vocab),
    head_width: optional("head_width"),
    attention,
    latent:
      attention !== "latent"
        ? null
        : {
            kv_rank: read(params["kv_rank"], LATENT.kv_rank),
            rope_dim: read(params["rope_dim"], LATENT.rope_dim),
            nope_dim: number(params, "nope_dim", null),
            value_dim: number(params, "value_dim", null),
            q_rank: number(params, "q_rank", null),
          },
    delta: attention === "kimi-delta" ? { rank: number(params, "rank", null), taps: read(params["taps"], TAPS) } : null,
    // A delta rule has no scores.
    softcap: attention === "kimi-delta" ? null : optional("softcap"),
    sinks: attention === "kimi-delta" ? defaults.sinks : read(params["sinks"], defaults.sinks),
    normaliser: attention === "kimi-delta" ? defaults.normaliser : read(params["normaliser"], defaults.normaliser),
    position: { name, values: encoding ? valuesIn(encoding.parameters, params) : {} },
    full_every: optional("full_every"),
    full_position: params["full_every"] ? read(params["full_position"], defaults.full_position) : "same",
    hidden: optional("hidden"),
    experts: read(params["moe"], false)
      ? { count: read(params["experts"], EXPERTS.count), k: read(params["of_experts"], EXPERTS.k), shared: read(params["shared"], false) }
      : null,
    task: params["task"] ?? null,
    steps: read(params["steps"], defaults.steps),
  };
}
