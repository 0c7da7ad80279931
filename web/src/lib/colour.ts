// Colour tables for heat maps: 256 steps between a few stops, as the canvas wants them.

export type Rgb = [number, number, number];

export function rgb(hex: string): Rgb {
  const text = hex.replace("#", "");
  const full = text.length === 3 ? [...text].map((c) => c + c).join("") : text;
  return [0, 2, 4].map((at) => parseInt(full.slice(at, at + 2), 16)) as Rgb;
}

export function mix(stops: Rgb[], share: number): Rgb {
  const at = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(at));
  const [from, to] = [stops[index] ?? [0, 0, 0], stops[index + 1] ?? [0, 0, 0]];
  const part = at - index;
  return from.map((value, channel) => Math.round(value + ((to[channel] ?? 0) - value) * part)) as Rgb;
}

/** 256 colours as 32-bit pixels (little-endian ABGR, as ImageData has them). */
export function table(stops: string[]): Uint32Array {
  const parts = stops.map(rgb);
  const pixels = new Uint32Array(256);
  for (let index = 0; index < 256; index += 1) {
    const [r, g, b] = mix(parts, index / 255);
    pixels[index] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return pixels;
}

export const css = ([r, g, b]: Rgb): string => `rgb(${r}, ${g}, ${b})`;

/** Relative luminance, as WCAG counts it. */
export function luminance(colour: Rgb): number {
  const [r, g, b] = colour.map((value) => {
    const share = value / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as Rgb;
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Black or white: which is easier to read on this colour. */
export const over = (colour: Rgb): string => (luminance(colour) > 0.18 ? "#000000" : "#ffffff");
