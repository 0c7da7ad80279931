// The conversations of this page, kept while the reader looks at others. One may be written at a time.
import { computed, signal } from "@preact/signals";
import { events, get, type Event, Trouble } from "../../api";
import { asTrouble } from "../../hooks";
import { put } from "../../router";
import type {
  AnswerCost,
  CacheState,
  ChatDone,
  ChatStart,
  ChatToken,
  ConversationAnswer,
  ProjectionCost,
} from "../../generated/api";

export interface Sampling {
  temperature: number;
  top_k: number | null;
  top_p: number | null;
  min_p: number | null;
  seed: number | null;
  max_tokens: number;
}

/** One message and its answer. */
export interface Exchange {
  message: string;
  answer: string;
  written: ChatToken[];
  /** Where the tokens of the message may begin, and where the answer begins. */
  from: number;
  promptTokens: number;
  reused: number;
  finish: string | null;
  cost: (ProjectionCost & Partial<AnswerCost>) | null;
}

export interface Conversation {
  id: string;
  model: string;
  /** Where it left another one, for the list of branches. */
  origin: { id: string; turn: number } | null;
  exchanges: Exchange[];
  tokens: string[];
  cache: CacheState | null;
}

export interface Message {
  text: string;
  model: string;
  system: string;
  sampling: Sampling;
  watch: number | "mean" | null;
  /** Say it instead of this turn: a branch. */
  instead?: number;
}

export const conversations = signal<ReadonlyMap<string, Conversation>>(new Map());
export const current = signal<Conversation | null>(null);
export const writing = signal<{ since: number; phase: string } | null>(null);
export const failure = signal<{ trouble: Trouble; again: (() => void) | null } | null>(null);

/** Those that share a root with the one that is shown, in the order they were begun. */
export const branches = computed<Conversation[]>(() => {
  const here = current.value;
  if (!here) return [];
  const rootOf = (conversation: Conversation): string => {
    const origin = conversation.origin && conversations.value.get(conversation.origin.id);
    return origin ? rootOf(origin) : conversation.id;
  };
  const root = rootOf(here);
  return [...conversations.value.values()].filter((conversation) => rootOf(conversation) === root);
});

let stopper: AbortController | null = null;

export const stop = (): void => stopper?.abort();

function keep(conversation: Conversation): void {
  current.value = conversation;
  if (conversation.id) conversations.value = new Map(conversations.value).set(conversation.id, conversation);
}

export function show(id: string): void {
  const conversation = conversations.value.get(id);
  if (!conversation) return;
  current.value = conversation;
  failure.value = null;
  put({ conversation: id, token: null });
}

export function startAnew(): void {
  stop();
  current.value = null;
  failure.value = null;
  put({ conversation: null, token: null });
}

/** A conversation that the server still has, after the page was opened anew. */
export async function restore(id: string): Promise<void> {
  const kept = conversations.value.get(id);
  if (kept) {
    current.value = kept;
    return;
  }
  try {
    const seen = await get<ConversationAnswer>(`/chat/${encodeURIComponent(id)}`);
    const exchanges: Exchange[] = [];
    for (const { role, text } of seen.turns) {
      const last = exchanges.at(-1);
      if (role === "user") exchanges.push(blank(text, 0));
      else if (last) exchanges[exchanges.length - 1] = { ...last, answer: text, finish: "stop" };
    }
    keep({ id, model: seen.model, origin: null, exchanges, tokens: seen.tokens, cache: seen.cache });
    put({ model: seen.model });
  } catch (error) {
    const trouble = asTrouble(error);
    failure.value = { trouble, again: trouble.kind === "refused" ? null : () => void restore(id) };
  }
}

const blank = (message: string, from: number): Exchange => ({
  message,
  answer: "",
  written: [],
  from,
  promptTokens: 0,
  reused: 0,
  finish: null,
  cost: null,
});

/** Say something, and take in the answer as it comes. */
export async function say(message: Message): Promise<void> {
  if (writing.value) return;
  const before = current.value;
  const instead = message.instead;
  const old = before?.exchanges.slice(0, instead) ?? [];
  const last = old.at(-1);
  const branching = instead !== undefined && before !== null && before.id !== "";
  let conversation: Conversation = {
    id: branching ? "" : (before?.id ?? ""),
    model: message.model,
    origin: branching ? { id: before.id, turn: instead } : (before?.origin ?? null),
    exchanges: [...old, blank(message.text, last ? last.promptTokens + last.written.length : 0)],
    tokens: before?.tokens ?? [],
    cache: before?.cache ?? null,
  };
  current.value = conversation;
  failure.value = null;
  put({ token: null });
  stopper = new AbortController();
  writing.value = { since: performance.now(), phase: "Reading the message" };
  const body = {
    conversation: branching ? null : (before?.id ?? null),
    branch_of: branching ? { conversation: before.id, turn: instead } : null,
    model: message.model,
    message: message.text,
    ...(before === null && message.system ? { system: message.system } : {}),
    sampling: message.sampling,
    watch: message.watch === null ? null : { attention: { layer: message.watch } },
  };
  try {
    for await (const event of events("POST", "/chat", body, { signal: stopper.signal, seconds: 60 })) {
      conversation = taken(conversation, event);
      if (event.event === "start") put({ conversation: conversation.id });
      keep(conversation);
    }
  } catch (error) {
    ended(conversation, before, message, asTrouble(error));
  } finally {
    writing.value = null;
    stopper = null;
  }
}

/** The conversation after one more event. */
export function taken(conversation: Conversation, { event, data }: Event): Conversation {
  const at = conversation.exchanges.length - 1;
  const exchange = conversation.exchanges[at];
  if (!exchange) return conversation;
  const changed = (part: Partial<Exchange>): Exchange[] => conversation.exchanges.with(at, { ...exchange, ...part });
  if (event === "start") {
    const start = data as ChatStart;
    return {
      ...conversation,
      id: start.conversation,
      tokens: start.tokens,
      cache: start.cache ?? conversation.cache,
      exchanges: changed({ promptTokens: start.prompt_tokens, reused: start.reused_tokens, cost: start.cost }),
    };
  }
  if (event === "token") {
    const token = data as ChatToken;
    if (writing.value?.phase !== "Writing")
      writing.value = { since: writing.value?.since ?? performance.now(), phase: "Writing" };
    return {
      ...conversation,
      tokens: [...conversation.tokens.slice(0, token.index), token.token],
      cache: token.cache,
      exchanges: changed({
        answer: exchange.answer + token.text,
        written: [...exchange.written, token],
        cost: {
          ...exchange.cost,
          ...(token.cost ?? exchange.cost ?? { projections_cached: 0, projections_uncached: 0 }),
        },
      }),
    };
  }
  if (event === "done") {
    const done = data as ChatDone;
    return { ...conversation, exchanges: changed({ answer: done.text, finish: done.finish, cost: done.cost }) };
  }
  return conversation;
}

/** The stream broke off: what was said stays, and a turn without a single token did not happen. */
function ended(conversation: Conversation, before: Conversation | null, message: Message, trouble: Trouble): void {
  const last = conversation.exchanges.at(-1);
  if (!last?.written.length) {
    if (conversation.id && conversation.id !== before?.id) {
      const rest = new Map(conversations.value);
      rest.delete(conversation.id);
      conversations.value = rest;
    }
    current.value = before;
    put({ conversation: before?.id ?? null });
  } else {
    keep({
      ...conversation,
      exchanges: conversation.exchanges.with(-1, { ...last, finish: trouble.kind === "stopped" ? "stopped" : "broken off" }),
    });
  }
  if (trouble.kind === "stopped") return;
  const lost = last?.written.length ? null : () => void say(message);
  failure.value = { trouble, again: lost };
}
