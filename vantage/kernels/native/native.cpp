// The native CPU backend: a program of a few kinds of steps over rows of float32, run by several threads.
// What the steps are is decided in Python (vantage/model/lowered); here is only how they run.
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>
#include "amx.h"
#include "attend.h"
#include "bytes.h"
#include "choose.h"
#include "linear.h"
#include "repacking.h"
#include "sixteen.h"
#include "team_size.h"
#include "threads.h"
#include "tiles.h"
#include "top.h"

namespace vantage {

template void multiply_rows<1, false>(const Panel&, int, int, int, const RoundedBlock*, int64_t, floats (*)[PANEL]);
template void multiply_rows<1, true>(const Panel&, int, int, int, const RoundedBlock*, int64_t, floats (*)[PANEL]);
template void multiply_rows<2, false>(const Panel&, int, int, int, const RoundedBlock*, int64_t, floats (*)[PANEL]);
template void multiply_rows<2, true>(const Panel&, int, int, int, const RoundedBlock*, int64_t, floats (*)[PANEL]);

struct Kernels {  // of a format (format.cpp)
    Product* product;
    Lookup* row;
    ByteProduct* const* bytes;  // which is null where there is none
    TileProduct* const* tiles;  // the same
    bool (*repack)(const uint8_t* const* rows, const Matrix& w, int64_t begin, int64_t end);
    int block_inputs, block_bytes;  // of LANES outputs
};

#define VANTAGE_FORMAT(NAME)       \
    extern Product product_##NAME; \
    extern Lookup row_##NAME;      \
    extern ByteProduct* const bytes_##NAME; \
    extern TileProduct* const tiles_##NAME; \
    bool repack_##NAME(const uint8_t* const* rows, const Matrix& w, int64_t begin, int64_t end);
#define VANTAGE_KERNELS(NAME) \
    {product_##NAME, row_##NAME, &bytes_##NAME, &tiles_##NAME, repack_##NAME, Form##NAME::INPUTS, Form##NAME::BYTES}
VANTAGE_FORMAT(Q8_0) VANTAGE_FORMAT(Q4_0) VANTAGE_FORMAT(Q4_1) VANTAGE_FORMAT(Q5_0) VANTAGE_FORMAT(Q5_1)
VANTAGE_FORMAT(Q2_K) VANTAGE_FORMAT(Q3_K) VANTAGE_FORMAT(Q4_K) VANTAGE_FORMAT(Q5_K) VANTAGE_FORMAT(Q6_K)
VANTAGE_FORMAT(IQ4_NL) VANTAGE_FORMAT(IQ4_XS) VANTAGE_FORMAT(MXFP4) VANTAGE_FORMAT(F16) VANTAGE_FORMAT(BF16)

const Kernels KERNELS[] = {  // from Q8_0 on, in the order of Format
    VANTAGE_KERNELS(Q8_0), VANTAGE_KERNELS(Q4_0), VANTAGE_KERNELS(Q4_1), VANTAGE_KERNELS(Q5_0), VANTAGE_KERNELS(Q5_1),
    VANTAGE_KERNELS(Q2_K), VANTAGE_KERNELS(Q3_K), VANTAGE_KERNELS(Q4_K), VANTAGE_KERNELS(Q5_K), VANTAGE_KERNELS(Q6_K),
    VANTAGE_KERNELS(IQ4_NL), VANTAGE_KERNELS(IQ4_XS), VANTAGE_KERNELS(MXFP4), VANTAGE_KERNELS(F16), VANTAGE_KERNELS(BF16)};

inline bool is_packed(const Matrix& w) { return w.format != DENSE; }
inline bool rounds_activations(const Matrix& w) { return w.format != DENSE && w.format < F16; }
inline const Kernels& kernels(const Matrix& w) { return KERNELS[w.format - Q8_0]; }

}  // namespace vantage

using namespace vantage;

namespace {

enum OpKind : int32_t { NORM, LINEAR, ROPE, APPEND, ATTEND, ACTIVATE, ADD, SCALE };

struct Op {
    int32_t kind, dst, src, other;
    int32_t n[8];
    float f[4];
    const void* p[4];
};

struct Buffer {
    float* data;
    int64_t width;
    float* row(int64_t i, int64_t column = 0) const { return data + i * width + column; }
};

struct AngleTable {  // cosines and signed sines, (rows or 1, tokens, turned)
    const float *cos, *sin;
    int64_t row;  // from one row of the batch to the next; 0: all rows share them
};

struct ProgramCall {
    const Op* ops;
    const Buffer* buffers;
    const AngleTable* tables;
    const LayerStore* stores;
    const RowLocation* places;  // (ledgers, rows)
    int64_t n_ops, rows, tokens;
    int64_t fast;         // many rows may be rounded to 8 bits
    int64_t first_angle;  // of the tables: where the first token stands
    float* const* shown;  // by layer where the weights of each row's last token go, (rows, heads, shown_keys), or null
    int64_t shown_keys;   // at least those that are held and new, up to a multiple of STEP
};

constexpr int ROW_UNIT = HAS_TILES ? REGISTER_ROWS : TILE;  // rows of a piece are multiples of it
constexpr int MOST_ROWS = HAS_TILES ? 256 : 132;            // that one piece of a product takes
static_assert(MOST_ROWS % ROW_UNIT == 0);

struct Memory {  // of one thread, aligned for vectors
    static constexpr std::align_val_t ALIGNMENT{64};
    float* data = nullptr;
    int64_t size = 0;
    void reserve(int64_t floats) {
        if (size >= floats) return;
        ::operator delete(data, ALIGNMENT), data = nullptr, size = 0;
        data = (float*)::operator new(sizeof(float) * (size_t)floats, ALIGNMENT);
        size = floats;
    }
};

struct Worker {
    Memory room, rounded, rows;
    const void* prepared_for = nullptr;  // the step whose rows are ready, the first of them, and whether they are rounded
    int64_t prepared_from = -1;
    int has_rounded = 0;  // to so many bits
};

std::mutex run_lock;
TeamSize team_size;
OpenMP openmp;
ThreadPool* pool = nullptr;
std::vector<Worker> workers;
Memory parts;  // what few queries get from each piece of the keys

#if defined(_WIN32)
void forget_pool_in_forks() {}  // there are none
#else
void forget_pool_in_forks() {  // its threads do not come along
    static const bool once = (pthread_atfork(nullptr, nullptr, [] { pool = nullptr; }), true);
    (void)once;
}
#endif

void run_on_threads(const Job& job, int threads) {
    if (threads == 1) return job(0);
    if (openmp.parallel) return openmp.run(job, threads);
    forget_pool_in_forks();
    if (!pool || pool->threads != threads) pool = new ThreadPool(threads);
    pool->run(job);
}

// ---- steps

// Eight sums side by side, which the compiler can keep in vectors.
template <class Function>
double total_of(const float* x, int n, Function f) {
    double sums[8] = {};
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) sums[j] += f((double)x[i + j]);
    for (; i < n; i++) sums[0] += f((double)x[i]);
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// Into ``to``, a row of the step's buffer or one of the caller's own.
void norm(const Op& op, const ProgramCall& c, int64_t i, float* to) {
    const int width = op.n[0];
    const float *w = (const float*)op.p[0], *b = (const float*)op.p[1];
    for (int h = 0; h < op.n[1]; h++) {
        const float* x = c.buffers[op.src].row(i, op.n[3] + (int64_t)h * width);
        float* y = to + op.n[4] + (int64_t)h * width;
        const double mean = op.n[2] ? total_of(x, width, [](double v) { return v; }) / width : 0.0;
        const double square = total_of(x, width, [=](double v) { return (v - mean) * (v - mean); });
        const float shift = (float)mean, size = (float)(1.0 / std::sqrt(square / width + op.f[0]));
        for (int k = 0; k < width; k++)
            y[k] = (x[k] - shift) * size * (w ? w[k] + op.f[1] : 1.0f) + (b ? b[k] : 0.0f);
    }
}

void rope(const Op& op, const ProgramCall& c, int64_t i) {
    const int heads = op.n[1], dim = op.n[2], turned = op.n[3], half = turned / 2;
    const AngleTable& table = c.tables[op.n[5]];
    const int64_t at = i / c.tokens * table.row + (c.first_angle + i % c.tokens) * turned;
    const float *cos = table.cos + at, *sin = table.sin + at;
    for (int h = 0; h < heads; h++) {
        float* x = c.buffers[op.dst].row(i, op.n[0] + (int64_t)h * dim);
        for (int k = 0; k < half; k++) {
            const int a = op.n[4] ? 2 * k : k, b = op.n[4] ? 2 * k + 1 : k + half;
            const float u = x[a], v = x[b];
            x[a] = u * cos[a] + v * sin[a];
            x[b] = v * cos[b] + u * sin[b];
        }
    }
}

void append(const Op& op, const ProgramCall& c, int64_t i) {
    const LayerStore& s = c.stores[op.n[2]];
    const int64_t row = i / c.tokens;
    const RowLocation& location = c.places[op.n[3] * c.rows + row];
    const int64_t at = location.at(location.held + i % c.tokens);
    for (int g = 0; g < op.n[4]; g++) {
        const int64_t k_first = row * s.k_row + g * s.k_head, v_first = row * s.v_row + g * s.v_head;
        const float *k = c.buffers[op.src].row(i, op.n[0] + (int64_t)g * s.key_dim),
                    *v = c.buffers[op.src].row(i, op.n[1] + (int64_t)g * s.value_dim);
        const auto write = [&](auto* keys, auto* values, float* k_scale, float* v_scale) {
            keep(k, s.key_dim, keys + k_first + at * s.key_dim, k_scale);
            keep(v, s.value_dim, values + v_first + at * s.value_dim, v_scale);
        };
        if (s.kept == FLOATS) write((float*)s.k, (float*)s.v, nullptr, nullptr);
        else if (s.kept == HALVES) write((uint16_t*)s.k, (uint16_t*)s.v, nullptr, nullptr);
        else write((int8_t*)s.k, (int8_t*)s.v, s.k_scale + k_first / s.key_dim + at, s.v_scale + v_first / s.value_dim + at);
    }
}

Attention attention(const Op& op) {
    return {op.n[1], op.n[2], op.n[5], op.f[0], op.f[1], (const float*)op.p[0], (const float*)op.p[1]};
}

bool few(const Op& op, const ProgramCall& c) { return op.n[1] / op.n[2] * c.tokens <= 16; }

// The pieces of keys that tokens [t0, t1) of a row look at.
struct Span {
    int64_t begin, end, first, count;
};

Span span(const Op& op, const RowLocation& location, int64_t t0, int64_t t1) {
    const int64_t begin = first_seen(attention(op), location.held + t0), end = location.held + t1;
    return {begin, end, begin / PIECE, (end - 1) / PIECE - begin / PIECE + 1};
}

int64_t most_pieces(const Op& op, const ProgramCall& c) {
    int64_t most = 1;
    for (int64_t row = 0; row < c.rows; row++)
        most = std::max(most, span(op, c.places[op.n[4] * c.rows + row], 0, c.tokens).count);
    return most;
}

Partial piece(float* at, int queries) { return {at, at + queries, at + 2 * queries}; }

int fill(std::vector<Query>& q, const Op& op, const ProgramCall& c, int64_t row, int64_t head, int64_t t0, int64_t t1) {
    const Attention a = attention(op);
    const int group = a.heads / a.kv_heads, dim = c.stores[op.n[3]].key_dim;
    float* const shown = c.shown ? c.shown[op.n[3]] : nullptr;
    int n = 0;
    for (int64_t t = t0; t < t1; t++)
        for (int h = 0; h < group; h++) {
            const int64_t at = head * group + h;
            float* const to = shown && t == c.tokens - 1 ? shown + (row * a.heads + at) * c.shown_keys : nullptr;
            q[n++] = {c.buffers[op.src].row(row * c.tokens + t, op.n[0] + at * dim),
                      c.places[op.n[4] * c.rows + row].held + t, a.slopes ? a.slopes[at] : 0.0f, to};
        }
    return n;
}

void finish(const Op& op, const ProgramCall& c, const std::vector<Query>& q, const std::vector<Partial>& of, const Span& keys,
            int n, int64_t row, int64_t head, int64_t t0) {
    const Attention a = attention(op);
    const int group = a.heads / a.kv_heads, width = c.stores[op.n[3]].value_dim;
    for (int i = 0; i < n; i++) {
        const int64_t h = head * group + i % group;
        const Joined joined = join(of.data(), (int)keys.count, i, width, a.sinks ? a.sinks + h : nullptr,
                                   c.buffers[op.dst].row(row * c.tokens + t0 + i / group, h * width));
        if (q[i].shown) show(q[i], joined, keys.begin);
    }
}

// Few queries: a piece of the keys of a row and head at a time. Results lie one after another, and who finishes the
// last piece of a row and head joins them.
int64_t few_pieces(const Op& op, const ProgramCall& c) { return c.rows * op.n[2] * most_pieces(op, c); }

int64_t partial_floats(const Op& op, const ProgramCall& c, int64_t queries) {
    return queries * (2 + (int64_t)c.stores[op.n[3]].value_dim);
}

void attend_few(const Op& op, const ProgramCall& c, int64_t task, std::atomic<int>* finished, float* room) {
    const Attention a = attention(op);
    const int most = (int)(a.heads / a.kv_heads * c.tokens);
    const int64_t pieces = most_pieces(op, c), p = task % pieces, row_head = task / pieces;
    const int64_t row = row_head / a.kv_heads, head = row_head % a.kv_heads, stride = partial_floats(op, c, most);
    const RowLocation& location = c.places[op.n[4] * c.rows + row];
    const Span keys = span(op, location, 0, c.tokens);
    if (p >= keys.count) return;
    std::vector<Query> q(most);
    const int n = fill(q, op, c, row, head, 0, c.tokens);
    attend(a, c.stores[op.n[3]], location, (int)row, (int)head, q.data(), n, keys.first + p, keys.begin, keys.end,
           piece(parts.data + task * stride, n), room, room + (int64_t)most * KEYS);
    if (finished[row_head].fetch_add(1) + 1 < keys.count) return;
    std::vector<Partial> of(keys.count);
    for (int64_t i = 0; i < keys.count; i++) of[i] = piece(parts.data + (row_head * pieces + i) * stride, n);
    finish(op, c, q, of, keys, n, row, head, 0);
}

// A prompt: a tile of queries of a row and head at a time. The last tiles look at the most keys, and come first.
int64_t query_tiles(const ProgramCall& c, int64_t tokens) { return (c.tokens + tokens - 1) / tokens; }

// Tokens of a prompt in a tile; what a query gets does not depend on it. With more of them, more queries share what it
// takes to turn or widen keys and values, which is as much as SHARED queries take; but each query is computed for half as
// many keys after its own. What a tile keeps of all pieces should not take more than 8 MiB, and every thread should get
// several tiles.
int64_t tile_tokens(const Op& op, const ProgramCall& c, int threads) {
    constexpr int64_t LEAST = 16, MOST = 64, MOST_QUERIES = 192, MOST_FLOATS = 2 << 20;
    constexpr int64_t SHARED = TURNS ? 7 : 3;  // measured on a Zen 5
    const int64_t group = op.n[1] / op.n[2], pieces = most_pieces(op, c);
    const int64_t seen = pieces * PIECE - c.tokens / 2, keys = op.n[5] ? std::min<int64_t>(op.n[5], seen) : seen;
    int64_t tokens = LEAST;
    for (int64_t more = 2 * LEAST; more <= MOST; tokens = more, more += LEAST) {
        const bool pays = group * tokens * more < 2 * SHARED * keys;
        const bool busy = query_tiles(c, more) * c.rows * op.n[2] >= 8 * threads;
        if (!pays || !busy || group * more > MOST_QUERIES || pieces * partial_floats(op, c, group * more) > MOST_FLOATS) break;
    }
    return tokens;
}

void attend_many(const Op& op, const ProgramCall& c, int64_t task, int64_t tokens, float* room) {
    const Attention a = attention(op);
    const int most = (int)(a.heads / a.kv_heads * tokens);
    const int64_t both = c.rows * a.kv_heads, stride = partial_floats(op, c, most);
    const int64_t t0 = (query_tiles(c, tokens) - 1 - task / both) * tokens, t1 = std::min(c.tokens, t0 + tokens);
    const int64_t row = task % both / a.kv_heads, head = task % both % a.kv_heads;
    const RowLocation& location = c.places[op.n[4] * c.rows + row];
    const Span keys = span(op, location, t0, t1);
    std::vector<Query> q(most);
    std::vector<Partial> of(keys.count);
    const int n = fill(q, op, c, row, head, t0, t1);
    float *wide = room + (int64_t)most * KEYS, *partials = wide + widened_floats(c.stores[op.n[3]]);
    for (int64_t p = 0; p < keys.count; p++) {
        of[p] = piece(partials + p * stride, n);
        attend(a, c.stores[op.n[3]], location, (int)row, (int)head, q.data(), n, keys.first + p, keys.begin, keys.end,
               of[p], room, wide);
    }
    finish(op, c, q, of, keys, n, row, head, t0);
}

floats active(floats x, int kind) {
    switch (kind) {
        case 0: return max(all(0), x);
        case 1: {
            for (int i = 0; i < WIDTH; i++) x[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
            return x;
        }
        case 2: return 0.5f * x * (1.0f + tanh(0.79788456f * (x + 0.044715f * x * x * x)));
        default: return x / (1.0f + exp(-x));
    }
}

void activate(const Op& op, const ProgramCall& c, int64_t i, float* y) {  // n0 is a multiple of 16
    const float* x = c.buffers[op.src].row(i);
    for (int64_t k = 0; k < op.n[0]; k += WIDTH) {
        const floats value = active(load(x + k), op.n[1]);
        store(y + k, op.n[2] ? value * load(x + op.n[0] + k) : value);
    }
}

void add(const Op& op, const ProgramCall& c, int64_t i) {
    const float *x = c.buffers[op.src].row(i), *y = c.buffers[op.other].row(i);
    float* z = c.buffers[op.dst].row(i);
    for (int k = 0; k < op.n[0]; k++) z[k] = x[k] + y[k];
}

void scale(const Op& op, const ProgramCall& c, int64_t i) {
    float* x = c.buffers[op.dst].row(i);
    for (int k = 0; k < op.n[0]; k++) x[k] = op.f[1] == 0 ? x[k] * op.f[0] : std::tanh(x[k] * op.f[0] / op.f[1]) * op.f[1];
}

// How a product is cut: some rows, some groups of outputs.
struct Cut {
    int64_t rows, row_pieces, columns, column_pieces;
};

Cut cut(const Matrix& w, int64_t m, int threads) {
    int64_t rows = m;
    if (m > 4 * TILE) {  // enough for every thread, and weights that are unpacked for many
        const int64_t units = (HAS_TILES ? 1 : 2) * threads * ROW_UNIT, even = (m + units - 1) / units * ROW_UNIT;
        rows = std::max<int64_t>(4 * TILE, std::min<int64_t>(even, MOST_ROWS));
    }
    const int64_t row_pieces = (m + rows - 1) / rows;
    constexpr int64_t unit = SUPER * LANES;  // which lie side by side
    const int64_t units = (w.outputs + unit - 1) / unit;
    int64_t each = units;  // units in a piece
    if (threads > 1 && row_pieces < 2 * threads) each = units <= 16 * threads ? 1 : units / (8 * threads);
    return {rows, row_pieces, each * unit, (units + each - 1) / each};
}

struct Stage {  // a product, an attention, or steps that take row by row
    const Op *begin, *end;
    int pieces;
    Cut cut;
    const Op* before;  // of a product of few rows: a step that every thread takes for itself, or null
    int64_t first;     // of an attention: its place in ``Program::finished``
    const Stage* next; // product of few rows, of one
};

struct Turn {  // whose it is to do a task
    int last;  // the task at which those end that this thread is likely to do next
    int thread, threads;
};

bool takes_bytes(const Matrix& w, const ProgramCall& c) {
    return c.fast && c.rows * c.tokens > FEW && rounds_activations(w) && *kernels(w).bytes;
}

// Whether so many rows go through AMX's registers.
bool takes_tiles(const Matrix& w, int64_t rows) {
    return rows > FEW && rounds_activations(w) && *kernels(w).tiles && tiles_permitted();
}

template <class Block>
void round_rows(const Rows& rows, const Matrix& w, float* to) {
    if (takes_tiles(w, rows.m)) return round_tiles<std::is_same_v<Block, RoundedBlock>>(rows, w.inputs, (TileBlock*)to);
    for (int64_t i = 0; i < rows.m; i++) round_row(rows.x + i * rows.ldx, w.inputs, (Block*)to + i * (w.inputs / BLOCK));
}

// The rows of a product, rounded where its weights are quantised. They stay with the worker for its next piece.
void prepare(const Stage& stage, const ProgramCall& c, const Matrix& w, int64_t first, Rows& rows,
                            Worker& worker) {
    const Op& op = *stage.begin;
    const void* source = stage.before ? stage.before : &op;
    const bool ready = worker.prepared_for == source && worker.prepared_from == first;
    if (stage.before) {
        for (int64_t i = 0; i < rows.m && !ready; i++) {
            float* to = worker.rows.data + i * w.inputs;
            stage.before->kind == NORM ? norm(*stage.before, c, first + i, to) : activate(*stage.before, c, first + i, to);
        }
        rows.x = worker.rows.data, rows.ldx = w.inputs;
    }
    if (!ready) worker.has_rounded = 0;
    const int bits = !rounds_activations(w) ? 0 : takes_bytes(w, c) ? 8 : 16;
    if (bits && worker.has_rounded != bits) {
        bits == 8 ? round_rows<RoundedBytes>(rows, w, worker.rounded.data) : round_rows<RoundedBlock>(rows, w, worker.rounded.data);
        worker.has_rounded = bits;
    }
    worker.prepared_for = source, worker.prepared_from = first;
}

// Where the weights begin that a thread reads first of a product; null where they are not packed.
const uint8_t* first_weights(const Stage& stage, const Turn& turn) {
    const Matrix& w = *(const Matrix*)stage.begin->p[0];
    if (!is_packed(w)) return nullptr;
    const int range = turn.thread % Progress::ranges_of(turn.threads);
    const int64_t group = Progress::first_of(range, stage.pieces, turn.threads) * stage.cut.columns / LANES;
    return (const uint8_t*)w.data + group * (w.inputs / kernels(w).block_inputs) * kernels(w).block_bytes;
}

void product(const Stage& stage, const ProgramCall& c, int64_t task, const Turn& turn, Worker& worker) {
    const Op& op = *stage.begin;
    const Cut& cut = stage.cut;
    const Matrix& w = *(const Matrix*)op.p[0];
    const Buffer &x = c.buffers[op.src], &y = c.buffers[op.dst];
    const int64_t first = task / cut.column_pieces * cut.rows, m = std::min(cut.rows, c.rows * c.tokens - first);
    const int64_t begin = task % cut.column_pieces * cut.columns, end = std::min<int64_t>(begin + cut.columns, w.outputs);
    const int until = cut.row_pieces == 1 ? (int)std::min<int64_t>(turn.last * cut.columns, w.outputs) : w.outputs;
    const uint8_t* next = stage.next ? first_weights(*stage.next, turn) : nullptr;
    Rows rows{x.row(first), x.width, y.row(first, op.n[1]), y.width, (int)m, op.n[0] != 0, until, next};
    prepare(stage, c, w, first, rows, worker);
    const float* rounded = worker.rounded.data;
    const int to = (int)((end + LANES - 1) / LANES * LANES);
    if (takes_tiles(w, m)) (*kernels(w).tiles)(w, (int)begin, to, rows, (const TileBlock*)rounded, !takes_bytes(w, c), worker.room.data);
    else if (takes_bytes(w, c)) (*kernels(w).bytes)(w, (int)begin, to, rows, (const RoundedBytes*)rounded, worker.room.data);
    else if (is_packed(w)) kernels(w).product(w, (int)begin, to, rows, (const RoundedBlock*)rounded, worker.room.data);
    else dense(w, (int)begin, to, rows);
}

void row_step(const Op& op, const ProgramCall& c, int64_t i) {
    switch (op.kind) {
        case NORM: return norm(op, c, i, c.buffers[op.dst].row(i));
        case ROPE: return rope(op, c, i);
        case APPEND: return append(op, c, i);
        case ACTIVATE: return activate(op, c, i, c.buffers[op.dst].row(i));
        case ADD: return add(op, c, i);
        case SCALE: return scale(op, c, i);
    }
}

// Whether only the products that follow read what this step writes.
bool private_to_products(const Op& op) { return (op.kind == NORM || op.kind == ACTIVATE) && op.n[7]; }

bool by_rows(const Op& op) { return op.kind != LINEAR && op.kind != ATTEND; }

std::vector<Stage> stages(const ProgramCall& c, int threads) {
    std::vector<Stage> all;
    const Op* own = nullptr;  // what the next products take for themselves
    const int64_t m = c.rows * c.tokens;
    int64_t heads = 0;
    for (const Op* op = c.ops; op < c.ops + c.n_ops;) {
        Stage stage{op, op + 1, 0, {}, nullptr, heads, nullptr};
        if (op->kind == LINEAR) {
            stage.cut = cut(*(const Matrix*)op->p[0], m, threads);
            stage.pieces = (int)(stage.cut.row_pieces * stage.cut.column_pieces);
            stage.before = own;
        } else if (op->kind == ATTEND) {
            stage.cut.rows = few(*op, c) ? c.tokens : tile_tokens(*op, c, threads);
            stage.pieces = (int)(few(*op, c) ? few_pieces(*op, c) : query_tiles(c, stage.cut.rows) * c.rows * op->n[2]);
            heads += c.rows * op->n[2];
        } else {
            const bool alone = m <= FEW;  // who waits for one thread might as well do its work
            while (stage.end < c.ops + c.n_ops && by_rows(*stage.end) && !(alone && private_to_products(*stage.end)))
                stage.end++;
            if (alone && private_to_products(*op)) {
                own = op, op++;
                continue;
            }
            stage.cut.rows = std::max<int64_t>(1, m / (4 * threads));
            stage.pieces = (int)((m + stage.cut.rows - 1) / stage.cut.rows);
        }
        op = stage.end;
        if (op < c.ops + c.n_ops && op->kind != LINEAR) own = nullptr;
        all.push_back(stage);
    }
    const Stage* next = nullptr;
    for (size_t i = all.size(); i-- && m <= FEW;) {
        all[i].next = next;
        if (all[i].begin->kind == LINEAR) next = &all[i];
    }
    return all;
}

void work(const Stage& stage, const ProgramCall& c, int64_t task, const Turn& turn, std::atomic<int>* finished,
          Worker& worker) {
    const Op& op = *stage.begin;
    if (op.kind == LINEAR) return product(stage, c, task, turn, worker);
    if (op.kind == ATTEND && few(op, c)) return attend_few(op, c, task, finished + stage.first, worker.room.data);
    if (op.kind == ATTEND) return attend_many(op, c, task, stage.cut.rows, worker.room.data);
    const int64_t end = std::min(c.rows * c.tokens, (task + 1) * stage.cut.rows);
    for (int64_t i = task * stage.cut.rows; i < end; i++)
        for (const Op* step = stage.begin; step < stage.end; step++) row_step(*step, c, i);
}

void reserve(const ProgramCall& c, const std::vector<Stage>& all, int threads) {
    int64_t room = 0, rounded = 0, rows = 0, shared = 0;
    for (const Stage& stage : all) {
        const Op& op = *stage.begin;
        if (op.kind == LINEAR) {
            const Matrix& w = *(const Matrix*)op.p[0];
            room = std::max(room, room_floats(stage.cut.rows));
            if (stage.before) rows = std::max(rows, stage.cut.rows * w.inputs);
            if (rounds_activations(w))
                rounded = std::max(rounded, in_registers(stage.cut.rows) * (w.inputs / BLOCK) * (int64_t)sizeof(RoundedBlock) / 4);
        } else if (op.kind == ATTEND) {
            const int64_t n = op.n[1] / op.n[2] * stage.cut.rows;
            const int64_t each = partial_floats(op, c, n);
            const int64_t partials = few(op, c) ? 0 : most_pieces(op, c) * each;
            room = std::max(room, n * KEYS + widened_floats(c.stores[op.n[3]]) + partials + 64);
            if (few(op, c)) shared = std::max(shared, few_pieces(op, c) * each);
        }
    }
    if ((int)workers.size() < threads) workers.resize(threads);
    for (int i = 0; i < threads; i++)
        workers[i].room.reserve(room), workers[i].rounded.reserve(rounded), workers[i].rows.reserve(rows);
    parts.reserve(shared);
}

struct Program {  // one run of a call, by several threads
    Program(const ProgramCall& call, int threads) : call(call), all(stages(call, threads)), progress(all.size()) {
        int64_t heads = 0;
        for (const Stage& stage : all)
            if (stage.begin->kind == ATTEND) heads = stage.first + call.rows * stage.begin->n[2];
        finished = std::vector<std::atomic<int>>(heads);
    }
    void run(int thread, int threads) {
        Worker& worker = workers[thread];
        worker.prepared_for = nullptr;
        for (size_t i = 0; i < all.size(); i++) {
            progress[i].take(all[i].pieces, thread, threads, [&](int task, int last) {
                work(all[i], call, task, {last, thread, threads}, finished.data(), worker);
            });
            progress[i].wait(all[i].pieces);
        }
    }
    const ProgramCall& call;
    std::vector<Stage> all;
    std::vector<Progress> progress;
    std::vector<std::atomic<int>> finished;  // how many pieces of a row and head there are of it
};

// Row i of a table of embeddings.
void embedding(const Matrix& w, int64_t i, float* to) {
    if (is_packed(w)) kernels(w).row(w, i, to);
    else std::memcpy(to, (const float*)w.data + i * w.inputs, sizeof(float) * (size_t)w.inputs);
}

}  // namespace

extern "C" {

int vantage_version() { return 7; }

// As on a processor with a large first cache, or with a small one: for tests. How it was.
int vantage_ask_near(int on) { return std::exchange(asks_near, on != 0); }

// torch's threads instead of ours: GOMP_parallel and omp_get_thread_num.
void vantage_use_openmp(void* parallel, void* thread) {
    openmp.parallel = (void (*)(void (*)(void*), void*, unsigned, unsigned))parallel;
    openmp.thread = (int (*)())thread;
}

// 0: it ran; 1: no memory.
int vantage_run(const ProgramCall* call, int most_threads) try {
    std::lock_guard<std::mutex> one_at_a_time(run_lock);
    RunClock clock;
    const int threads = team_size.choose(most_threads, clock.start(), idle_cores);
    Program program(*call, threads);
    reserve(*call, program.all, threads);
    run_on_threads(
        [&](int thread) {
            program.run(thread, threads);
            if (!thread) clock.done();
        },
        threads);
    clock.tell(team_size);
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

// Whether a prompt of this matrix's kind can be computed with 8 bits.
int vantage_has_bytes(const Matrix* w) { return rounds_activations(*w) && *kernels(*w).bytes; }

// Which matrix unit does that, as MatrixUnit has it.
int vantage_matrix_unit() { return matrix_unit(); }

// One product: y (m, outputs) = x (m, inputs) W.
int vantage_linear(const Matrix* w, const float* x, float* y, int64_t m, int threads, int fast) {
    Op op{};
    op.kind = LINEAR, op.dst = 1, op.src = 0;
    op.p[0] = w;
    const Buffer buffers[2] = {{const_cast<float*>(x), w->inputs}, {y, w->outputs}};
    const ProgramCall call{&op, buffers, nullptr, nullptr, nullptr, 1, m, 1, fast, 0, nullptr, 0};
    return vantage_run(&call, threads);
}

// Rows of a packed matrix as float32: y (m, inputs).
void vantage_rows(const Matrix* w, const int64_t* ids, int64_t m, float* y) {
    for (int64_t i = 0; i < m; i++) kernels(*w).row(*w, ids[i], y + i * w->inputs);
}

// Several tokens for every row, each from the one before, without anybody in between.
struct StepsCall {
    ProgramCall body, head;    // of one token a row
    RowLocation* locations;    // those of the body, which are counted on
    int64_t n_locations;
    const Matrix* embeddings;  // (vocabulary, width)
    double scale;              // of an embedding
    int64_t steps;
    const Choice* choices;   // (rows)
    const double* uniforms;  // (steps, rows)
    int32_t* tokens;         // (1 + steps, rows): the last one of every row, then those that were chosen
    float* logprobs;         // (steps, rows)
    int32_t* fine;           // (steps, rows)
};

struct Step {  // who is late finds everything done: each step keeps what it needs to find that out
    Step(const StepsCall& call, int threads) : body(call.body, threads), head(call.head, threads) {}
    Program body, head;
    Progress begun, chosen;
};

static void move_on(StepsCall& call, int64_t tokens) {
    call.body.first_angle += tokens;
    for (int64_t i = 0; i < call.n_locations; i++) call.locations[i].held += tokens;
}

static std::vector<std::unique_ptr<Step>> lay_out(StepsCall& call, int threads) {
    std::vector<std::unique_ptr<Step>> steps;
    for (int64_t i = 0; i < call.steps; i++, move_on(call, 1)) {
        steps.push_back(std::make_unique<Step>(call, threads));
        reserve(call.body, steps.back()->body.all, threads), reserve(call.head, steps.back()->head.all, threads);
    }
    move_on(call, -call.steps);
    return steps;
}

static void begin_step(StepsCall& call, int64_t step) {
    const Buffer& x = call.body.buffers[0];
    const int64_t rows = call.body.rows;
    if (step) move_on(call, 1);
    for (int64_t i = 0; i < rows; i++) {
        embedding(*call.embeddings, call.tokens[step * rows + i], x.row(i));
        if (call.scale != 1.0)
            for (int64_t k = 0; k < x.width; k++) x.row(i)[k] *= (float)call.scale;
    }
}

static void choose_token(const StepsCall& call, int64_t step, int64_t row) {
    const Buffer& logits = call.head.buffers[call.head.ops[call.head.n_ops - 1].dst];
    const int64_t rows = call.body.rows, at = step * rows + row;
    const ChosenToken chosen = choose(logits.row(row), logits.width, call.choices[row], call.uniforms[at]);
    call.tokens[at + rows] = chosen.token;
    call.logprobs[at] = chosen.logprob, call.fine[at] = chosen.fine;
}

int vantage_steps(StepsCall* call, int most_threads) try {
    std::lock_guard<std::mutex> one_at_a_time(run_lock);
    RunClock clock;
    const int threads = team_size.choose(most_threads, clock.start(), idle_cores);
    const auto steps = lay_out(*call, threads);
    std::atomic<int> team{threads};  // those from this number on have left it
    Progress end;
    run_on_threads(
        [&](int thread) {
            for (int64_t i = 0; i < call->steps && thread < team; i++) {
                Step& step = *steps[i];
                step.begun.share(1, thread, threads, [&](int) { begin_step(*call, i); });
                step.body.run(thread, threads), step.head.run(thread, threads);
                step.chosen.share((int)call->body.rows, thread, threads, [&](int row) { choose_token(*call, i, row); });
                if (thread || i + 1 == call->steps) continue;
                clock.tell_so_far(team_size);  // steps that go together may take long: who is in the way leaves at once
                team = std::min(team.load(), team_size.size());
            }
            if (thread) return end.wait(1);  // asleep: torch's threads would spin until the others come
            end.share(1, 0, 1, [](int) {});
            clock.done();
        },
        threads);
    clock.tell(team_size);
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

// The rows of a GGUF tensor, one address for each output, into the matrix. 0: done; 2: a scale is not finite.
int vantage_repack(const Matrix* w, const uint8_t* const* rows, int threads) {
    std::lock_guard<std::mutex> one_at_a_time(run_lock);
    RepackedMatrix matrix(kernels(*w).repack, *w, rows);
    run_on_threads([&](int thread) { matrix.work(thread, threads); }, threads);
    return matrix.finite() ? 0 : 2;
}

// Of memory that was never written to. A page fault for each page costs a microsecond and more.
void vantage_prefault(char* first, int64_t bytes) { prefault(first, bytes); }

// Many matrices, by a thread of its own until all are needed. Null: no memory.
void* vantage_repacking(int threads) { return new (std::nothrow) Repacking(threads); }

int vantage_repacking_add(void* to, const Matrix* w, const uint8_t* const* rows, const MappedPages* pages, int64_t count) try {
    ((Repacking*)to)->add(kernels(*w).repack, *w, rows, pages, count);
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

// -1: all are done; else the first that has a scale that is not finite.
int64_t vantage_repacking_finish(void* of) {
    std::lock_guard<std::mutex> one_at_a_time(run_lock);
    return ((Repacking*)of)->finish(run_on_threads);
}

// When this returns nothing is read or written any more.
void vantage_repacking_free(void* of) { delete (Repacking*)of; }

// Attention of many queries over many keys. 0: it ran; 1: no memory.
int vantage_attend(const TileCall* call, int threads) try {
    std::lock_guard<std::mutex> one_at_a_time(run_lock);
    if ((int)workers.size() < threads) workers.resize(threads);
    for (int i = 0; i < threads; i++) workers[i].room.reserve(tile_room(*call));
    const int pieces = (int)(call->batch * call->heads * call->query_tiles());
    Progress progress;
    run_on_threads(
        [&](int thread) {
            progress.share(pieces, thread, threads, [&](int piece) { attend_tile(*call, piece, workers[thread].room.data); });
        },
        threads);
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

// The k largest softmax weights of each row of scores (m, n) times scale, and where they stand: both (m, k).
int vantage_top(const float* scores, int64_t m, int64_t n, int64_t k, float scale, float* values, int32_t* where,
                int threads) try {
    std::lock_guard<std::mutex> one_at_a_time(run_lock);
    const int64_t each = ranking_size(k);
    std::vector<Ranked> candidates(each * threads);
    Progress progress;
    run_on_threads(
        [&](int thread) {
            progress.share((int)m, thread, threads, [&](int i) {
                top_of_row(scores + i * n, n, k, scale, values + i * k, where + i * k, candidates.data() + thread * each);
            });
        },
        threads);
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

}  // extern "C"
