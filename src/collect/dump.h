/*
 * Writes Q, K and V of the forward pass on the CPU into an activations file. For each layer and
 * head of a batch it writes one block [tokens of the batch][dim]. All threads transpose the values
 * from [token][head][dim] and convert them to the number type of the file, some rows at a time.
 */
#ifndef KVD_COLLECT_DUMP_H
#define KVD_COLLECT_DUMP_H

#include <stddef.h>

#include "formats/activations.h"
#include "model/pass/attention.h"

typedef struct {
    kvd_activations *file; /* activations file to write to, borrowed */
    /*
     * Index, in the file, of the first token of the current batch. The caller sets it before each
     * batch.
     */
    size_t first_token;
    /*
     * Buffer of each thread for the transposed vectors of `piece` tokens of one head,
     * [n_threads][piece][d_head], in the number type of the file.
     */
    char *slabs;
    size_t piece; /* number of tokens that a thread transposes and writes at a time */
    int n_threads;
    /*
     * Seconds spent so far on conversion and on writing. Elapsed time is divided between them in
     * the ratio of the threads' times.
     */
    double convert_s, write_s;
} kvd_dump;

/* Prepares *d for writing recorded Q, K and V into `file`, with omp_get_max_threads() threads. */
int kvd_dump_init(kvd_dump *d, kvd_activations *file, kvd_err *err);
void kvd_dump_release(kvd_dump *d);

/*
 * Writes Q, K and V of one layer of a batch. A layer that the file does not hold is ignored. If a
 * value is not finite or does not fit into the number type of the file, fails with a message that
 * names tensor, layer, head, token and value.
 */
int kvd_dump_record(kvd_dump *d, const kvd_attention_in *in, kvd_err *err);

#endif
