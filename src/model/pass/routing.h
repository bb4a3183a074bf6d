/* Chooses experts, with the groups of DeepSeek-V2 (arXiv:2405.04434) and V3 (arXiv:2412.19437).
 *
 * score         softmax probability (V2), sigmoid of the logit (V3)
 * value         score (V2), score plus a learned bias (V3); orders experts
 * group value   largest value (V2), sum of the two largest (V3) */
#ifndef KVD_MODEL_PASS_ROUTING_H
#define KVD_MODEL_PASS_ROUTING_H

#include <math.h>
#include <stddef.h>

#include "model/checkpoint/config.h"

#ifdef __CUDACC__
#define KVD_ROUTE_ANYWHERE __host__ __device__
#else
#define KVD_ROUTE_ANYWHERE
#endif

/* Returns the expert that follows expert `last` if experts are sorted by falling logit, or n at the
 * end. If `last` is n, returns the first expert. */
static inline KVD_ROUTE_ANYWHERE size_t kvd_route_next(const float *logit, size_t n, size_t last)
{
    size_t best = n;
    for (size_t x = 0; x < n; x++) {
        const int after =
            /* cppcheck-suppress arrayIndexThenCheck */
            last == n || logit[x] < logit[last] || (logit[x] <= logit[last] && x > last);
        if (after && logit[x] >= -INFINITY && (best == n || logit[x] > logit[best]))
            best = x;
    }
    return best;
}

/* number of doubles of scratch memory per expert that kvd_route_groups needs */
enum { KVD_ROUTE_SCRATCH = 3 };

/* Chooses a token's experts, best first; ties go to the lower index. `factor` receives the factors
 * on the experts' outputs. `bias` is added to scores only for the choice, and may be NULL. */
void kvd_route_groups(const kvd_config *c, const float *logit, const float *bias, double *scratch,
                      size_t *expert, float *factor);

#endif
