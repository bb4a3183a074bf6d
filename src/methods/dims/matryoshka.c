/*
 * MatryoshkaKV before its training (Lin et al. 2024, sections 3 and 4, and cal_pcallama_init.py of the public
 * code): principal components of K after RoPE and of V, each on its own, without queries and without W_O.
 * That is what their distillation starts from, and the canonical choice that every other basis has to beat.
 * Components are those of second moments, where the public code takes the mean off first.
 */
#include "methods/dims/dims.h"

const kvd_dims_method kvd_dims_matryoshka = {
    .name = "matryoshka",
    .summary = "principal components of K after RoPE and of V, a width per head (MatryoshkaKV untrained)",
    .pair = {KVD_PAIR_K, KVD_PAIR_V},
    .cut = kvd_dims_cut_orthogonal,
};
