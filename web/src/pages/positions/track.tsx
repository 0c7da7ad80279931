// The tokens on a line, each at its position. Any of them can be dragged; the arrow keys move the chosen one.
import { useRef, useState } from "preact/hooks";
import { shorten } from "../../components/chart/Plot";
import { useWidth } from "../../hooks";
import { makeScale, ticks } from "../../lib/scale";
import { visible } from "../../lib/tokens";
import { paint } from "../../theme";

export interface TrackProps {
  tokens: string[];
  /** The token that moves, and where it stands. */
  token: number;
  to: number;
  query: number;
  onMove: (token: number, to: number) => void;
}

const BELOW = 56;
const NEAR = 16;
const LETTER = 7.6;
const SLANT = 0.75; // of a label's length, how high it stands

/** Where the line is drawn: under the longest label, which stands aslant. */
export const lineAt = (tokens: string[]): number => {
  const longest = Math.max(...tokens.map((token) => visible(token).length));
  return Math.round(32 + Math.min(96, longest * LETTER) * SLANT);
};

export function Track({ tokens, token, to, query, onMove }: TrackProps) {
  const [ref, room] = useWidth<HTMLDivElement>();
  const svg = useRef<SVGSVGElement>(null);
  const [held, setHeld] = useState<{ token: number; most: number } | null>(null);
  const colours = paint.value;
  const width = Math.max(240, Math.floor(room));
  const line = lineAt(tokens);
  const height = line + BELOW;
  // While a token is held the line must not change under it.
  const most = held?.most ?? Math.max(2 * tokens.length, tokens.length + 12, to + 2);
  const x = makeScale([0, most], [28, width - 28]);
  const gap = x(1) - x(0);
  const every = Math.max(1, Math.ceil(15 / gap));
  const word = visible(tokens[token] ?? "");
  const place = (event: PointerEvent): number => {
    const box = svg.current?.getBoundingClientRect();
    return box ? x.invert(((event.clientX - box.left) * width) / box.width) : 0;
  };
  const stands = (index: number): number => (index === token ? to : index);
  // Where the moved token stands on another one, its label goes behind that one's, or stands alone where there is no room.
  const under = to !== token ? tokens[to] : undefined;
  const behind = under === undefined ? 0 : (visible(under).length + 1) * LETTER;
  const fits = behind + word.length * LETTER <= (line - 24) / SLANT;
  /** Too near to a label that must be read. */
  const near = (index: number, other: number): boolean => every > 1 && Math.abs(index - other) < every;
  const grab = (event: PointerEvent) => {
    const at = place(event);
    let best = token;
    tokens.forEach((_, index) => {
      if (Math.abs(stands(index) - at) < Math.abs(stands(best) - at)) best = index;
    });
    if (Math.abs(stands(best) - at) * gap > NEAR) return;
    event.preventDefault();
    svg.current?.setPointerCapture(event.pointerId);
    svg.current?.focus();
    setHeld({ token: best, most });
    if (best !== token) onMove(best, best);
  };
  const drag = (event: PointerEvent) => {
    if (!held) return;
    const next = Math.min(most, Math.max(0, Math.round(place(event))));
    if (next !== to || held.token !== token) onMove(held.token, next);
  };
  const step = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key];
    const next = event.key === "Home" ? 0 : event.key === "End" ? most - 2 : event.key === "Escape" ? token : by === undefined ? null : Math.max(0, to + by);
    if (next === null) return;
    event.preventDefault();
    onMove(token, next);
  };
  return (
    <div ref={ref} class="stack">
      {room > 0 && (
        <svg
          ref={svg}
          class={`pos-track ${held ? "held" : ""}`}
          width={width}
          height={height}
          viewBox={`0 0 ${width} ${height}`}
          tabindex={0}
          role="slider"
          aria-label={`Position of the token ${word}`}
          aria-valuemin={0}
          aria-valuemax={most}
          aria-valuenow={to}
          aria-valuetext={`${word}, token ${token}, stands at position ${to}`}
          onPointerDown={grab}
          onPointerMove={drag}
          onPointerUp={() => setHeld(null)}
          onPointerCancel={() => setHeld(null)}
          onKeyDown={step}
        >
          <Ruler line={line} most={most} x={x} width={width} />
          {tokens.map((one, index) => {
            const mine = index === token;
            if (!mine && index !== query && (index % every || near(index, query) || near(index, to))) return null;
            const colour = mine ? colours.accent : index === query ? (colours.series[1] ?? colours.text) : colours.text;
            return (
              <g key={index} transform={`translate(${x(stands(index)).toFixed(1)} ${line})`}>
                <circle r={mine ? 8 : 4} fill={colour} />
                {(mine || index !== to || fits) && (
                  <text x={mine && fits ? behind : 0} transform="translate(4 -13) rotate(-48)" font-size={13} font-weight={mine || index === query ? 700 : 400} fill={colour}>
                    {shorten(visible(one), 96, 13)}
                  </text>
                )}
              </g>
            );
          })}
          {to !== token && <Ghost line={line} from={x(token)} to={x(to)} colour={colours.accent} />}
        </svg>
      )}
      <p class="small muted">
        Drag a token to another position, or choose one and press the arrow keys (Page keys: ten at a time, Escape: back). <b class="pos-moved">Moved</b>,{" "}
        <b class="pos-query">query</b>.
      </p>
    </div>
  );
}

function Ruler({ line, most, x, width }: { line: number; most: number; x: (value: number) => number; width: number }) {
  const colours = paint.value;
  return (
    <g>
      <line x1={x(0)} x2={x(most)} y1={line} y2={line} stroke={colours.muted} stroke-width={1.5} />
      {ticks([0, most], Math.max(4, width / 90))
        .filter(Number.isInteger)
        .map((tick) => (
          <g key={tick} transform={`translate(${x(tick).toFixed(1)} ${line})`}>
            <line y1={0} y2={26} stroke={colours.line} />
            <text y={42} font-size={11} text-anchor="middle" fill={colours.muted}>
              {tick}
            </text>
          </g>
        ))}
    </g>
  );
}

/** From where the token was written to where it stands now. */
function Ghost({ line, from, to, colour }: { line: number; from: number; to: number; colour: string }) {
  return (
    <g fill="none" stroke={colour}>
      <circle cx={from} cy={line} r={6} stroke-width={1.5} stroke-dasharray="2 2" />
      <path d={`M${from.toFixed(1)} ${line + 8}Q${((from + to) / 2).toFixed(1)} ${line + 34} ${to.toFixed(1)} ${line + 11}`} stroke-width={1.5} stroke-dasharray="4 3" />
    </g>
  );
}
