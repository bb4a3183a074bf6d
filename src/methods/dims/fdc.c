/*
 * FDC (section 4): Q and K as in ZACK; V by the singular vectors of W_V of its KV head (reading 7 of
 * DESIGN), so that V's basis depends on no text.
 */
#include "methods/dims/dims.h"

const kvd_dims_method kvd_dims_fdc = {
    .name = "fdc",
    .summary = "rotations of Q-K after RoPE and of W_V, a width per head (FDC)",
    .pair = {KVD_PAIR_QK, KVD_PAIR_WV},
    .cut = kvd_dims_cut_orthogonal,
};
