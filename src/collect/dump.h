/*
 * Writes Q, K and V of the forward pass into an activations file: per layer and head one slab
 * (block) [tokens of the batch][dim]. All threads transpose the values from [token][head][dim] and
 * convert them to the dtype of the file, in pieces.
 */
#ifndef KVD_COLLECT_DUMP_H
#define KVD_COLLECT_DUMP_H

#include <stddef.h>

#include "formats/activations.h"
#include "model/pass/attention.h"

typedef struct {
    kvd_activations *file; /* borrowed */
    /*
     * index, in the file, of the first token of the current batch; the caller sets it before each
     * batch
     */
    size_t first_token;
    char *slabs;  /* [n_threads][piece][d_head] in the file's dtype */
    size_t piece; /* rows that are transposed and written at a time */
    int n_threads;
    double convert_s, write_s; /* time spent so far, divided in the ratio of the threads' times */
} kvd_dump;

/* Prepares *d for writing into `file`, with omp_get_max_threads() threads. */
int kvd_dump_init(kvd_dump *d, kvd_activations *file, kvd_err *err);
void kvd_dump_release(kvd_dump *d);

/*
 * Writes Q, K and V of one layer of a batch. A layer that the file does not hold is ignored. If a
 * value is not finite or does not fit into the dtype of the file, fails with a message that names
 * tensor, layer, head, token and value.
 */
int kvd_dump_record(kvd_dump *d, const kvd_attention_in *in, kvd_err *err);

#endif
