// A decoder's sizes as a form, with some that are known by name.
import { Button } from "../../components/controls";
import { NumberField, OptionalNumber } from "../../components/numbers";
import { put, read, route } from "../../router";

export interface Shape {
  layers: number;
  width: number;
  heads: number;
  kv_heads: number | null;
  head_width: number | null;
  window: number | null;
  latent: number | null;
  vocab: number;
}

const PLAIN: Shape = { layers: 32, width: 4096, heads: 32, kv_heads: 8, head_width: 128, window: null, latent: null, vocab: 128_256 };

const KNOWN: [string, Shape][] = [
  ["Llama 3 8B", PLAIN],
  ["GPT-2", { layers: 12, width: 768, heads: 12, kv_heads: null, head_width: null, window: null, latent: null, vocab: 50_257 }],
  ["Mistral 7B", { ...PLAIN, window: 4096, vocab: 32_000 }],
  ["DeepSeek-V2", { layers: 60, width: 5120, heads: 128, kv_heads: null, head_width: 128, window: null, latent: 512, vocab: 102_400 }],
];

const NAMES = Object.keys(PLAIN) as (keyof Shape)[];

/** The shape in the address. "none" stands for a number that is left out where the plain shape has one. */
export function useShape(): Shape {
  const { params } = route.value;
  const found: Record<string, number | null> = {};
  for (const name of NAMES) {
    const text = params[name];
    const plain = PLAIN[name];
    found[name] = text === "none" ? null : plain === null ? (text === undefined ? null : read(text, 0) || null) : read(text, plain);
  }
  return found as unknown as Shape;
}

const say = (shape: Partial<Shape>): void => {
  const patch: Record<string, number | string | null> = {};
  for (const [name, value] of Object.entries(shape)) {
    const plain = PLAIN[name as keyof Shape];
    patch[name] = value === plain ? null : (value ?? "none");
  }
  put(patch);
};

export function ShapeForm({ shape }: { shape: Shape }) {
  const same = (other: Shape) => NAMES.every((name) => other[name] === shape[name]);
  return (
    <div class="stack">
      <div class="row" role="group" aria-label="Known shapes">
        {KNOWN.map(([name, known]) => (
          <Button key={name} little pressed={same(known)} onClick={() => say(known)}>
            {name}
          </Button>
        ))}
      </div>
      <div class="fields">
        <NumberField label="Layers" value={shape.layers} min={1} max={256} step={1} onChange={(layers) => say({ layers })} />
        <NumberField label="Width" value={shape.width} min={1} max={65_536} step={1} onChange={(width) => say({ width })} />
        <NumberField label="Heads" value={shape.heads} min={1} max={512} step={1} onChange={(heads) => say({ heads })} />
        <OptionalNumber label="Key/value heads" value={shape.kv_heads} min={1} max={512} otherwise="as heads" onChange={(kv_heads) => say({ kv_heads })} />
        <OptionalNumber label="Head width" value={shape.head_width} min={1} max={1024} otherwise="width / heads" onChange={(head_width) => say({ head_width })} />
        <OptionalNumber label="Window" value={shape.window} min={1} max={2 ** 24} otherwise="none" onChange={(window) => say({ window })} />
        <OptionalNumber label="MLA latent" value={shape.latent} min={1} max={65_536} otherwise="none" onChange={(latent) => say({ latent })} />
        <NumberField label="Vocabulary" value={shape.vocab} min={1} max={2 ** 20} step={1} onChange={(vocab) => say({ vocab })} />
      </div>
      <p class="small muted">The feed-forward layers have the usual width, so parameters and operations may differ from the named model. The cache size does not depend on it.</p>
    </div>
  );
}
