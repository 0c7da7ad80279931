// The native kernels as a program, without Python: a request on stdin, its result on stdout. For processors that this
// machine has not, under an emulator.
#include <cstdio>
#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#endif
#include "native.cpp"

namespace {

template <class T>
std::vector<T> take(int64_t count) {
    std::vector<T> values(count);
    if (std::fread(values.data(), sizeof(T), count, stdin) != (size_t)count) std::exit(3);
    return values;
}

template <class T>
void give(const std::vector<T>& values) {
    std::fwrite(values.data(), sizeof(T), values.size(), stdout);
}

// format, outputs, inputs, rows, bytes of the packed matrix and of the blocks, fast; GGUF blocks; activations. The packed matrix, the product,
// and the matrix itself.
void product_request(int threads) {
    const auto n = take<int32_t>(7);
    const int64_t outputs = n[1], inputs = n[2], rows = n[3];
    std::vector<uint8_t> packed(n[4]);
    const auto blocks = take<uint8_t>(n[5]);
    const auto x = take<float>(rows * inputs);
    const Matrix w{packed.data(), nullptr, n[0], (int32_t)outputs, (int32_t)inputs, 0};
    std::vector<float> y(rows * outputs), dense(outputs * inputs);
    std::vector<const uint8_t*> each(outputs);
    for (int64_t i = 0; i < outputs; i++) each[i] = blocks.data() + i * ((int64_t)blocks.size() / outputs);
    if (vantage_repack(&w, each.data(), threads) || vantage_linear(&w, x.data(), y.data(), rows, threads, n[6])) std::exit(4);
    std::vector<int64_t> ids(outputs);
    for (int64_t i = 0; i < outputs; i++) ids[i] = i;
    vantage_rows(&w, ids.data(), outputs, dense.data());
    give(packed), give(y), give(dense);
}

// heads, kv_heads, dim, tokens held, new tokens, in which form they are kept, and how many new tokens come at a time; the
// cache of keys and of values (kv_heads, all tokens, dim); queries, keys and values of the new tokens side by side. What
// the queries get.
void attention_request(int threads) {
    const auto n = take<int32_t>(7);
    const int64_t heads = n[0], kv = n[1], dim = n[2], held = n[3], tokens = n[4], all = held + tokens;
    auto k = take<float>(kv * all * dim), v = take<float>(kv * all * dim);
    std::vector<float> k_scale(kv * all), v_scale(kv * all);
    for (int64_t i = 0; i < kv * all; i++) {  // in place: a number takes no more room than in float32
        const std::vector<float> key(k.begin() + i * dim, k.begin() + (i + 1) * dim), value(v.begin() + i * dim, v.begin() + (i + 1) * dim);
        if (n[5] == HALVES) keep(key.data(), dim, (uint16_t*)k.data() + i * dim, nullptr), keep(value.data(), dim, (uint16_t*)v.data() + i * dim, nullptr);
        if (n[5] == BYTES) keep(key.data(), dim, (int8_t*)k.data() + i * dim, &k_scale[i]), keep(value.data(), dim, (int8_t*)v.data() + i * dim, &v_scale[i]);
    }
    auto qkv = take<float>(tokens * (heads + 2 * kv) * dim);
    std::vector<float> out(tokens * heads * dim);
    const LayerStore store{k.data(), v.data(), k_scale.data(), v_scale.data(), all * dim, all * dim, 0, 0, (int32_t)dim, (int32_t)dim, n[5], 0};
    Op ops[2] = {};
    ops[0].kind = APPEND;
    ops[0].n[0] = (int32_t)(heads * dim), ops[0].n[1] = (int32_t)((heads + kv) * dim), ops[0].n[4] = (int32_t)kv;
    ops[1].kind = ATTEND, ops[1].dst = 1;
    ops[1].n[1] = (int32_t)heads, ops[1].n[2] = (int32_t)kv, ops[1].f[0] = 0.125f;
    for (int64_t t = 0; t < tokens; t += n[6]) {
        const int64_t in = (heads + 2 * kv) * dim, of = heads * dim;
        const Buffer buffers[2] = {{qkv.data() + t * in, in}, {out.data() + t * of, of}};
        const RowLocation location{nullptr, 0, 0, held + t};
        const ProgramCall call{ops, buffers, nullptr, &store, &location, 2, 1, std::min<int64_t>(n[6], tokens - t), 0, 0, nullptr, 0};
        if (vantage_run(&call, threads)) std::exit(4);
    }
    give(out);
}

// rows, columns, k; scores. The largest weights, and where they stand.
void top_request(int threads) {
    const auto n = take<int32_t>(3);
    const auto scores = take<float>((int64_t)n[0] * n[1]);
    std::vector<float> values((int64_t)n[0] * n[2]);
    std::vector<int32_t> where(values.size());
    if (vantage_top(scores.data(), n[0], n[1], n[2], 0.5f, values.data(), where.data(), threads)) std::exit(4);
    give(values), give(where);
}

// heads, kv_heads, key_dim, value_dim, queries, keys, window, the first distance of the bias and how many it has; queries,
// keys and values by head; the bias; places of queries and keys, the tiles to visit. What the queries get.
void tiles_request(int threads) {
    const auto n = take<int32_t>(9);
    TileCall call = {};
    call.rows = call.batch = 1, call.heads = n[0], call.kv_heads = n[1], call.key_dim = n[2], call.value_dim = n[3];
    call.queries = n[4], call.keys = n[5], call.window = n[6], call.first = n[7], call.length = n[8];
    const auto q = take<float>(call.heads * call.queries * call.key_dim), k = take<float>(call.kv_heads * call.keys * call.key_dim);
    const auto v = take<float>(call.kv_heads * call.keys * call.value_dim), bias = take<float>(call.heads * call.length);
    const auto q_at = take<int32_t>(4 * EDGE * call.query_tiles()), k_at = take<int32_t>(4 * EDGE * call.key_tiles());
    const auto ranges = take<int32_t>(4 * call.query_tiles());
    std::vector<float> out(call.heads * call.queries * call.value_dim);
    call.q = q.data(), call.k = k.data(), call.v = v.data(), call.out = out.data(), call.bias = bias.data();
    call.q_at = q_at.data(), call.k_at = k_at.data(), call.ranges = ranges.data();
    call.q_step[1] = call.queries * (call.q_step[2] = call.key_dim), call.k_step[1] = call.keys * (call.k_step[2] = call.key_dim);
    call.v_step[1] = call.keys * (call.v_step[2] = call.value_dim), call.out_step[1] = call.queries * (call.out_step[2] = call.value_dim);
    call.bias_kind = OF_DISTANCE, call.running = call.causal = 1, call.scale = 0.25f, call.cool = 1;
    if (vantage_attend(&call, threads)) std::exit(4);
    give(out);
}

}  // namespace

int main() {
#if defined(_WIN32)
    _setmode(_fileno(stdin), _O_BINARY), _setmode(_fileno(stdout), _O_BINARY);
#endif
    const auto request = take<int32_t>(2);  // what, and how many threads
    if (request[0] == 0) product_request(request[1]);
    else if (request[0] == 1) attention_request(request[1]);
    else if (request[0] == 2) top_request(request[1]);
    else if (request[0] == 3) tiles_request(request[1]);
    else give(std::vector<int32_t>{vantage_matrix_unit()});
}
