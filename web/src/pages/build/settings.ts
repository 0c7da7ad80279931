// The form as it stands in the address, and as the server wants it. Pure.
import type { BuildChoices, BuildSettings } from "../../generated/api";
import { valuesIn } from "../../lib/values";
import { type Params, read } from "../../router";

export type Settings = BuildSettings;

export const LATENT = { kv_rank: 128, rope_dim: 32 };
export const EXPERTS = { count: 8, k: 2 };

const number = (params: Params, name: string, plain: number | null): number | null => {
  const text = params[name];
  if (text === undefined) return plain;
  const value = Number(text);
  return text.trim() !== "" && Number.isFinite(value) ? value : plain;
};

/** What the server is asked. Fields of a kind of attention that is not chosen are left out: they would be refused. */
export function settingsOf({ defaults, positions }: BuildChoices, params: Params): Settings {
  const attention = read(params["attention"], defaults.attention);
  const name = read(params["position"], defaults.position.name);
  const encoding = positions.find((one) => one.name === name);
  const optional = (field: keyof Settings): number | null => number(params, field, null);
  return {
    ...defaults,
    kind: read(params["kind"], defaults.kind),
    vocab: read(params["vocab"], defaults.vocab),
    width: read(params["width"], defaults.width),
    layers: read(params["layers"], defaults.layers),
    heads: read(params["heads"], defaults.heads),
    kv_heads: attention === "grouped-query" ? optional("kv_heads") : null,
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
    bias: read(params["bias"], defaults.bias),
    softcap: optional("softcap"),
    sinks: read(params["sinks"], defaults.sinks),
    position: { name, values: encoding ? valuesIn(encoding.parameters, params) : {} },
    window: optional("window"),
    full_every: optional("full_every"),
    full_position: params["full_every"] ? read(params["full_position"], defaults.full_position) : "same",
    max_length: optional("max_length"),
    ffn: read(params["ffn"], defaults.ffn),
    hidden: optional("hidden"),
    experts: read(params["moe"], false)
      ? { count: read(params["experts"], EXPERTS.count), k: read(params["of_experts"], EXPERTS.k), shared: read(params["shared"], false) }
      : null,
    norm: read(params["norm"], defaults.norm),
    wiring: read(params["wiring"], defaults.wiring),
    tied: read(params["tied"], defaults.tied),
    task: params["task"] ?? null,
    steps: read(params["steps"], defaults.steps),
  };
}
