/* Groups of principal components that method kvtc chose, for tests and reports. */
#ifndef KVD_METHODS_BITS_KVTC_H
#define KVD_METHODS_BITS_KVTC_H

#include "methods/bits/bits.h"

typedef struct {
    uint16_t first, size; /* index of the first component of the group, and number of components */
    uint8_t bits;         /* bits per component; 0 if the group is not stored */
} kvd_kvtc_group;

/*
 * Sets *groups to the groups of principal components of K or V of a layer, in rising order of
 * components, and returns their number. Together they contain all n_kv_heads * d_head components.
 * The open method owns them.
 */
size_t kvd_kvtc_groups(const void *self, int layer, kvd_side side, const kvd_kvtc_group **groups);

#endif
