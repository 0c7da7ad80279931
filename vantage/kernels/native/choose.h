// From the logits of a row to a token, in the order of vantage/generation/sampling.py: temperature, top-k, top-p, min-p,
// and one random number that is given.
#pragma once
#include <algorithm>
#include <vector>
#include "vectors.h"

namespace vantage {

struct Choice {  // how a row chooses
    double temperature;  // 0: the likeliest
    double top_p;        // 1: all
    double min_p;        // 0: all
    int64_t top_k;       // 0: all
};

struct ChosenToken {
    int32_t token, fine;  // fine: it was chosen from finite numbers
    float logprob;        // the model's own, before temperature
};

// e^x for x <= 0, without branches, so that compilers make vectors of a loop over it. Off by a unit in the last place.
inline double exp_below(double x) {
    x = x < -700.0 ? -700.0 : x;
    const double shifted = x * 1.4426950408889634 + 6755399441055744.0;  // adding 3 * 2^51 rounds to a whole number
    const double n = shifted - 6755399441055744.0;
    const double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;  // Taylor's series to r^13 / 13!, for |r| <= ln 2 / 2
    p = p * r + 1.0 / 479001600.0, p = p * r + 1.0 / 39916800.0, p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0, p = p * r + 1.0 / 40320.0, p = p * r + 1.0 / 5040.0, p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0, p = p * r + 1.0 / 24.0, p = p * r + 1.0 / 6.0, p = p * r + 0.5;
    p = p * r + 1.0, p = p * r + 1.0;
    int64_t bits;
    std::memcpy(&bits, &shifted, 8);
    const int64_t power = (bits + 1023) << 52;  // the lowest bits of the shifted number are n
    double scale;
    std::memcpy(&scale, &power, 8);
    return p * scale;
}

struct RankedTokens {  // the front of a row's probabilities, best first, of equals the lower id
    std::vector<int32_t> ids;
    std::vector<double> p;

    // Those of at least ``least``.
    void rank(const std::vector<double>& all, double least) {
        ids.clear(), p.clear();
        for (size_t i = 0; i < all.size(); i++)
            if (all[i] >= least) ids.push_back((int32_t)i);
        std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return all[a] != all[b] ? all[a] > all[b] : a < b; });
        for (const int32_t id : ids) p.push_back(all[id]);
    }

    // How many pass the filters.
    int64_t kept(const Choice& c) const {
        int64_t count = (int64_t)p.size();
        double mass = 1.0;
        if (c.top_k) {
            count = std::min(count, c.top_k), mass = 0.0;
            for (int64_t i = 0; i < count; i++) mass += p[i];
        }
        if (c.top_p < 1.0) {
            double before = 0.0;
            int64_t within = 0;
            for (; within < count && before < c.top_p * mass; within++) before += p[within];
            count = std::max<int64_t>(1, within);
        }
        int64_t likely = 0;
        while (likely < count && p[likely] >= c.min_p * p[0]) likely++;
        return std::max<int64_t>(1, likely);
    }
};

// Inverse of the cumulative probabilities at u, best tokens first. Few tokens are ranked where a few are enough.
inline int32_t draw(const float* logits, int64_t n, float highest, const Choice& c, double u) {
    static thread_local std::vector<double> p;
    static thread_local RankedTokens best;
    p.resize(n);
    const double top = (double)highest / c.temperature, over = c.temperature;
    double total = 0.0;
    for (int64_t i = 0; i < n; i++) p[i] = exp_below((double)logits[i] / over - top);
    for (int64_t i = 0; i < n; i++) total += p[i];
    for (int64_t i = 0; i < n; i++) p[i] /= total;
    const bool filters = c.top_k || c.top_p < 1.0 || c.min_p > 0.0;
    for (const double share : {1e-3, 1e-7, 0.0}) {
        best.rank(p, share / total);  // the likeliest has 1 / total
        const int64_t count = (int64_t)best.p.size(), kept = best.kept(c);
        double mass = 0.0;
        for (int64_t i = 0; i < count; i++) mass += best.p[i];
        // the filters may let more through, or the number may fall beyond
        const bool more = count <= c.top_k || (kept == count && (filters || mass <= u));
        if (more && count < n) continue;
        double all = 1.0;
        if (filters || count == n) {
            all = 0.0;
            for (int64_t i = 0; i < kept; i++) all += best.p[i];
        }
        double below = 0.0;
        for (int64_t i = 0; i < kept; i++) {
            below += best.p[i];
            if (below > u * all) return best.ids[i];
        }
        return best.ids[kept - 1];
    }
    return best.ids.back();
}

inline ChosenToken choose(const float* logits, int64_t n, const Choice& c, double u) {
    floats best = all(-INFINITY);
    int64_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) best = max(load(logits + i), best);
    float highest = greatest(best);
    for (; i < n; i++) highest = logits[i] > highest ? logits[i] : highest;
    floats sums = all(0);
    for (i = 0; i + WIDTH <= n; i += WIDTH) sums += exp(load(logits + i) - highest);
    float total = sum(sums);
    for (; i < n; i++) total += std::exp(logits[i] - highest);
    // a logit that is no number makes the sum none, and so does an infinite highest
    if (!std::isfinite(total) || !std::isfinite(highest)) return {0, 0, 0.0f};
    int32_t token = 0;
    if (c.temperature != 0.0) token = draw(logits, n, highest, c, u);
    else while (logits[token] != highest) token++;
    return {token, 1, (logits[token] - highest) - std::log(total)};
}

}  // namespace vantage
