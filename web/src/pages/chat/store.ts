// The conversations of this page: what the server has of them, and the one answer that may be written at a time.
import { computed, effect, signal } from "@preact/signals";
import { connected, events, get, type Event, post, Trouble } from "../../api";
import { asTrouble } from "../../hooks";
import { put } from "../../router";
import type { ChatMessage, ConversationAnswer, PromptProgress } from "../../generated/api";
import { blank, type Conversation, type Exchange, opened, taken } from "./conversation";
import { draft, draftImages, editing, giveBack, sameImages, sent } from "./drafts";
import { list, refreshList } from "./list";

export interface Sampling {
  temperature: number;
  top_k: number | null;
  top_p: number | null;
  min_p: number | null;
  seed: number | null;
  max_tokens: number;
}

export interface Message {
  text: string;
  /** As data: URLs. */
  images: string[];
  model: string;
  system: string;
  sampling: Sampling;
  watch: number | "mean" | null;
  /** Say it instead of this turn: a branch. */
  instead?: number;
  /** That turn's answer as it was up to this token, which is to be another one. */
  token?: { index: number; id: number };
}

export interface Writing {
  since: number;
  phase: string;
  /** How much of the message was read, from 0 to 1. */
  share: number | null;
}

export const current = signal<Conversation | null>(null);
export const writing = signal<Writing | null>(null);
export const failure = signal<{ trouble: Trouble; again: (() => void) | null } | null>(null);
/** The conversation has gone on elsewhere: it has so many turns by now, or an answer is being written there. */
export const moved = signal<{ turns: number; writing: boolean } | null>(null);

interface Branch {
  id: string;
  origin: Conversation["origin"];
}

/** Those that share a root with the one that is shown, in the order they were begun. */
export const branches = computed<Branch[]>(() => {
  const here = current.value;
  if (!here) return [];
  const known = new Map<string, Branch>();
  for (const entry of [...(list.value?.conversations ?? [])].reverse())
    known.set(entry.conversation, { id: entry.conversation, origin: entry.origin });
  if (here.id) known.set(here.id, here);
  const rootOf = (branch: Branch): string => {
    const origin = branch.origin && known.get(branch.origin.conversation);
    return origin ? rootOf(origin) : (branch.origin?.conversation ?? branch.id);
  };
  const root = rootOf(here);
  return [...known.values()].filter((branch) => rootOf(branch) === root);
});

// An answer belongs to the page until another conversation is opened; it goes on without a reader for a while.
let reading: AbortController | null = null;

/** End the answer after its present token. Its last events still come. */
export function stop(): void {
  const id = current.value?.id;
  if (id) void post(`/chat/${id}/stop`, {}).catch(() => reading?.abort());
  else reading?.abort();
}

/** Read no further here. What is being written is written on, and can be joined again. */
function leave(): void {
  reading?.abort();
  reading = null;
  writing.value = null;
}

export function startAnew(): void {
  leave();
  current.value = null;
  failure.value = null;
  moved.value = null;
  put({ conversation: null, token: null });
}

export function show(id: string): void {
  put({ conversation: id, token: null });
}

/** A conversation as the server has it; an answer that is being written is followed on. */
export async function open(id: string): Promise<void> {
  leave();
  failure.value = null;
  moved.value = null;
  const controller = (reading = new AbortController());
  try {
    const seen = await get<ConversationAnswer>(`/chat/${encodeURIComponent(id)}`, { signal: controller.signal, seconds: 180 });
    if (reading !== controller) return;
    current.value = opened(seen);
    put({ model: seen.model });
    const last = current.value.exchanges.at(-1);
    if (seen.writing) await take({ ...current.value, exchanges: [...current.value.exchanges, blank("", [], 0)] }, follow(id, controller.signal), controller);
    // A message that was sent from this tab before it was loaded again, and never came to be a turn.
    else if (sent.value && !(last?.message === sent.value.text && sameImages(last.images, sent.value.images))) giveBack();
    if (!seen.writing) sent.value = null;
  } catch (error) {
    if (reading !== controller) return;
    const trouble = asTrouble(error);
    giveBack();
    failure.value = { trouble, again: trouble.kind === "refused" ? null : () => void open(id) };
  } finally {
    if (reading === controller) reading = null;
  }
}

const follow = (id: string, signal: AbortSignal) => events("GET", `/chat/${id}/events`, undefined, { signal, seconds: 60 });

/** Say something, and take in the answer as it comes. */
export async function say(message: Message): Promise<void> {
  if (writing.value) return;
  leave();
  const before = current.value;
  const { instead } = message;
  const branching = instead !== undefined && before !== null && before.id !== "";
  const old = before?.exchanges.slice(0, instead) ?? [];
  const last = old.at(-1);
  const conversation: Conversation = {
    id: branching ? "" : (before?.id ?? ""),
    model: message.model,
    origin: branching ? { conversation: before.id, turn: instead } : (before?.origin ?? null),
    exchanges: [...old, blank(message.text, message.images, last ? last.promptTokens + last.written.length : 0)],
    tokens: before?.tokens ?? [],
    imagePlaces: before?.imagePlaces ?? [],
    cache: before?.cache ?? null,
    problem: null,
  };
  current.value = conversation;
  failure.value = null;
  moved.value = null;
  sent.value = { text: message.text, images: message.images, turn: branching && !message.token ? instead : null };
  if (message.token) sent.value = null; // it is an old message, and stands where it stood
  put({ token: null });
  const body: ChatMessage = {
    conversation: branching ? null : before?.id || null,
    turn: branching || !before?.id ? null : old.length,
    branch_of: branching ? { conversation: before.id, turn: instead, token: message.token ?? null } : null,
    model: message.model,
    message: message.text,
    images: message.images,
    ...(before === null && message.system ? { system: message.system } : {}),
    sampling: message.sampling,
    watch: message.watch === null ? null : { attention: { layer: message.watch } },
  };
  const controller = (reading = new AbortController());
  try {
    await take(conversation, events("POST", "/chat", body, { signal: controller.signal, seconds: 60 }), controller);
  } catch (error) {
    if (reading === controller) refused(before, asTrouble(error), message);
  } finally {
    if (reading === controller) reading = null;
  }
}

const FRAME_MS = 30;

/** Tokens may come faster than they can be drawn: what stands by the next frame is shown. */
class Drawing {
  private timer: ReturnType<typeof setTimeout> | undefined;
  private latest: Conversation | null = null;

  soon(conversation: Conversation): void {
    this.latest = conversation;
    this.timer ??= setTimeout(() => this.now(true), FRAME_MS);
  }

  now(shown: boolean): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    if (shown && this.latest) current.value = this.latest;
    this.latest = null;
  }
}

/** The events of an answer, one by one. What was stopped before its first token did not happen. */
async function take(start: Conversation, coming: AsyncGenerator<Event>, controller: AbortController): Promise<void> {
  let conversation = start;
  const before = { ...start, exchanges: start.exchanges.slice(0, -1) };
  writing.value = { since: performance.now(), phase: "Reading the message", share: null };
  let done = false;
  const draw = new Drawing();
  try {
    for await (const event of coming) {
      if (reading !== controller) return;
      conversation = taken(conversation, event);
      draw.soon(conversation);
      if (event.event === "start") {
        draw.now(true);
        put({ conversation: conversation.id });
      }
      if (event.event === "prompt") reads(event.data as PromptProgress);
      if (event.event === "token" && writing.value?.phase !== "Writing")
        writing.value = { since: writing.value?.since ?? performance.now(), phase: "Writing", share: null };
      done ||= event.event === "done";
    }
  } catch (error) {
    if (reading !== controller) return; // the reader has opened another one
    const last = conversation.exchanges.at(-1);
    draw.now(false);
    if (!last?.written.length) throw error;
    broken(conversation, last, asTrouble(error));
    return;
  } finally {
    draw.now(reading === controller);
    if (reading === controller) writing.value = null;
  }
  if (done && conversation.exchanges.at(-1)?.written.length) sent.value = null;
  else if (done) {
    giveBack();
    current.value = before.exchanges.length ? before : null;
    if (!before.exchanges.length) put({ conversation: null });
  } else if (conversation.id) void open(conversation.id); // it had come to its end before it could be joined
  void refreshList();
}

function reads({ done, total }: PromptProgress): void {
  const phase = total > 64 ? `Reading: ${done.toLocaleString("en")} of ${total.toLocaleString("en")} tokens` : "Reading the message";
  writing.value = { since: writing.value?.since ?? performance.now(), phase, share: total > 64 ? done / total : null };
}

/** The stream broke off in the middle of an answer. What the server has of it is asked for as soon as it is back. */
function broken(conversation: Conversation, last: Exchange, trouble: Trouble): void {
  current.value = { ...conversation, exchanges: conversation.exchanges.with(-1, { ...last, finish: "broken off" }) };
  failure.value = { trouble, again: () => void open(conversation.id) };
  if (trouble.kind !== "gone") return;
  const end = effect(() => {
    if (!connected.value) return;
    queueMicrotask(() => {
      end();
      if (current.peek()?.id === conversation.id) void open(conversation.id);
    });
  });
}

/** Nothing was written: the page is as it was before, and the text is back where it was typed. */
function refused(before: Conversation | null, trouble: Trouble, message: Message): void {
  current.value = before;
  put({ conversation: before?.id ?? null });
  giveBack();
  if (trouble.kind === "stopped") return;
  if (trouble.code === "conversation_moved") {
    void lookElsewhere().then(() => (moved.value ??= { turns: before?.exchanges.length ?? 0, writing: true }));
    return;
  }
  const again = trouble.status === 400 ? null : () => void sayAgain(message);
  failure.value = { trouble, again };
}

/** The same message once more: it is taken out of the box again. */
function sayAgain(message: Message): Promise<void> {
  if (draft.value === message.text && sameImages(draftImages.value, message.images)) {
    draft.value = "";
    draftImages.value = [];
  }
  if (editing.value?.text === message.text) editing.value = null;
  return say(message);
}

/** Whether the conversation that is shown has gone on in another tab. */
export async function lookElsewhere(): Promise<void> {
  const here = current.value;
  await refreshList();
  if (!here?.id || current.value !== here || writing.value) return;
  const entry = list.value?.conversations.find((one) => one.conversation === here.id);
  if (!entry) return;
  const elsewhere = entry.writing || entry.turns !== here.exchanges.length;
  moved.value = elsewhere ? { turns: entry.turns, writing: entry.writing } : null;
}

