/*
 * The projections that minimise the expected error of q.k and of P V W_O at a given width (DESIGN section
 * 8): not one R for both sides but a left and a right matrix, from the singular value decomposition of
 * Cq^{1/2} Ck^{1/2} and Cv^{1/2} (W_O W_O^T)^{1/2}. Costs at run time what a rotation costs.
 */
#include "methods/dims/dims.h"

const kvd_dims_method kvd_dims_balanced = {
    .name = "balanced",
    .summary = "score-optimal projections of Q-K and V-W_O, a width per head",
    .pair = {KVD_PAIR_BQK, KVD_PAIR_BVW},
    .biorthogonal = 1,
    .cut = kvd_dims_cut_biorthogonal,
};
