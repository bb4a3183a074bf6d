/* Groups of principal components that method kvtc chose, for tests and reports. */
#ifndef KVD_METHODS_BITS_KVTC_H
#define KVD_METHODS_BITS_KVTC_H

#include "methods/bits/bits.h"

typedef struct {
    uint16_t first, size; /* first component and number of components */
    uint8_t bits;         /* bits per component; 0 if the group is not stored */
} kvd_kvtc_group;

/*
 * Points *groups at the groups of principal components of K or V of a layer, in rising order, and
 * returns their number. They cover all n_kv_heads * d_head components and are borrowed from the
 * open method.
 */
size_t kvd_kvtc_groups(const void *self, int layer, kvd_side side, const kvd_kvtc_group **groups);

#endif
