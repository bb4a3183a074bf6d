/*
 * Writes what the forward pass hands out into an activations file: per layer and head one slab
 * [tokens of the batch][dim], turned from [token][head][dim] and converted on the way.
 */
#ifndef KVD_COLLECT_DUMP_H
#define KVD_COLLECT_DUMP_H

#include <stddef.h>

#include "formats/activations.h"
#include "model/attention.h"

typedef struct {
    kvd_activations *file; /* borrowed                                                   */
    size_t first_token;    /* of the batch at hand, in the file: set it before each one  */
    char *slab;            /* [heads][tokens of the batch][d_head] in the file's dtype   */
    size_t max_tokens;
    double convert_s, write_s; /* time spent so far                                      */
} kvd_dump;

/* max_tokens is the largest batch. */
int kvd_dump_init(kvd_dump *d, kvd_activations *file, size_t max_tokens, kvd_err *err);
void kvd_dump_release(kvd_dump *d);

/*
 * One layer of a batch; layers that the file does not hold are passed over. A value that is not
 * finite, or does not fit into the dtype of the file, is an error that names tensor, layer, head,
 * token and value.
 */
int kvd_dump_record(kvd_dump *d, const kvd_attention_in *in, kvd_err *err);

#endif
