#include "methods/bits/levels.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

/* Cumulative sums over a histogram. The sum over a range of bins is the difference of two
 * cumulative sums. */
typedef struct {
    /* [bins + 1] Element i is a sum over bins 0 .. i - 1 of a histogram. weight: sum of the bins'
     * weights. first: sum of weight * x, where x is the middle of a bin. second: sum of weight *
     * x^2. */
    double *weight, *first, *second;
} prefixes;

double kvd_level_bin(int bin, int bins)
{
    return -1 + (2.0 * bin + 1) / bins;
}

/* Returns the squared error if all numbers in the histogram's bins `from` to `to` - 1 decode to
 * their mean. */
static double lost(const prefixes *s, int from, int to)
{
    const double w = s->weight[to] - s->weight[from], x = s->first[to] - s->first[from];
    return w > 0 ? fmax(0, s->second[to] - s->second[from] - x * x / w) : 0;
}

/* Step of dynamic programming that adds one quantisation level. Sets least[e] to the least squared
 * error of the first e bins, and begin[e] to the first bin that the new level represents. */
static void add_level(const prefixes *s, const double *before, int lo, int hi, int from, int to,
                      double *least, uint16_t *begin)
{
    if (lo > hi)
        return;
    const int e = (lo + hi) / 2;
    least[e] = INFINITY;
    for (int b = from; b <= to && b <= e; b++) {
        const double all = before[b] + lost(s, b, e);
        if (all < least[e]) {
            least[e] = all;
            begin[e] = (uint16_t)b;
        }
    }
    add_level(s, before, lo, e - 1, from, begin[e], least, begin);
    add_level(s, before, e + 1, hi, begin[e], to, least, begin);
}

static void sum_up(const double *histogram, int bins, const prefixes *s)
{
    s->weight[0] = s->first[0] = s->second[0] = 0;
    for (int b = 0; b < bins; b++) {
        const double w = histogram[b], x = kvd_level_bin(b, bins);
        s->weight[b + 1] = s->weight[b] + w;
        s->first[b + 1] = s->first[b] + w * x;
        s->second[b + 1] = s->second[b] + w * x * x;
    }
}

int kvd_levels_find(const double *histogram, int bins, int n, double *level, kvd_err *err)
{
    assert(bins >= 1 && bins <= KVD_LEVELS_BINS && n >= 1);
    const size_t ends = (size_t)bins + 1;
    double *const all = malloc(5 * ends * sizeof *all);
    uint16_t *const begin = malloc((size_t)n * ends * sizeof *begin);
    if (!all || !begin) {
        free(all);
        free(begin);
        return kvd_no_memory(err, "levels", ends * (5 * sizeof *all + (size_t)n * sizeof *begin));
    }
    const prefixes s = {all, all + ends, all + 2 * ends};
    double *const least[2] = {all + 3 * ends, all + 4 * ends};
    sum_up(histogram, bins, &s);
    for (int e = 0; e <= bins; e++)
        least[0][e] = lost(&s, 0, e);
    for (int k = 1; k < n; k++)
        add_level(&s, least[(k - 1) % 2], 0, bins, 0, bins, least[k % 2], begin + (size_t)k * ends);
    for (int k = n - 1, end = bins; k >= 0; k--) {
        const int from = k ? begin[(size_t)k * ends + (size_t)end] : 0;
        const double w = s.weight[end] - s.weight[from];
        level[k] = w > 0 ? (s.first[end] - s.first[from]) / w : NAN;
        end = from;
    }
    free(begin);
    free(all);
    for (int k = 1; k < n; k++)
        level[k] = isnan(level[k]) ? level[k - 1] : level[k];
    for (int k = n - 1; k > 0; k--)
        level[k - 1] = isnan(level[k - 1]) ? level[k] : level[k - 1];
    return 0;
}

int kvd_level_nearest(const float *level, int n, float x)
{
    int lo = 0;
    /* The loop has no branch that depends on x, because the processor would often predict it
     * wrongly. */
    for (int half; n > 1; n -= half) {
        half = n / 2;
        lo += half * (x > (level[lo + half - 1] + level[lo + half]) / 2);
    }
    return lo;
}
