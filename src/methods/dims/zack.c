/*
 * ZACK (sections 3 and 5): R_QK from queries on keys after RoPE, R_VW from values on W_O; a width of its
 * own for every head of both pairs. One R per KV head (reading 1 of DESIGN, Z-1).
 */
#include "methods/dims/dims.h"

const kvd_dims_method kvd_dims_zack = {
    .name = "zack",
    .summary = "rotations of Q-K after RoPE and V-W_O, a width per head (ZACK)",
    .pair = {KVD_PAIR_QK, KVD_PAIR_VW},
    .cut = kvd_dims_cut_orthogonal,
};
