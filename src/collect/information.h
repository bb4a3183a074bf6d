/* Adds the gradients that the backward pass hands out (model/backward.h) to a Fisher file's sums, and writes
 * its rows. */
#ifndef KVD_COLLECT_INFORMATION_H
#define KVD_COLLECT_INFORMATION_H

#include "formats/fisher.h"
#include "model/backward.h"

typedef struct kvd_information kvd_information;

/*
 * f is borrowed; it has been created, or holds zeroed sums and no rows. Squared gradients of W_K and W_V are
 * held element by element, in float64: n_layers 2 n_kv_heads d_head d_model numbers, whatever the number of
 * tokens. max_tokens, max_len: of batches.
 */
kvd_information *kvd_information_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                     kvd_fisher *f, kvd_err *err);
void kvd_information_free(kvd_information *s);

/* A batch whose first row is token first_token of the corpus. After a failure the sums are of no use. */
int kvd_information_run(kvd_information *s, const kvd_batch *b, size_t first_token,
                        int (*give_up)(void *ctx, kvd_err *err), void *ctx, kvd_err *err);

/* Brings the sums over weights in f up to what was run. */
void kvd_information_settle(kvd_information *s);

#endif
