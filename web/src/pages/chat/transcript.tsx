// What was said, token by token, with the attention of one token laid over it.
import { useEffect, useRef, useState } from "preact/hooks";
import { Button } from "../../components/controls";
import { Busy, Meter } from "../../components/state";
import { locate, pieces, visible, withImages } from "../../lib/tokens";
import type { ChatToken } from "../../generated/api";
import { href } from "../../router";
import { Thumbnails } from "./composer";
import type { Conversation, Exchange } from "./conversation";
import { editing } from "./drafts";
import { stop, writing } from "./store";

interface TintProps {
  tints: Map<number, number>;
  /** The token whose attention is shown. */
  chosen: number | null;
}

const tint = (strength: number | undefined) =>
  strength ? { backgroundColor: `rgb(var(--tint) / ${(strength * 0.42).toFixed(3)})` } : undefined;

export interface TranscriptProps extends TintProps {
  conversation: Conversation;
  onPoint: (index: number | null) => void;
  onChoose: (index: number) => void;
  onInstead: (turn: number, text: string, images: string[]) => void;
  /** Another answer to the same message. */
  onAgain: (turn: number, exchange: Exchange) => void;
}

export function Transcript({ conversation, tints, chosen, onPoint, onChoose, onInstead, onAgain }: TranscriptProps) {
  const busy = writing.value;
  const end = useRef<HTMLLIElement>(null);
  const count = conversation.exchanges.at(-1)?.written.length ?? 0;
  useEffect(() => {
    if (busy) end.current?.scrollIntoView({ block: "nearest" });
  }, [count, conversation.exchanges.length]);
  return (
    <ol class="chat-turns" aria-label="Conversation">
      {conversation.exchanges.map((exchange, turn) => {
        const last = turn === conversation.exchanges.length - 1;
        return (
          <li key={turn} class="chat-turn" ref={last ? end : undefined}>
            <Question
              exchange={exchange}
              conversation={conversation}
              tints={tints}
              chosen={chosen}
              locked={busy !== null || conversation.problem !== null}
              turn={turn}
              onInstead={(text, images) => onInstead(turn, text, images)}
            />
            <div class="chat-answer">
              <div class="chat-who">{conversation.model}</div>
              <AnswerText exchange={exchange} tints={tints} chosen={chosen} onPoint={onPoint} onChoose={onChoose} />
              {last && busy ? (
                <>
                  <Busy words={busy.phase} since={busy.since} stop={stop} />
                  {busy.share !== null && <Meter share={busy.share} label="Reading the message" />}
                </>
              ) : (
                <After
                  conversation={conversation}
                  exchange={exchange}
                  turn={turn}
                  locked={busy !== null || conversation.problem !== null}
                  onAgain={() => onAgain(turn, exchange)}
                />
              )}
            </div>
          </li>
        );
      })}
    </ol>
  );
}

interface AfterProps {
  conversation: Conversation;
  exchange: Exchange;
  turn: number;
  locked: boolean;
  onAgain: () => void;
}

/** What can be done with an answer. */
function After({ conversation, exchange, turn, locked, onAgain }: AfterProps) {
  return (
    <div class="row small muted chat-after">
      {exchange.finish && exchange.finish !== "stop" && <span class="tag warn">{finishWords(exchange.finish)}</span>}
      <Button
        little
        look="quiet"
        disabled={locked}
        label={`Answer again (message ${turn + 1}, as a branch, with another seed)`}
        onClick={onAgain}
      >
        Answer again
      </Button>
      {conversation.id && !conversation.exchanges.slice(0, turn + 1).some((one) => one.images.length > 0) && (
        <a
          class="button quiet little"
          href={href("attention", { model: conversation.model, conversation: conversation.id, turn })}
          aria-label={`Show in Attention (answer ${turn + 1})`}
        >
          Show in Attention
        </a>
      )}
      {exchange.seed !== null && <span class="numeric">seed {exchange.seed}</span>}
    </div>
  );
}

const finishWords = (finish: string): string =>
  ({ length: "token limit reached", stopped: "stopped by you" })[finish] ?? finish;

interface QuestionProps extends TintProps {
  exchange: Exchange;
  conversation: Conversation;
  locked: boolean;
  turn: number;
  onInstead: (text: string, images: string[]) => void;
}

function Question({ exchange, conversation, tints, chosen, locked, turn, onInstead }: QuestionProps) {
  const edited = editing.value;
  if (edited?.turn === turn) {
    const send = (text: string, images: string[]) => {
      editing.value = null;
      onInstead(text, images);
    };
    return <Editor text={edited.text} images={edited.images} locked={locked} onSend={send} onLeave={() => (editing.value = null)} />;
  }
  const place = exchange.promptTokens
    ? locate(conversation.tokens.slice(0, exchange.promptTokens), exchange.message, exchange.from)
    : null;
  return (
    <div class="chat-question">
      <div class="chat-bubble">
        {exchange.images.map((url, at) => (
          <img key={at} class="chat-image" src={url} alt={`Image ${at + 1} of message ${turn + 1}`} />
        ))}
        {place
          ? pieces(conversation.tokens, ...place).map(({ from, to, text }) => (
              <span
                key={from}
                class={`chat-token ${chosen !== null && from <= chosen && chosen < to ? "chosen" : ""}`}
                style={tint(Math.max(...Array.from({ length: to - from }, (_, at) => tints.get(from + at) ?? 0)))}
              >
                {text}
              </span>
            ))
          : exchange.message}
      </div>
      <Button
        little
        look="quiet"
        disabled={locked}
        label="Edit this message, as a branch"
        onClick={() => (editing.value = { text: exchange.message, images: exchange.images, turn })}
      >
        Edit
      </Button>
    </div>
  );
}

interface EditorProps {
  text: string;
  images: string[];
  locked: boolean;
  onSend: (text: string, images: string[]) => void;
  onLeave: () => void;
}

function Editor({ text, images, locked, onSend, onLeave }: EditorProps) {
  const [draft, setDraft] = useState(text);
  const [kept, setKept] = useState(images);
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => area.current?.focus(), []);
  const empty = !draft.trim() && !kept.length;
  const send = (event: Event) => {
    event.preventDefault();
    if (!empty && !locked) onSend(draft, kept);
  };
  return (
    <form class="stack" onSubmit={send}>
      <Thumbnails images={kept} onRemove={(at) => setKept(kept.filter((_, index) => index !== at))} />
      <textarea
        ref={area}
        class="area"
        rows={3}
        aria-label="Edit the message"
        value={draft}
        onInput={(event) => setDraft(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") onLeave();
          if (event.key === "Enter" && !event.shiftKey) send(event);
        }}
      />
      <div class="row">
        <Button submit look="main" little disabled={locked || empty}>
          Send as a branch
        </Button>
        <Button little onClick={onLeave}>
          Cancel
        </Button>
        <span class="small muted">This starts a branch; the conversation itself is kept.</span>
      </div>
    </form>
  );
}

interface AnswerProps extends TintProps {
  exchange: Exchange;
  onPoint: (index: number | null) => void;
  onChoose: (index: number) => void;
}

/** The pointer over a token, or the arrow keys, bring back what the model saw when it wrote it. */
function AnswerText({ exchange, tints, chosen, onPoint, onChoose }: AnswerProps) {
  const { written } = exchange;
  const first = written[0];
  if (!first) return exchange.answer ? <div class="chat-text">{exchange.answer}</div> : null;
  const step = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, Home: -written.length, End: written.length }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = chosen === null ? -1 : chosen - first.index;
    const next =
      written[
        Math.min(
          written.length - 1,
          Math.max(0, (at < 0 || at >= written.length ? (by > 0 ? -1 : written.length) : at) + by),
        )
      ];
    if (next) onChoose(next.index);
  };
  const found = (event: Event): number | null => {
    const at = (event.target as HTMLElement).dataset.token;
    return at === undefined ? null : Number(at);
  };
  return (
    <div
      class="chat-text"
      role="group"
      tabIndex={0}
      aria-label="Answer. Arrow keys go from token to token and show what the model saw."
      onKeyDown={step}
      onPointerOver={(event) => onPoint(found(event))}
      onPointerLeave={() => onPoint(null)}
      onClick={(event) => {
        const index = found(event);
        if (index !== null) onChoose(index);
      }}
    >
      {written.map((token) => (
        <AnswerToken
          key={token.index}
          token={token}
          chosen={token.index === chosen}
          strength={tints.get(token.index)}
        />
      ))}
    </div>
  );
}

function AnswerToken({ token, chosen, strength }: { token: ChatToken; chosen: boolean; strength?: number }) {
  return (
    <span data-token={token.index} class={`chat-token ${chosen ? "chosen" : ""}`} style={tint(strength)}>
      {token.text || (chosen ? visible(token.token) : "")}
    </span>
  );
}

/** Every token the model reads, the template's own among them. Those of an image are one chip. */
export function EveryToken({ conversation, tints, chosen }: TintProps & { conversation: Conversation }) {
  const { tokens, imagePlaces } = conversation;
  const first = Math.max(0, tokens.length - 800);
  const chips = withImages(tokens, imagePlaces).filter((chip) => chip.to > first);
  const before = chips[0]?.from ?? 0;
  return (
    <div class="chat-every mono" tabIndex={0} role="region" aria-label="Every token the model reads">
      {before > 0 && <span class="muted">{before} tokens before these … </span>}
      {chips.map(({ from, to, text, image }) => (
        <span
          key={from}
          class={`chat-token framed ${image ? "image" : ""} ${from === chosen ? "chosen" : ""}`}
          style={tint(Math.max(...Array.from({ length: to - from }, (_, at) => tints.get(from + at) ?? 0)))}
        >
          {image ? `image, ${to - from} ${to - from === 1 ? "token" : "tokens"}` : visible(text)}
          {!image && text.includes("\n") && <br />}
        </span>
      ))}
    </div>
  );
}
