/* Writes Q, K and V of the CPU's forward pass to a file as [head][token][dim]. */
#ifndef KVD_COLLECT_DUMP_H
#define KVD_COLLECT_DUMP_H

#include <stddef.h>

#include "formats/activations.h"
#include "model/pass/attention.h"

typedef struct {
    kvd_activations *file; /* file to write to, owned by the caller */
    size_t first_token;    /* index in the file of the batch's first token, set by the caller */
    char *slabs;  /* [n_threads][piece][d_head] transposed values in the file's number type */
    size_t piece; /* tokens that a thread writes at a time */
    int n_threads;
    double convert_s, write_s; /* seconds of conversion and of writing */
} kvd_dump;

/* Allocates a buffer per OpenMP thread, in which Q, K and V are converted for `file`. */
int kvd_dump_init(kvd_dump *d, kvd_activations *file, kvd_err *err);
void kvd_dump_release(kvd_dump *d);

/* Writes a layer's Q, K and V to the file, if it holds this layer. Fails if a value is not
 * finite. */
int kvd_dump_record(kvd_dump *d, const kvd_attention_in *in, kvd_err *err);

#endif
