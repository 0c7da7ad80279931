// Written by `make types` (vantage/serve/studio/types.py) from the models of the studio's API. Do not edit.

export interface AblateHeadsRequest {
  model: string;
  text: string;
  how?: "zero" | "mean";
  target?: string | null;
  against?: string | null;
}

export interface AblateRequest {
  model: string;
  text: string;
  part: "head" | "attention" | "feed_forward" | "layer";
  layer: number;
  head?: number;
  how?: "zero" | "mean";
  tokens?: number;
}

/**
 * How a model goes on with a text, and how it does without one of its parts. `moved`: half the sum of what the
 * probabilities of the next token changed by.
 */
export interface AblationAnswer {
  part: string;
  before: string;
  after: string;
  candidates: CandidatePair[];
  moved: number;
}

/** Of a whole answer, with its time: all of it, and up to the first token. */
export interface AnswerCost {
  projections_cached: number;
  projections_uncached: number;
  ms_total: number;
  ms_first: number;
}

/** An answer of a conversation, with everything before it: the very tokens. */
export interface AnswerPoint {
  conversation: string;
  turn: number;
}

/** An answer. `written`: what was watched at its last tokens. */
export interface AssistantTurn {
  role: "assistant";
  text: string;
  turn: number;
  parent: string | null;
  finish: string;
  prompt_tokens: number;
  reused_tokens: number;
  seed: number;
  cost: AnswerCost;
  written: ChatToken[];
}

export interface AtlasAnswer {
  heads: HeadEntry[];
  counts: Record<string, number>;
  tokens: number;
}

/** One attention of a model. */
export interface AttentionSite {
  kind: "self" | "cross" | "encoder";
  layer: number;
  heads: number;
}

/** One group of bars for each name in `series`, all over the same `labels`. */
export interface Bars {
  title: string;
  y_label: string;
  labels: string[];
  series: [string, (number | null)[]][];
  low: (number | null)[][] | null;
  high: (number | null)[][] | null;
  log_y: boolean;
  kind: "bars";
}

/** One block of the diagram. */
export interface BlockEntry {
  name: string;
  mask: string;
  window: number | null;
  position: string[];
  attention: string;
  around: string[];
  heads: number;
  kv_heads: number;
  head_width: number;
  cross: boolean;
  ffn: string;
  norm: string;
  wiring: string;
  stack: "encoder" | "decoder";
}

/** Where a conversation left another one. */
export interface BranchOrigin {
  conversation: string;
  turn: number;
}

/** Where a branch begins. `token`: the turn's answer as it was, up to this token, which is another one now. */
export interface BranchPoint {
  conversation: string;
  turn: number;
  token?: ForcedToken | null;
}

/** A model as code, as a spec and in numbers. `why_not`: why there is no way to train it, where there is none. */
export interface BuildAnswer {
  code: string;
  spec_json: Record<string, unknown>;
  parameters: number;
  parameters_by_part: PartCount[];
  cache_bytes: ContextBytes[];
  layers: BlockEntry[];
  toml: string | null;
  command: string | null;
  why_not: string | null;
}

/** What the form offers, and what it begins with. */
export interface BuildChoices {
  kinds: ("decoder" | "encoder" | "encoder_decoder")[];
  positions: EncodingEntry[];
  attentions: string[];
  normalisers: NormaliserEntry[];
  options: Record<string, OptionEntry>;
  tasks: string[];
  defaults: BuildSettings;
}

export interface BuildRequest {
  settings: BuildSettings;
}

/** What was filled in: the options, and what the form says in words of its own. */
export interface BuildSettings {
  width: number;
  layers: number;
  heads: number;
  kv_heads: number | null;
  window: number | null;
  max_length: number | null;
  ffn: "swiglu" | "geglu" | "gelu" | "relu";
  norm: "rms" | "layer";
  wiring: "pre" | "post" | "sandwich" | "parallel";
  bias: boolean;
  dropout: number;
  tied: boolean;
  bidirectional: boolean;
  output: "none" | "gate" | "exclusive";
  indexer: "none" | "top-k";
  kv_sharing: number;
  shared: boolean;
  kind: "decoder" | "encoder" | "encoder_decoder";
  vocab: number;
  head_width: number | null;
  attention: string;
  latent: LatentSizes | null;
  delta: DeltaSizes | null;
  normaliser: string;
  softcap: number | null;
  sinks: boolean;
  position: EncodingRequest;
  full_every: number | null;
  full_position: "same" | "none";
  hidden: number | null;
  experts: ExpertMixture | null;
  task: string | null;
  steps: number;
}

/** One way to keep keys and values: bytes for each token, and at each of the contexts asked for. */
export interface CacheCost {
  kind: string;
  own: boolean;
  bytes_per_token: number;
  bytes_at: number[];
}

export interface CacheState {
  layers: LayerCacheState[];
  bytes: number;
}

/** A token that may come next, with its probability in both cases. */
export interface CandidatePair {
  text: string;
  before: number;
  after: number;
}

/**
 * The event `done`. `turns`: how many the conversation has now. What was stopped before its first token is
 * none.
 */
export interface ChatDone {
  finish: string;
  turns: number;
  usage: TokenUsage;
  cost: AnswerCost;
  text: string;
}

/**
 * `turn`: how many turns the page shows; where the conversation has others by now, the message is refused.
 *
 * `images`: files as data: URLs, for a model that reads them.
 */
export interface ChatMessage {
  model: string;
  message: string;
  images?: string[];
  conversation?: string | null;
  turn?: number | null;
  branch_of?: BranchPoint | null;
  system?: string | null;
  sampling?: SamplingFields;
  watch?: Watch | null;
}

/**
 * The event `start`. `message` and its `images`, as data: URLs: what is answered, for a reader who comes
 * later. `image_places`: of all images in `tokens`.
 */
export interface ChatStart {
  conversation: string;
  turn: number;
  message: string;
  images: string[];
  seed: number;
  prompt_tokens: number;
  reused_tokens: number;
  tokens: string[];
  image_places: ImagePlace[];
  cache: CacheState;
  cost: ProjectionCost;
}

/**
 * The event `token`. `index`: its place in the conversation. `slowed`: why it was computed module by module
 * to be watched; null where it was not.
 */
export interface ChatToken {
  index: number;
  id: number;
  text: string;
  token: string;
  logprob: number;
  top: TokenChoice[];
  attention: TokenWeight[];
  slowed: string | null;
  cache: CacheState;
  cost: ProjectionCost;
  ms: number;
}

export interface CheckResult {
  name: string;
  passed: boolean;
  words: string;
}

/**
 * What the form offers. `control`: the position that takes part in the tasks of `controlled` alone.
 *
 * `about`: what each name stands for, where that is known.
 */
export interface CompareChoices {
  tasks: string[];
  positions: string[];
  attention: string[];
  control: string;
  controlled: string[];
  about: Record<string, string>;
  defaults: CompareDefaults;
}

export interface CompareDefaults {
  tasks: string[];
  positions: string[];
  attention: string[];
  train_length: number;
  test_lengths: number[];
  seeds: number;
  steps: number | null;
  budget: string;
  batch: number;
  width: number;
  layers: number;
  heads: number;
  test_examples: number;
}

/** The event `done`: the name of the report, and what it says in short. */
export interface CompareDone {
  report: string;
  short: string[];
}

/** The event `progress`. `left_s`: seconds, as far as they are known. The event `curve` is a figure. */
export interface CompareProgress {
  done: number;
  total: number;
  left_s: number | null;
  rows: CompareRow[];
  message: string;
}

export interface CompareRequest {
  tasks: string[];
  positions: string[];
  attention?: string[];
  train_length?: number;
  test_lengths?: number[];
  seeds?: number;
  steps?: number | null;
  budget?: string | number | null;
  batch?: number;
  width?: number;
  layers?: number;
  heads?: number;
  test_examples?: number;
}

/** One task and entry: its runs, what is scored there, and the mean score at each length. */
export interface CompareRow {
  task: string;
  entry: string;
  measure: "exact" | "tokens";
  runs: number;
  diverged: number;
  at: LengthScore[];
}

/** A comparison in the list. `report`: whether there is one. */
export interface ComparisonEntry {
  name: string;
  when: string;
  title: string;
  state: "running" | "done" | "stopped" | "error";
  report: boolean;
}

export interface ComparisonStarted {
  id: string;
}

export interface ComparisonStopped {
  id: string;
  stopped: boolean;
}

/** What the cache of one row takes at a context. */
export interface ContextBytes {
  context: number;
  bytes: number;
}

/**
 * A conversation so far. `writing`: an answer is on its way, and can be followed.
 *
 * `problem`: why nothing more can be said in it.
 */
export interface ConversationAnswer {
  conversation: string;
  model: string;
  system: string | null;
  origin: ConversationOrigin | null;
  turns: (UserTurn | AssistantTurn)[];
  tokens: string[];
  image_places: ImagePlace[];
  cache: CacheState;
  writing: boolean;
  problem: string | null;
}

/** A conversation in the list. `updated`: seconds since 1970; `kept`: in a file, over restarts. */
export interface ConversationEntry {
  conversation: string;
  model: string;
  title: string;
  turns: number;
  updated: number;
  origin: ConversationOrigin | null;
  kept: boolean;
  writing: boolean;
}

/** All conversations, the newest first. `keeping`: new turns are written to files in `folder`. */
export interface ConversationList {
  keeping: boolean;
  folder: string;
  problem: string | null;
  conversations: ConversationEntry[];
}

/** Where a conversation left another one. */
export interface ConversationOrigin {
  conversation: string;
  turn: number;
}

export interface CostAnswer {
  table: CacheCost[];
  contexts: number[];
  batch: number;
  dtype: string;
  parameters: number;
  parameters_by_part: PartCount[];
  operations: PartOperations[];
  figures: Figure[];
}

/** A model that is there, or a shape. */
export interface CostRequest {
  model?: string | null;
  shape?: SizesRequest | null;
  contexts?: number[];
  batch?: number;
  dtype?: "float64" | "float32" | "bfloat16" | "float16" | null;
}

/** Of Kimi delta attention (KDA). `rank`: of the maps to the decays and the gate; none: a head's width. */
export interface DeltaSizes {
  rank: number | null;
  taps: number;
}

/** `top`: null where the token was written too long ago, and its numbers are not kept. */
export interface DistributionAnswer {
  top: TokenChoice[] | null;
}

export interface DistributionRequest {
  conversation: string;
  index: number;
  sampling?: SamplingFields;
}

export interface DragRequest {
  model: string;
  text: string;
  layer: number;
  head: number;
  query: number;
  moved: TokenMove;
}

/** A position encoding that can be chosen, with what may be said about it. */
export interface EncodingEntry {
  name: string;
  title: string;
  about: string;
  parameters: Parameter[];
}

export interface EncodingFigures {
  figures: Figure[];
}

/**
 * The encoding that something was looked at with.
 *
 * `name`: null where a model's own encoding is none of those offered. `swapped`: another one than the model's own.
 * `untrained`: its weights are its own, and nobody trained them. `same`: it is the model's own, put in once more.
 */
export interface EncodingInfo {
  name: string | null;
  values: Record<string, number | string>;
  title: string;
  swapped: boolean;
  untrained: boolean;
  same: boolean;
}

export interface EncodingList {
  encodings: EncodingEntry[];
}

/** An encoding by name. What is not said stands as it comes. */
export interface EncodingRequest {
  name: string;
  values: Record<string, number | string>;
}

/** A model before and after its encoding was swapped. `untrained`: the other one has weights nobody trained. */
export interface EncodingSwapAnswer {
  perplexity: PerplexityPair;
  text: TextPair;
  over_position: Figure;
  untrained: boolean;
  tokens: number;
}

/** An encoding by name; what its values do not say is as it comes. */
export interface EncodingValues {
  name: string;
  values: Record<string, number | string>;
}

/** How it can be done, and why. */
export interface ExerciseAnswer {
  code: string;
  words: string;
}

export interface ExerciseEntry {
  tag: string;
  title: string;
  task: string;
  starter: string;
}

/** Experts in the place of one feed-forward layer. */
export interface ExpertMixture {
  count: number;
  k: number;
  shared: boolean;
}

/** One picture of one or more panels. `name` is a file name without its ending. */
export interface Figure {
  name: string;
  caption: string;
  panels: (Lines | Bars | Heat | Histogram)[];
}

/** A token that is written in the place of another. `index`: its number in the conversation. */
export interface ForcedToken {
  index: number;
  id: number;
}

/** `held`: what kept the code within bounds while it ran. */
export interface GradeAnswer {
  passed: boolean;
  checks: CheckResult[];
  output: string;
  held: string[];
}

export interface GradeRequest {
  code: string;
}

/** A head, and what it does most: the mean of what was measured, each null where nothing was. */
export interface HeadEntry {
  kind: "self" | "cross" | "encoder";
  layer: number;
  head: number;
  label: string;
  entropy: number | null;
  distance: number | null;
  shares: Record<string, number | null>;
}

/** A matrix in colours. None: an empty cell (minus infinity, nothing to see). */
export interface Heat {
  title: string;
  x_label: string;
  y_label: string;
  values: (number | null)[][];
  x_ticks: string[] | null;
  y_ticks: string[] | null;
  diverging: boolean;
  written: boolean;
  kind: "heat";
}

export interface Histogram {
  title: string;
  x_label: string;
  samples: [string, number[]][];
  bins: number;
  kind: "histogram";
}

/** Which tokens are an image's: so many from `start` on. */
export interface ImagePlace {
  start: number;
  tokens: number;
}

/** `conversation`: its id here; `new`: it was not here yet. */
export interface ImportedConversation {
  conversation: string;
  new: boolean;
}

export interface Keeping {
  keeping: boolean;
}

/** Of latent attention. What is none is a head's width. */
export interface LatentSizes {
  kv_rank: number;
  rope_dim: number;
  nope_dim: number | null;
  value_dim: number | null;
  q_rank: number | null;
}

/** Tokens of the text, those that a layer's cache holds, and those that were there before this turn. */
export interface LayerCacheState {
  length: number;
  held: number;
  reused: number;
}

/** The share of rows, or of tokens, that are right. */
export interface LengthScore {
  length: number;
  score: number;
}

/**
 * The best guesses after each block, (stages, tokens, guesses); the first stage is the embedding.
 *
 * `target`: the log-probability of the target, `rank`: how many tokens are likelier; null without a target.
 */
export interface LensAnswer {
  tokens: string[];
  stages: string[];
  guesses: string[][][];
  probabilities: number[][][];
  entropy: number[][];
  divergence: number[][];
  target: number[][] | null;
  rank: number[][] | null;
  ms: number;
}

export interface LensRequest {
  model: string;
  text: string;
  target?: string | null;
}

export interface Line {
  name: string;
  x: number[];
  y: (number | null)[];
  low: (number | null)[] | null;
  high: (number | null)[] | null;
  look: "solid" | "dashed" | "dots";
}

export interface Lines {
  title: string;
  x_label: string;
  y_label: string;
  lines: Line[];
  log_x: boolean;
  log_y: boolean;
  marks: [string, number][];
  kind: "lines";
}

export interface LoadRequest {
  name: string;
}

export interface MeasureRequest {
  model: string;
  tokens?: number;
}

/** The event `point`: after `n` tokens. */
export interface MeasuredPoint {
  n: number;
  length: number;
  cached: Spent;
  uncached: Spent;
}

/** The event `done`. `same`: tokens that were the same with a cache and without one. */
export interface MeasuredTotal {
  figures: Figure[];
  same: number;
  tokens: number;
  asked: number;
  text: string;
}

/** The encoding that a model has; null where it is none of those offered. */
export interface ModelEncoding {
  model: string;
  position: EncodingValues | null;
}

/** A model. What is not loaded yet says at most its kind; `error`: why it could not be loaded. */
export interface ModelEntry {
  name: string;
  loaded: boolean;
  error: string | null;
  kind: "decoder" | "encoder" | "encoder-decoder" | null;
  family: string | null;
  layers: number | null;
  heads: number | null;
  kv_heads: number | null;
  width: number | null;
  vocab: number | null;
  context: number | null;
  position: string | null;
  chat: boolean | null;
  images: boolean | null;
}

export interface ModelList {
  default: string;
  models: ModelEntry[];
}

/** What makes weights of scores. */
export interface NormaliserEntry {
  name: string;
  title: string;
  about: string;
}

/** One thing that was found, beside what the document says about it (None: it says nothing). */
export interface Number {
  what: string;
  ours: number | null | string;
  document: number | null | string;
  agrees: boolean | null;
  interval: [number | null, number | null] | null;
}

/** An option of the form: what it is, its bounds or its choices, and which kinds of model have it. */
export interface OptionEntry {
  help: string;
  low: number | null;
  high: number | null;
  choices: string[];
  kinds: ("decoder" | "encoder" | "encoder_decoder")[];
}

/** What a user may change, with its bounds: a number between `low` and `high`, or one of `choices`. */
export interface Parameter {
  name: string;
  default: number | string;
  help: string;
  low: number | null;
  high: number | null;
  choices: string[];
}

/** Parameters of one part of a model. */
export interface PartCount {
  part: string;
  count: number;
}

/** `flops`: to read the whole context at once; `decode` and `bytes`: for one more token after it. */
export interface PartOperations {
  part: string;
  flops: number;
  decode: number;
  bytes: number;
}

export interface PatchRequest {
  model: string;
  clean: string;
  corrupted: string;
  activation?: "residual_before" | "attention" | "feed_forward" | "heads";
  target?: string | null;
  against?: string | null;
}

export interface PerplexityPair {
  before: number;
  after: number;
}

/** Keys projected, and as many as passes without a cache would project. */
export interface ProjectionCost {
  projections_cached: number;
  projections_uncached: number;
}

/** The event `prompt`: how much of it has been read. */
export interface PromptProgress {
  done: number;
  total: number;
}

/**
 * A text that was read: its tokens, and the attentions whose maps can be had. `ms`: how long it took,
 * null where it was kept from before.
 */
export interface ReadTextAnswer {
  id: string;
  tokens: string[];
  source_tokens: string[] | null;
  length: number;
  sites: AttentionSite[];
  position: EncodingInfo;
  ms: number | null;
}

/** What to read: a text, or in its place an answer of a conversation. */
export interface ReadTextRequest {
  model: string;
  text?: string;
  answer?: AnswerPoint | null;
  source?: string | null;
  position?: EncodingRequest | null;
}

/** How tokens are chosen. */
export interface SamplingFields {
  temperature?: number | null;
  top_k?: number | null;
  top_p?: number | null;
  min_p?: number | null;
  seed?: number | null;
  max_tokens?: number | null;
}

/** A whole conversation, as it is exported and imported. */
export interface SavedConversation {
  format?: string;
  id: string;
  model: string;
  fingerprint: string;
  title: string;
  system: string | null;
  origin: BranchOrigin | null;
  created: number;
  turns: SavedTurn[];
}

/**
 * A message and its answer in a file. `tokens`: all of the conversation, up to the end of the answer.
 *
 * `images`: the files that were sent with it; `image_starts`: where each image so far begins in `tokens`.
 */
export interface SavedTurn {
  message: string;
  images?: string[];
  text: string;
  tokens: number[];
  prompt: number;
  image_starts?: number[];
  ended_by: string | null;
  intact?: boolean;
  origin: string;
  seed: number;
  reused: number;
  cost: AnswerCost;
  written: ChatToken[];
}

/** A term of one query's scores, by key. `of`: what it comes from, content or position. */
export interface ScorePart {
  name: string;
  of: string;
  values: (number | null)[];
}

/**
 * One query's scores in parts that add up to them; null where a key is not seen.
 *
 * `note`: why position is not told by bands, where it is not.
 */
export interface ScoresAnswer {
  keys: string[];
  score: (number | null)[];
  parts: ScorePart[];
  note: string | null;
}

export interface ShowRequest {
  encoding: string;
  values?: Record<string, number | string>;
  length?: number;
  width?: number;
  heads?: number;
}

export interface SizesRequest {
  layers: number;
  width: number;
  heads: number;
  kv_heads?: number | null;
  head_width?: number | null;
  window?: number | null;
  latent?: number | null;
  vocab?: number;
  dtype?: "float64" | "float32" | "bfloat16" | "float16" | null;
}

/** Of all tokens so far: the time, and the keys that one layer projected. */
export interface Spent {
  ms: number;
  projections: number;
}

/** The last event of a stream that failed. */
export interface StreamError {
  message: string;
  code: string | null;
}

/** A study before it is run. `seconds`: about how long it takes; `needs`: models. */
export interface StudyEntry {
  tag: string;
  title: string;
  sources: string[];
  statement: string;
  explanation: string;
  parameters: Parameter[];
  seconds: number;
  trains: boolean;
  needs: string[];
}

export interface StudyRequest {
  values?: Record<string, number | string>;
}

/** The event `result`. */
export interface StudyResult {
  verdict: "agrees" | "erratum" | "mixed";
  words: string;
  numbers: Number[];
  figures: Figure[];
  values: Record<string, number | string>;
  seconds: number;
  command: string;
}

export interface SwapRequest {
  model: string;
  text: string;
  position: EncodingRequest;
  tokens?: number;
}

/** One intervention in every layer and position or head. `goal`: measured on the other text, of patching. */
export interface SweepAnswer {
  by: "positions" | "heads";
  measure: string;
  before: number;
  goal: number | null;
  layers: number[];
  cells: number[];
  figure: Figure;
  top: SweepCell[];
}

export interface SweepCell {
  layer: number;
  cell: number;
  label: string;
  effect: number;
}

export interface TextPair {
  before: string;
  after: string;
}

/** A token that could come: the model's own probability, and the one after temperature and filters. */
export interface TokenChoice {
  id: number;
  text: string;
  p_raw: number;
  p_sampled: number;
}

export interface TokenMove {
  token: number;
  to: number;
}

/** Scores and weights of one query, by key, before and after a token was moved. A key not seen has no score. */
export interface TokenMoveAnswer {
  tokens: string[];
  before: number[];
  after: number[];
  scores_before: (number | null)[];
  scores_after: (number | null)[];
}

export interface TokenUsage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  reused_tokens: number;
}

/** How much of the attention a token gets. `key`: its number, from 0; an image's first token has all of it. */
export interface TokenWeight {
  key: number;
  weight: number;
}

/** A text as a model reads it. */
export interface TokensAnswer {
  ids: number[];
  tokens: string[];
}

export interface TokensRequest {
  model: string;
  text: string;
}

/** `parent`: the conversation it was said in, where that is another one. `images`: data: URLs. */
export interface UserTurn {
  role: "user";
  text: string;
  images: string[];
  turn: number;
  parent: string | null;
}

/** One token's vector, from the embedding to the last block. `note`: why nothing is told of a logit. */
export interface VectorAnswer {
  token: string;
  measure: string | null;
  logit: number | null;
  steps: VectorStep[];
  figures: Figure[];
  note: string | null;
}

export interface VectorRequest {
  model: string;
  text: string;
  position: number;
  target?: string | null;
}

/**
 * One part's turn on the residual stream of one token.
 *
 * `size`: how long the vector is that it adds; `length`: how long the stream is afterwards; `guess`: what the
 * model would write then. `adds`: to the target's logit, by the direct way; null where that is no sum.
 */
export interface VectorStep {
  layer: number | null;
  part: "embedding" | "attention" | "feed-forward";
  size: number;
  length: number;
  guess: string;
  probability: number;
  adds: number | null;
}

export interface Watch {
  attention?: WatchedLayer | number | "mean" | null;
}

export interface WatchedLayer {
  layer?: number | "mean";
}

/** The event `progress` of work that takes its time. */
export interface WorkProgress {
  share: number;
  doing: string;
}
