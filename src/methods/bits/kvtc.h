/* Gives tests and reports the groups of principal components that method kvtc chose. */
#ifndef KVD_METHODS_BITS_KVTC_H
#define KVD_METHODS_BITS_KVTC_H

#include "methods/bits/bits.h"

typedef struct {
    uint16_t first, size; /* index of the first component, and number of components */
    uint8_t bits;         /* bits per component; 0 if the group is not stored */
} kvd_kvtc_group;

/*
 * Sets `*groups` to the groups of K or V of one layer, in ascending order of components, and
 * returns their number. The open method owns `*groups`. The groups contain all n_kv_heads * d_head
 * components.
 */
size_t kvd_kvtc_groups(const void *self, int layer, kvd_side side, const kvd_kvtc_group **groups);

#endif
