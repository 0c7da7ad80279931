// A conversation as the page has it: what the server tells of it, event by event. Pure.
import type { Event } from "../../api";
import type {
  AnswerCost,
  AssistantTurn,
  CacheState,
  ChatDone,
  ChatStart,
  ChatToken,
  ConversationAnswer,
  ImagePlace,
  ProjectionCost,
} from "../../generated/api";

/** One message and its answer. */
export interface Exchange {
  message: string;
  /** What was sent with it, as data: URLs. */
  images: string[];
  answer: string;
  written: ChatToken[];
  /** Where the tokens of the message may begin, and where the answer begins. */
  from: number;
  promptTokens: number;
  reused: number;
  finish: string | null;
  seed: number | null;
  cost: (ProjectionCost & Partial<AnswerCost>) | null;
}

export interface Conversation {
  id: string;
  model: string;
  /** Where it left another one, for the list of branches. */
  origin: { conversation: string; turn: number } | null;
  exchanges: Exchange[];
  tokens: string[];
  /** Which of the tokens are an image's. */
  imagePlaces: ImagePlace[];
  cache: CacheState | null;
  /** Why nothing more can be said in it. */
  problem: string | null;
}

export function opened(seen: ConversationAnswer): Conversation {
  const exchanges: Exchange[] = [];
  let from = 0;
  for (const turn of seen.turns) {
    const last = exchanges.at(-1);
    if (turn.role === "user") exchanges.push(blank(turn.text, turn.images, from));
    else if (last) {
      exchanges[exchanges.length - 1] = { ...last, ...answered(turn) };
      from = turn.prompt_tokens + turn.written.length;
    }
  }
  return {
    id: seen.conversation,
    model: seen.model,
    origin: seen.origin,
    exchanges,
    tokens: seen.tokens,
    imagePlaces: seen.image_places,
    cache: seen.cache.layers.length ? seen.cache : null,
    problem: seen.problem,
  };
}

const answered = (turn: AssistantTurn): Partial<Exchange> => ({
  answer: turn.text,
  finish: turn.finish,
  promptTokens: turn.prompt_tokens,
  reused: turn.reused_tokens,
  seed: turn.seed,
  cost: turn.cost,
  written: turn.written,
});

export const blank = (message: string, images: string[], from: number): Exchange => ({
  message,
  images,
  answer: "",
  written: [],
  from,
  promptTokens: 0,
  reused: 0,
  finish: null,
  seed: null,
  cost: null,
});

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
      imagePlaces: start.image_places,
      cache: start.cache ?? conversation.cache,
      exchanges: changed({
        message: start.message,
        images: start.images,
        promptTokens: start.prompt_tokens,
        reused: start.reused_tokens,
        seed: start.seed,
        cost: start.cost,
      }),
    };
  }
  if (event === "token") {
    const token = data as ChatToken;
    return {
      ...conversation,
      tokens: [...conversation.tokens.slice(0, token.index), token.token],
      cache: token.cache,
      exchanges: changed({
        answer: exchange.answer + token.text,
        written: [...exchange.written, token],
        cost: { ...exchange.cost, ...token.cost },
      }),
    };
  }
  if (event === "done") {
    const done = data as ChatDone;
    return { ...conversation, exchanges: changed({ answer: done.text, finish: done.finish, cost: done.cost }) };
  }
  return conversation;
}
