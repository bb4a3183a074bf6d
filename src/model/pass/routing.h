/*
 * The order in which a router chooses experts, and the grouped routing of DeepSeek-V2
 * (arXiv:2405.04434, section 2.2) and DeepSeek-V3 (arXiv:2412.19437, section 2.1.2).
 *
 * The score of an expert is its softmax probability (V2), or the sigmoid of its logit (V3). Experts
 * are ordered by a value: in V2 the score, in V3 the score plus a learned bias. Groups of experts
 * are ordered in V2 by the largest value in the group, in V3 by the sum of the two largest. The
 * n_chosen best experts of the groups_chosen best groups are used. The factor on an expert's output
 * is its score without the bias, divided by the sum over the chosen experts if chosen_add_up, times
 * expert_scale.
 */
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

/*
 * Returns the expert that follows expert `last` in the order of falling logits, or n if none
 * follows. If `last` is n, returns the expert with the largest logit. Ties go to the lower index.
 * An expert whose logit is NaN is never returned.
 */
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

/*
 * Chooses the experts of one token, for models whose expert_groups is not 0, with router logits
 * [n_experts]; bias [n_experts] may be NULL. Writes the n_chosen indices to `expert`, best first,
 * and the factors on the experts' outputs to `factor`. Ties go to the lower index. If a logit is
 * NaN, either all factors are NaN or only that of the logit's expert.
 */
void kvd_route_groups(const kvd_config *c, const float *logit, const float *bias, size_t *expert,
                      float *factor);

/*
 * Reference implementation of kvd_route_groups, for forward_ref.c. Writes the factors p [n_experts]
 * of all experts, 0 for those that are not chosen.
 */
void kvd_route_groups_ref(const kvd_config *c, const double *logit, const double *bias, double *p);

#endif
