/*
 * Writes Q, K and V of the forward pass on the CPU into an activations file. Threads transpose the
 * values from [token][head][dim] to [head][token][dim] and convert them, `piece` tokens at a time.
 */
#ifndef KVD_COLLECT_DUMP_H
#define KVD_COLLECT_DUMP_H

#include <stddef.h>

#include "formats/activations.h"
#include "model/pass/attention.h"

typedef struct {
    kvd_activations *file; /* file to write to, borrowed */
    /* Index in the file of the current batch's first token; set by the caller. */
    size_t first_token;
    /* Transposed values, [n_threads][piece][d_head], in the number type of the file. */
    char *slabs;
    size_t piece; /* tokens that a thread writes at a time */
    int n_threads;
    /* Seconds spent on conversion and on writing. */
    double convert_s, write_s;
} kvd_dump;

/* Allocates buffers for as many threads as OpenMP will start. */
int kvd_dump_init(kvd_dump *d, kvd_activations *file, kvd_err *err);
void kvd_dump_release(kvd_dump *d);

/*
 * Writes Q, K and V of one layer of a batch. Ignores a layer that the file does not hold. Fails if
 * a value is not finite in the number type of the file; the message names the value's position.
 */
int kvd_dump_record(kvd_dump *d, const kvd_attention_in *in, kvd_err *err);

#endif
