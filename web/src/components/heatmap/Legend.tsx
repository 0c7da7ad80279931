// What the colours of a heat map stand for.
import { mix, css, rgb } from "../../lib/colour";
import { paint } from "../../theme";
import { type Scale, shade } from "./levels";

const MARKS: Record<Scale, number[]> = { linear: [0, 0.25, 0.5, 0.75, 1], root: [0, 0.04, 0.25, 0.6, 1], log: [0.001, 0.01, 0.1, 1] };
const WORDS: Record<Scale, string> = { linear: "", root: "by the square root", log: "by the logarithm" };

export const marksOf = (scale: Scale): number[] => MARKS[scale];

export function Legend({ scale, format }: { scale: Scale; format: (share: number) => string }) {
  const stops = paint.value.ramp.map(rgb);
  const colours = Array.from({ length: 12 }, (_, at) => css(mix(stops, at / 11)));
  return (
    <div class="heat-legend" role="img" aria-label={`Colours from ${format(marksOf(scale)[0] ?? 0)} to ${format(1)}, ${WORDS[scale] || "evenly"}`}>
      <div class="heat-ramp" style={{ background: `linear-gradient(to right, ${colours.join(", ")})` }} />
      <div class="heat-marks">
        {marksOf(scale).map((mark) => (
          <span key={mark} style={{ left: `${100 * shade(scale, mark)}%` }}>
            {format(mark)}
          </span>
        ))}
      </div>
    </div>
  );
}
