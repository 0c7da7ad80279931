// The largest softmax weights of a row, from its scores, in two readings of the row and without writing the weights.
#pragma once
#include <algorithm>
#include "vectors.h"

namespace vantage {

struct Ranked {
    float score;
    int32_t at;
    bool operator<(const Ranked& other) const {  // the better first; of equals the earlier
        return score != other.score ? score > other.score : at < other.at;
    }
};

inline int64_t ranking_size(int64_t k) { return 4 * k + 64; }

// The k best of n scores times scale: their weights, falling, and where they stand. A score of -inf has the weight 0.
inline void top_of_row(const float* x, int64_t n, int64_t k, float scale, float* values, int32_t* where,
                       Ranked* candidates) {
    constexpr int MAXIMA = 32 / WIDTH;
    floats best[MAXIMA];
    for (floats& v : best) v = all(-INFINITY);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < MAXIMA; j++) best[j] = max(load(x + i + j * WIDTH), best[j]);
    // Thirty-two scores are at least as high as the lowest of these maxima: none below is among the best 32.
    floats low = best[0], high = best[0];
    for (const floats& v : best) low = min(low, v), high = max(high, v);
    float floor = k <= 32 && n >= 32 ? lowest(low) : -INFINITY;
    float top = greatest(high);
    for (; i < n; i++) top = x[i] > top ? x[i] : top;

    const int64_t most = ranking_size(k);
    int64_t kept = 0;
    const auto keep = [&](float score, int64_t at) {
        candidates[kept++] = {score, (int32_t)at};
        if (kept == most) {
            std::nth_element(candidates, candidates + (k - 1), candidates + kept);
            kept = k, floor = std::max(floor, candidates[k - 1].score);
        }
    };
    floats sums = all(0);
    for (i = 0; i + WIDTH <= n; i += WIDTH) {
        const floats v = load(x + i);
        sums += exp((v - top) * scale);
        for (uint32_t rest = reaching(v, floor); rest; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            keep(x[i + lane], i + lane);
        }
    }
    float total = sum(sums);
    for (; i < n; i++) {
        total += std::exp((x[i] - top) * scale);
        if (x[i] >= floor) keep(x[i], i);
    }
    const int64_t count = std::min(k, kept);  // fewer only if some scores are no numbers
    if (kept > k) std::nth_element(candidates, candidates + (k - 1), candidates + kept);
    std::sort(candidates, candidates + count);
    for (int64_t j = 0; j < k; j++) {
        values[j] = (j < count ? std::exp((candidates[j].score - top) * scale) : 0.0f) / total;
        where[j] = j < count ? candidates[j].at : 0;
    }
}

}  // namespace vantage
