// One token moved to another position: what one query's scores and weights were, and what they become.
import { get, post } from "../../api";
import { Select, Slider, TextField } from "../../components/controls";
import { NumberField } from "../../components/numbers";
import { Figure } from "../../components/Figure";
import { ModelPicker, useModel } from "../../components/ModelPicker";
import { Busy, Card, Empty, Facts, Problem } from "../../components/state";
import { useDraft } from "../../draft";
import { useAnswer, useSettled } from "../../hooks";
import { percent, show } from "../../lib/numbers";
import { visible } from "../../lib/tokens";
import { put, route, useParam } from "../../router";
import { clearest } from "../attention/side";
import type { AtlasAnswer, ReadTextAnswer, TokenMoveAnswer, TokensAnswer } from "../../generated/api";
import type { BarsPanel, FigureData, Num } from "../../types";
import { Track } from "./track";

const TEXT = "The cat sat on the mat because it was tired of the dog";

export function MoveView() {
  const [name, setName] = useParam("model", "");
  const [linked, setLinked] = useParam("text", TEXT);
  const [text, setText] = useDraft(linked, setLinked);
  const model = useModel(name);
  const settled = useSettled(text, 400);
  const read = useAnswer(model && settled.trim() ? `${model.name}\n${settled}` : null, (signal) =>
    post<TokensAnswer>("/tokens", { model: model?.name, text: settled }, { signal }),
  );
  return (
    <div class="stack wide">
      <Card title="Text and model">
        <div class="pos-text">
          <ModelPicker value={name} onChange={setName} fits={(one) => one.kind !== "encoder-decoder"} />
          <TextField label="Text" value={text} onChange={setText} rows={2} help="A sentence or a few: up to 1,024 tokens." />
        </div>
        {read.trouble && <Problem trouble={read.trouble} retry={read.retry} />}
      </Card>
      {!text.trim() && <Empty>Write a text to see its tokens here.</Empty>}
      {model && text.trim() && read.data && read.data.tokens.length > 0 && (
        <Moving model={model.name} layers={model.layers ?? 1} heads={model.heads ?? 1} text={settled} tokens={read.data.tokens} />
      )}
    </div>
  );
}

interface MovingProps {
  model: string;
  layers: number;
  heads: number;
  text: string;
  tokens: string[];
}

/**
 * Where the address names no move: the head that looks most clearly at the token before, and that token moved away to
 * the front. What is named in the address stays.
 */
function useMoveThatMatters(model: string, text: string, last: number) {
  const { params } = route.value;
  const named = ["layer", "head", "token", "to"].some((name) => params[name] !== undefined);
  const ask = named || last < 2 || last > 256 ? null : JSON.stringify({ model, text });
  const atlas = useAnswer(ask, async (signal) => {
    const { id } = await post<ReadTextAnswer>("/attention", JSON.parse(ask ?? "{}"), { signal, seconds: 120 });
    return get<AtlasAnswer>(`/attention/${id}/atlas`, { signal, seconds: 120 });
  });
  const best = ask && atlas.data ? clearest(atlas.data.heads, "previous") : null;
  const here = { layer: best?.layer ?? 3, head: best?.head ?? 1 };
  return { ...here, here: best ? here : {}, token: best ? last - 1 : 1, moved: best !== null };
}

const within = (value: number, most: number): number => Math.min(Math.max(0, value), most);

function Moving({ model, layers, heads, text, tokens }: MovingProps) {
  const last = tokens.length - 1;
  const found = useMoveThatMatters(model, text, last);
  const [layer, setLayer] = useParam("layer", found.layer);
  const [head, setHead] = useParam("head", found.head);
  const [askedQuery, setQuery] = useParam("query", -1);
  const [askedToken] = useParam("token", found.token);
  const query = askedQuery < 0 ? last : within(askedQuery, last);
  const token = within(askedToken, last);
  const [to, setTo] = useParam("to", found.moved ? 0 : token);
  const which = { layer: within(layer, layers - 1), head: within(head, heads - 1), query };
  const body = { model, text, ...which, moved: { token, to: Math.max(0, Math.round(to)) } };
  const answer = useAnswer(JSON.stringify(body), (signal) => post<TokenMoveAnswer>("/positions/drag", body, { signal, seconds: 60 }), 120);
  const names = tokens.map((one, index) => ({ value: String(index), label: `${index}: ${visible(one)}` }));
  return (
    <>
      <Card title="Positions of the tokens" beside={answer.since !== null ? <Busy words="Reading" since={answer.since} /> : null}>
        <Track tokens={tokens} token={token} to={body.moved.to} query={query} onMove={(next, place) => put({ ...found.here, token: next, to: place })} />
        <div class="pos-controls">
          <Select label="Token to move" value={String(token)} options={names} onChange={(next) => put({ ...found.here, token: next, to: next })} />
          <NumberField label="Its position" value={body.moved.to} min={0} max={1_000_000} step={1} onChange={(next) => setTo(Math.round(next))} />
          <Select label="Query" value={String(query)} options={names} onChange={(next) => setQuery(Number(next) === last ? -1 : Number(next))} help="the token whose attention is shown" />
          <Slider label="Layer" value={which.layer} min={0} max={layers - 1} onChange={setLayer} />
          <Slider label="Head" value={which.head} min={0} max={heads - 1} onChange={setHead} />
        </div>
      </Card>
      {answer.trouble && <Problem trouble={answer.trouble} retry={answer.retry} />}
      {answer.data && answer.data.tokens.length === tokens.length && <Result moved={answer.data} token={token} query={query} to={body.moved.to} />}
    </>
  );
}

function Result({ moved, token, query, to }: { moved: TokenMoveAnswer; token: number; query: number; to: number }) {
  const seen = moved.scores_before.map((score, index) => (score === null && moved.scores_after[index] === null ? -1 : index)).filter((index) => index >= 0);
  const shift = moved.before.reduce((sum, weight, index) => sum + Math.abs(weight - (moved.after[index] ?? 0)), 0) / 2;
  const word = visible(moved.tokens[token] ?? "");
  const hidden = !seen.includes(token) && token !== query;
  return (
    <Card title="What the query sees">
      {to === token && <p class="note small">No token has moved yet: drag “{word}” along the line, or type another position.</p>}
      {hidden && to !== token && <p class="note small">The query stands before “{word}” and does not see it: nothing can change here.</p>}
      <Facts
        facts={[
          { name: `weight on ${word}, before`, value: percent(moved.before[token] ?? 0) },
          { name: `weight on ${word}, after`, value: percent(moved.after[token] ?? 0) },
          { name: `score of ${word}, before`, value: show(moved.scores_before[token]) },
          { name: `score of ${word}, after`, value: show(moved.scores_after[token]) },
          { name: "attention that moved", value: percent(shift) },
        ]}
      />
      <Figure figure={picture(moved, seen, query)} />
    </Card>
  );
}

/** Weights and scores of the keys that the query sees, before and after. */
export function picture(moved: TokenMoveAnswer, seen: number[], query: number): FigureData {
  const labels = seen.map((index) => `${visible(moved.tokens[index] ?? "")} ${index}`);
  const take = (values: Num[]): Num[] => seen.map((index) => values[index] ?? null);
  const bars = (title: string, y_label: string, before: Num[], after: Num[]): BarsPanel => {
    const series: [string, Num[]][] = [["before", take(before)], ["after", take(after)]];
    return { kind: "bars", title, y_label, labels, series, low: null, high: null, log_y: false };
  };
  const word = visible(moved.tokens[query] ?? "");
  return {
    name: "moved",
    caption: `Weights of “${word}” on every key, before and after the move. Only the position of the moved token changes; the mask stays the same.`,
    panels: [bars("weights", "weight", moved.before, moved.after), bars("scores", "score", moved.scores_before, moved.scores_after)],
  };
}
