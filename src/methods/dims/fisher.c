/*
 * The projections that cost the predictions least, to second order: as balanced, but keys are weighed by what the loss feels at the queries,
 * and values by the outputs of attention and what the loss feels there. From the singular value decompositions of Cq^{1/2} Gq^{1/2} and
 * Co^{1/2} Go^{1/2}, with G the second moments of gradients under tokens drawn from the model. Costs at run time what balanced costs.
 */
#include "methods/dims/dims.h"

const kvd_dims_method kvd_dims_fisher = {
    .name = "fisher",
    .summary = "projections weighed by the Fisher information of the predictions, a width per head",
    .pair = {KVD_PAIR_FQK, KVD_PAIR_FVW},
    .biorthogonal = 1,
    .cut = kvd_dims_cut_biorthogonal,
};
