// The native CPU backend: a program of a few kinds of steps over rows of float32, run by several threads.
// What the steps are is decided in Python (vantage/model/lowered); here is only how they run.
#include "attend.h"
#include "linear.h"
#include "threads.h"
#include "top.h"

using namespace vantage;

namespace {

enum OpKind : int32_t { NORM, LINEAR, ROPE, APPEND, ATTEND, JOIN, ACTIVATE, ADD, SCALE };

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
    int64_t same;
};

struct ProgramCall {
    const Op* ops;
    const Buffer* buffers;
    const AngleTable* tables;
    const LayerStore* stores;
    const RowLocation* places;  // (ledgers, rows)
    int64_t n_ops, rows, tokens;
};

constexpr int QUERY_TOKENS = 8;  // tokens of a prompt that one task takes

std::mutex run_lock;
OpenMP openmp;
ThreadPool* pool = nullptr;
std::vector<std::vector<float>> scratch;
std::vector<float> parts;

void after_fork() { pool = nullptr; }  // its threads did not come along

void run_on_threads(const Job& job, int threads) {
    if (threads == 1) return job(0, 1);
    if (openmp.parallel) return openmp.run(job, threads);
    static const bool once = (pthread_atfork(nullptr, nullptr, after_fork), true);
    (void)once;
    if (!pool || pool->threads != threads) pool = new ThreadPool(threads);
    pool->run(job);
}

// ---- steps

void norm(const Op& op, const ProgramCall& c, int64_t i) {
    const int width = op.n[0];
    const float *w = (const float*)op.p[0], *b = (const float*)op.p[1];
    for (int h = 0; h < op.n[1]; h++) {
        const float* x = c.buffers[op.src].row(i, op.n[3] + (int64_t)h * width);
        float* y = c.buffers[op.dst].row(i, op.n[4] + (int64_t)h * width);
        double mean = 0, square = 0;
        if (op.n[2])
            for (int k = 0; k < width; k++) mean += x[k];
        mean /= width;
        for (int k = 0; k < width; k++) square += (x[k] - mean) * (x[k] - mean);
        const float shift = (float)mean, size = (float)(1.0 / std::sqrt(square / width + op.f[0]));
        for (int k = 0; k < width; k++)
            y[k] = (x[k] - shift) * size * (w ? w[k] + op.f[1] : 1.0f) + (b ? b[k] : 0.0f);
    }
}

void rope(const Op& op, const ProgramCall& c, int64_t i) {
    const int heads = op.n[1], dim = op.n[2], turned = op.n[3], half = turned / 2;
    const AngleTable& table = c.tables[op.n[5]];
    const int64_t at = (table.same ? i % c.tokens : i) * turned;
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
        std::memcpy(s.k + row * s.k_row + g * s.k_head + at * s.key_dim,
                    c.buffers[op.src].row(i, op.n[0] + (int64_t)g * s.key_dim), sizeof(float) * s.key_dim);
        std::memcpy(s.v + row * s.v_row + g * s.v_head + at * s.value_dim,
                    c.buffers[op.src].row(i, op.n[1] + (int64_t)g * s.value_dim), sizeof(float) * s.value_dim);
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
    int n = 0;
    for (int64_t t = t0; t < t1; t++)
        for (int h = 0; h < group; h++) {
            const int64_t at = head * group + h;
            q[n++] = {c.buffers[op.src].row(row * c.tokens + t, op.n[0] + at * dim),
                      c.places[op.n[4] * c.rows + row].held + t, a.slopes ? a.slopes[at] : 0.0f};
        }
    return n;
}

void finish(const Op& op, const ProgramCall& c, const std::vector<Partial>& of, int count, int n, int64_t row, int64_t head,
            int64_t t0) {
    const Attention a = attention(op);
    const int group = a.heads / a.kv_heads, width = c.stores[op.n[3]].value_dim;
    for (int i = 0; i < n; i++) {
        const int64_t h = head * group + i % group;
        join(of.data(), count, i, width, a.sinks ? a.sinks + h : nullptr,
             c.buffers[op.dst].row(row * c.tokens + t0 + i / group, h * width));
    }
}

// Few queries: a task is a piece of the keys of a row and head, and JOIN follows. Pieces lie one after another.
void attend_few(const Op& op, const ProgramCall& c, int thread, int threads, float* workspace) {
    const Attention a = attention(op);
    const LayerStore& s = c.stores[op.n[3]];
    const int most = (int)(a.heads / a.kv_heads * c.tokens);
    const int64_t pieces = most_pieces(op, c), stride = most * (2 + (int64_t)s.value_dim);
    const int64_t tasks = c.rows * a.kv_heads * pieces;
    std::vector<Query> q(most);
    for (int64_t task = tasks * thread / threads; task < tasks * (thread + 1) / threads; task++) {
        const int64_t p = task % pieces, head = task / pieces % a.kv_heads, row = task / pieces / a.kv_heads;
        const RowLocation& location = c.places[op.n[4] * c.rows + row];
        const Span keys = span(op, location, 0, c.tokens);
        if (p >= keys.count) continue;
        const int n = fill(q, op, c, row, head, 0, c.tokens);
        attend(a, s, location, (int)row, (int)head, q.data(), n, keys.first + p, keys.begin, keys.end,
               piece(parts.data() + task * stride, n), workspace);
    }
}

void join_few(const Op& op, const ProgramCall& c, int thread, int threads) {
    const int kv_heads = op.n[2], n = (int)(op.n[1] / kv_heads * c.tokens);
    const int64_t pieces = most_pieces(op, c), stride = n * (2 + (int64_t)c.stores[op.n[3]].value_dim);
    std::vector<Partial> of(pieces);
    for (int64_t rest = thread; rest < c.rows * kv_heads; rest += threads) {
        const int64_t row = rest / kv_heads;
        for (int64_t p = 0; p < pieces; p++) of[p] = piece(parts.data() + (rest * pieces + p) * stride, n);
        const Span keys = span(op, c.places[op.n[4] * c.rows + row], 0, c.tokens);
        finish(op, c, of, (int)keys.count, n, row, rest % kv_heads, 0);
    }
}

// A prompt: a task is a tile of queries of a row and head. The last tiles look at the most keys: dealt out in turn
// from the end, the threads finish together.
void attend_many(const Op& op, const ProgramCall& c, int thread, int threads, float* workspace) {
    const Attention a = attention(op);
    const LayerStore& s = c.stores[op.n[3]];
    const int most = a.heads / a.kv_heads * QUERY_TOKENS;
    const int64_t tiles = (c.tokens + QUERY_TOKENS - 1) / QUERY_TOKENS, both = c.rows * a.kv_heads;
    const int64_t stride = most * (2 + (int64_t)s.value_dim);
    std::vector<Query> q(most);
    std::vector<Partial> of(most_pieces(op, c));
    for (int64_t task = thread; task < tiles * both; task += threads) {
        const int64_t t0 = (tiles - 1 - task / both) * QUERY_TOKENS, t1 = std::min(c.tokens, t0 + QUERY_TOKENS);
        const int64_t row = task % both / a.kv_heads, head = task % both % a.kv_heads;
        const RowLocation& location = c.places[op.n[4] * c.rows + row];
        const Span keys = span(op, location, t0, t1);
        const int n = fill(q, op, c, row, head, t0, t1);
        for (int64_t p = 0; p < keys.count; p++) {
            of[p] = piece(workspace + (int64_t)most * KEYS + p * stride, n);
            attend(a, s, location, (int)row, (int)head, q.data(), n, keys.first + p, keys.begin, keys.end, of[p],
                   workspace);
        }
        finish(op, c, of, (int)keys.count, n, row, head, t0);
    }
}

v16 active(v16 x, int kind) {
    switch (kind) {
        case 0: return max(x, all(0));
        case 1: {
            float a[16];
            store(a, x);
            for (float& v : a) v = 0.5f * v * (1.0f + std::erf(v * 0.70710678f));
            return load(a);
        }
        case 2: return 0.5f * x * (1.0f + tanh(0.79788456f * (x + 0.044715f * x * x * x)));
        default: return x / (1.0f + exp(-x));
    }
}

// Columns [begin, end) of every row; n0 is a multiple of 16.
void activate(const Op& op, const ProgramCall& c, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < c.rows * c.tokens; i++) {
        const float* x = c.buffers[op.src].row(i);
        float* y = c.buffers[op.dst].row(i);
        for (int64_t k = begin; k < end; k += 16) {
            const v16 value = active(load(x + k), op.n[1]);
            store(y + k, op.n[2] ? value * load(x + op.n[0] + k) : value);
        }
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

void step(const Op& op, const ProgramCall& c, int thread, int threads) {
    const int64_t m = c.rows * c.tokens, begin = m * thread / threads, end = m * (thread + 1) / threads;
    float* workspace = scratch[thread].data();
    switch (op.kind) {
        case LINEAR: {
            const Buffer &x = c.buffers[op.src], &y = c.buffers[op.dst];
            linear(*(const Matrix*)op.p[0], {x.data + op.n[1], x.width, y.data, y.width, (int)m, op.n[0] != 0},
                   thread, threads, workspace);
            return;
        }
        case ATTEND:
            return few(op, c) ? attend_few(op, c, thread, threads, workspace)
                              : attend_many(op, c, thread, threads, workspace);
        case JOIN:
            if (few(op, c)) join_few(op, c, thread, threads);
            return;
        case ACTIVATE: {
            const int64_t tiles = op.n[0] / 16;
            return activate(op, c, tiles * thread / threads * 16, tiles * (thread + 1) / threads * 16);
        }
        default: break;
    }
    for (int64_t i = begin; i < end; i++) {
        switch (op.kind) {
            case NORM: norm(op, c, i); break;
            case ROPE: rope(op, c, i); break;
            case APPEND: append(op, c, i); break;
            case ADD: add(op, c, i); break;
            case SCALE: scale(op, c, i); break;
        }
    }
}

void reserve_scratch(const ProgramCall& c, int threads) {
    int64_t each = 0, shared = 0;
    for (int64_t i = 0; i < c.n_ops; i++) {
        const Op& op = c.ops[i];
        if (op.kind == LINEAR) {
            each = std::max(each, scratch_floats(((const Matrix*)op.p[0])->inputs, (int)(c.rows * c.tokens)));
        } else if (op.kind == ATTEND) {
            const int64_t n = op.n[1] / op.n[2] * (few(op, c) ? c.tokens : (int64_t)QUERY_TOKENS);
            const int64_t pieces = most_pieces(op, c), each_piece = n * (2 + (int64_t)c.stores[op.n[3]].value_dim);
            each = std::max(each, n * KEYS + (few(op, c) ? 0 : pieces * each_piece) + 64);
            if (few(op, c)) shared = std::max(shared, c.rows * op.n[2] * pieces * each_piece);
        }
    }
    if ((int)scratch.size() < threads) scratch.resize(threads);
    for (int i = 0; i < threads; i++)
        if ((int64_t)scratch[i].size() < each) scratch[i].resize(each);
    if ((int64_t)parts.size() < shared) parts.resize(shared);
}

}  // namespace

extern "C" {

int vantage_version() { return 1; }

// torch's threads instead of ours: GOMP_parallel, omp_get_thread_num and omp_get_num_threads.
void vantage_use_openmp(void* parallel, void* thread, void* threads) {
    openmp.parallel = (void (*)(void (*)(void*), void*, unsigned, unsigned))parallel;
    openmp.thread = (int (*)())thread;
    openmp.threads = (int (*)())threads;
}

// 0: it ran; 1: no memory.
int vantage_run(const ProgramCall* call, int threads) try {
    std::lock_guard<std::mutex> one_at_a_time(run_lock);
    reserve_scratch(*call, threads);
    Barrier barrier;
    run_on_threads(
        [&](int thread, int of) {
            for (int64_t i = 0; i < call->n_ops; i++) {
                step(call->ops[i], *call, thread, of);
                if (i + 1 < call->n_ops) barrier.wait(of);
            }
        },
        threads);
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

// One product: y (m, outputs) = x (m, inputs) W.
int vantage_linear(const Matrix* w, const float* x, float* y, int64_t m, int threads) {
    Op op{};
    op.kind = LINEAR, op.dst = 1, op.src = 0;
    op.p[0] = w;
    const Buffer buffers[2] = {{const_cast<float*>(x), w->inputs}, {y, w->outputs}};
    const ProgramCall call{&op, buffers, nullptr, nullptr, nullptr, 1, m, 1};
    return vantage_run(&call, threads);
}

// Rows of a packed matrix as float32: y (m, inputs).
void vantage_rows(const Matrix* w, const int64_t* ids, int64_t m, float* y) {
    for (int64_t i = 0; i < m; i++)
        w->format == PACK4 ? unpacked_row<Four>(*w, ids[i], y + i * w->inputs)
                           : unpacked_row<Eight>(*w, ids[i], y + i * w->inputs);
}

// The k largest softmax weights of each row of scores (m, n) times scale, and where they stand: both (m, k).
int vantage_top(const float* scores, int64_t m, int64_t n, int64_t k, float scale, float* values, int32_t* where,
                int threads) try {
    std::lock_guard<std::mutex> one_at_a_time(run_lock);
    const int64_t each = ranking_size(k);
    std::vector<Ranked> candidates(each * threads);
    run_on_threads(
        [&](int thread, int of) {
            for (int64_t i = m * thread / of; i < m * (thread + 1) / of; i++)
                top_of_row(scores + i * n, n, k, scale, values + i * k, where + i * k, candidates.data() + thread * each);
        },
        threads);
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

}  // extern "C"
