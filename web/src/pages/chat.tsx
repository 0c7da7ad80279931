// Chat and watch: talk to a model and see what it sees while it writes.
import { useEffect, useState } from "preact/hooks";
import { Button, Check } from "../components/controls";
import { ModelPicker, useModel } from "../components/ModelPicker";
import { Trouble } from "../api";
import { Card, PageHead, Problem } from "../components/state";
import { tints } from "../lib/tokens";
import { put, route, useParam } from "../router";
import type { Model } from "../types";
import "./chat.css";
import { SettingsCard, useSettings } from "./chat/settings";
import { Composer } from "./chat/composer";
import type { Conversation, Exchange } from "./chat/conversation";
import { ConversationsCard } from "./chat/conversations";
import { draft, draftImages, giveBack, restored, sent } from "./chat/drafts";
import {
  branches,
  current,
  failure,
  lookElsewhere,
  type Message,
  moved,
  open,
  type Sampling,
  say,
  show,
  startAnew,
  writing,
} from "./chat/store";
import type { ChatToken } from "../generated/api";
import { EveryToken, Transcript } from "./chat/transcript";
import { AttentionWords, CacheCard, CostCard, DistributionCard } from "./chat/watch";

const EXAMPLES = ["Why is the sky blue?", "What is the capital of France?", "Name three fruits."];

const findToken = (conversation: Conversation | null, index: number | null): ChatToken | null => {
  if (!conversation || index === null) return null;
  for (const exchange of conversation.exchanges) {
    const found = exchange.written.find((token) => token.index === index);
    if (found) return found;
  }
  return null;
};

export default function Page() {
  const [name, setName] = useParam("model", "");
  const model = useModel(name);
  const able = model?.kind === "decoder";
  const settings = useSettings();
  const [pointed, setPointed] = useState<number | null>(null);
  const [pinned] = useParam("token", -1);
  const [every, setEvery] = useParam("tokens", false);
  const conversation = current.value;
  const wanted = route.value.params.conversation ?? "";
  useEffect(() => {
    if (!wanted && current.peek()?.id && !writing.peek()) current.value = null;
    let left = false;
    void restored.then(() => {
      if (left) return;
      if (wanted && wanted !== current.peek()?.id) void open(wanted);
      if (!wanted && !writing.peek() && sent.peek()) giveBack(); // loaded again before its answer had begun
    });
    return () => {
      left = true;
    };
  }, [wanted]);
  useElsewhere();

  const send = (text: string, images: string[], more: Partial<Message> = {}) => {
    if (model) void say({ text, images, model: model.name, ...settings, ...more });
  };
  const again = (turn: number, { message, images }: Exchange) =>
    send(message, images, { instead: turn, sampling: { ...settings.sampling, seed: anotherSeed() } });
  const force = (index: number, id: number) => {
    const turn = conversation?.exchanges.findIndex((one) => one.written.some((token) => token.index === index)) ?? -1;
    const exchange = conversation?.exchanges[turn];
    if (exchange) send(exchange.message, exchange.images, { instead: turn, token: { index, id } });
  };
  const newest = conversation?.exchanges.at(-1)?.written.at(-1) ?? null;
  const chosen = findToken(conversation, pointed) ?? findToken(conversation, pinned < 0 ? null : pinned);
  const token = chosen ?? newest;
  const strength = token ? tints(token.attention) : new Map<number, number>();
  return (
    <>
      <PageHead
        title="Chat and watch"
        words="Chat with a model and watch its next-token probabilities, its attention and its cache."
        beside={
          <ModelPicker
            value={name}
            fits={(entry) => entry.kind === "decoder"}
            onChange={(next) => {
              startAnew();
              setName(next);
            }}
          />
        }
      />
      <div class="chat-grid">
        <div class="chat-talk">
          <Card title="Conversation" beside={conversation && <Branches conversation={conversation} />}>
            {conversation ? (
              <Transcript
                conversation={conversation}
                tints={strength}
                chosen={chosen?.index ?? null}
                onPoint={setPointed}
                onChoose={(index) => {
                  setPointed(null); // the keys count, though the pointer may rest on another token
                  put({ token: index });
                }}
                onInstead={(turn, text, images) => send(text, images, { instead: turn })}
                onAgain={again}
              />
            ) : (
              <Welcome disabled={!able} onPick={(text) => send(text, [])} />
            )}
            {model && !able && <Problem trouble={new Trouble("refused", cannotChat(model), "Choose another model.")} />}
            {conversation?.problem && (
              <Problem trouble={new Trouble("refused", conversation.problem, "You can still read and export it.")} />
            )}
            {moved.value && conversation && <Moved conversation={conversation} onBranch={send} />}
            {failure.value && <Problem trouble={failure.value.trouble} retry={failure.value.again ?? undefined} />}
            {token && conversation && <AttentionWords attention={token.attention} conversation={conversation} />}
            <Composer
              disabled={!able || Boolean(conversation?.problem)}
              images={model?.images ?? false}
              onSend={(text, images) => send(text, images)}
            />
            {conversation && conversation.tokens.length > 0 && (
              <>
                <Check label="Show every token the model reads" value={every} onChange={setEvery} />
                {every && <EveryToken conversation={conversation} tints={strength} chosen={chosen?.index ?? null} />}
              </>
            )}
          </Card>
        </div>
        <Watch
          conversation={conversation}
          token={token}
          model={model}
          sampling={settings.sampling}
          pinned={chosen !== null}
          onForce={force}
        />
        <div class="stack wide chat-set">
          <SettingsCard model={model} begun={conversation !== null} />
          <ConversationsCard />
        </div>
      </div>
    </>
  );
}

const anotherSeed = (): number => 1 + Math.floor(Math.random() * 99_999);

const cannotChat = (model: Model): string =>
  `${model.name} is an ${model.kind}: it reads texts, and writes no answers to them.`;

/** When the reader comes back to this tab, another one may have gone on with the conversation. */
function useElsewhere(): void {
  useEffect(() => {
    const look = () => {
      if (document.visibilityState === "visible") void lookElsewhere();
    };
    addEventListener("focus", look);
    document.addEventListener("visibilitychange", look);
    return () => {
      removeEventListener("focus", look);
      document.removeEventListener("visibilitychange", look);
    };
  }, []);
}

interface MovedProps {
  conversation: Conversation;
  onBranch: (text: string, images: string[], more: Partial<Message>) => void;
}

/** Nothing is merged: the reader chooses what to see, or says the message where this tab has stopped. */
function Moved({ conversation, onBranch }: MovedProps) {
  const elsewhere = moved.value;
  const shown = conversation.exchanges.length;
  const text = draft.value.trim();
  const images = draftImages.value;
  return (
    <div class="problem" role="alert">
      <div>
        <p>
          {elsewhere?.writing
            ? "An answer is being written in this conversation, in another tab."
            : `This conversation was continued in another tab: it has ${elsewhere?.turns} messages there, ${shown} here.`}
        </p>
        <p class="muted small">Your message is still in the box.</p>
      </div>
      <div class="row">
        <Button onClick={() => void open(conversation.id)}>Show the current version</Button>
        <Button
          disabled={!text && !images.length}
          onClick={() => {
            draft.value = "";
            draftImages.value = [];
            onBranch(text, images, { instead: shown });
          }}
        >
          Send as a branch
        </Button>
      </div>
    </div>
  );
}

interface WatchProps {
  conversation: Conversation | null;
  token: ChatToken | null;
  model: Model | null;
  sampling: Sampling;
  pinned: boolean;
  onForce: (index: number, id: number) => void;
}

function Watch({ conversation, token, model, sampling, pinned, onForce }: WatchProps) {
  const exchange = conversation?.exchanges.at(-1);
  return (
    <div class="stack wide chat-watch">
      {conversation && token ? (
        <DistributionCard
          conversation={conversation}
          token={token}
          sampling={sampling}
          pinned={pinned}
          onRelease={() => put({ token: null })}
          onForce={onForce}
        />
      ) : (
        <Card title="Next token">
          <p class="small muted">
            While the model writes, its most likely next tokens are shown here, before and after sampling settings.
          </p>
        </Card>
      )}
      {conversation?.cache && conversation.cache.layers.length > 0 ? (
        <CacheCard cache={token?.cache ?? conversation.cache} context={model?.context ?? null} />
      ) : (
        <Card title="Cache">
          <p class="small muted">
            The cache is shown here, by layer and position: what was reused and what is new.
          </p>
        </Card>
      )}
      {exchange?.cost && <CostCard exchange={exchange} />}
    </div>
  );
}

function Branches({ conversation }: { conversation: Conversation }) {
  const all = branches.value;
  const busy = writing.value !== null;
  return (
    <div class="row">
      {all.length > 1 && (
        <div class="row" role="group" aria-label="Branches">
          {all.map((branch, index) => (
            <Button
              key={branch.id}
              little
              disabled={busy}
              pressed={branch.id === conversation.id}
              label={`Branch ${index + 1}${branch.origin ? `, from message ${branch.origin.turn + 1}` : ""}`}
              onClick={() => show(branch.id)}
            >
              {index + 1}
            </Button>
          ))}
        </div>
      )}
      <Button little onClick={startAnew}>
        New conversation
      </Button>
    </div>
  );
}

function Welcome({ disabled, onPick }: { disabled: boolean; onPick: (text: string) => void }) {
  return (
    <div class="stack">
      <p class="muted">Write a message, or start with one of these:</p>
      <div class="row" role="group" aria-label="Start with">
        {EXAMPLES.map((text) => (
          <Button key={text} little disabled={disabled} onClick={() => onPick(text)}>
            {text}
          </Button>
        ))}
      </div>
    </div>
  );
}
