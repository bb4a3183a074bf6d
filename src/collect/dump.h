/*
 * Writes what the forward pass hands out into an activations file: per layer and head one slab
 * [tokens of the batch][dim], turned from [token][head][dim] and converted on the way, in pieces, by all
 * threads.
 */
#ifndef KVD_COLLECT_DUMP_H
#define KVD_COLLECT_DUMP_H

#include <stddef.h>

#include "formats/activations.h"
#include "model/attention.h"

typedef struct {
    kvd_activations *file; /* borrowed                                                   */
    size_t first_token;    /* of the batch at hand, in the file: set it before each one  */
    char *slabs;           /* [n_threads][piece][d_head] in the file's dtype             */
    size_t piece;          /* rows that are turned and written at a time                 */
    int n_threads;
    double convert_s, write_s; /* time spent so far, split as the threads spent theirs   */
} kvd_dump;

/* Threads as omp_get_max_threads says now. */
int kvd_dump_init(kvd_dump *d, kvd_activations *file, kvd_err *err);
void kvd_dump_release(kvd_dump *d);

/*
 * One layer of a batch; layers that the file does not hold are passed over. A value that is not
 * finite, or does not fit into the dtype of the file, is an error that names tensor, layer, head,
 * token and value.
 */
int kvd_dump_record(kvd_dump *d, const kvd_attention_in *in, kvd_err *err);

#endif
