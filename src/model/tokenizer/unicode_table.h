/* Canonical combining classes and decompositions of Unicode; see scripts/make_unicode_table.py. */
#ifndef KVD_MODEL_TOKENIZER_UNICODE_TABLE_H
#define KVD_MODEL_TOKENIZER_UNICODE_TABLE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t first, last;
    uint8_t combining; /* not 0; code points outside all ranges have 0 */
} kvd_unicode_class;

typedef struct {
    uint32_t code, a, b; /* b = 0: code decomposes into a alone */
} kvd_unicode_pair;

/* Sorted by code point. */
extern const kvd_unicode_class kvd_unicode_classes[];
extern const size_t kvd_unicode_n_classes;
extern const kvd_unicode_pair kvd_unicode_pairs[];
extern const size_t kvd_unicode_n_pairs;
/* Those that compose again, sorted by a, then b. */
extern const kvd_unicode_pair kvd_unicode_compositions[];
extern const size_t kvd_unicode_n_compositions;

#endif
