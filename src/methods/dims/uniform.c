/*
 * One p for all heads, layers and pairs with ZACK's rotations: the ablation ZACK/AC, and the plain PCA
 * truncation that every adaptive choice of widths has to beat.
 */
#include "methods/dims/dims.h"

const kvd_dims_method kvd_dims_uniform = {
    .name = "uniform",
    .summary = "ZACK's rotations, the same width for every head (ZACK/AC)",
    .pair = {KVD_PAIR_QK, KVD_PAIR_VW},
    .one_p = 1,
    .cut = kvd_dims_cut_orthogonal,
};
