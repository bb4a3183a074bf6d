/* Adds what the forward pass hands out to the second moments: G += X^T X per layer and head. */
#ifndef KVD_COLLECT_ACCUMULATE_H
#define KVD_COLLECT_ACCUMULATE_H

#include "formats/moments.h"
#include "model/attention.h"

typedef struct {
    kvd_moments *sums; /* borrowed, allocated                         */
    double *scratch;   /* [n_threads][kvd_gram_scratch(d_head)]       */
    int n_threads;
    double seconds; /* spent so far                                */
} kvd_accumulator;

int kvd_accumulator_init(kvd_accumulator *a, kvd_moments *sums, int n_threads, kvd_err *err);
void kvd_accumulator_release(kvd_accumulator *a);

/* One layer of a batch; layers that the moments do not hold are passed over. A value that is not
 * finite is an error that names tensor, layer and head; the sums are then of no use. */
int kvd_accumulator_record(kvd_accumulator *a, const kvd_attention_in *in, kvd_err *err);

/* The sums of the weights of one layer (counted from the first one held):
 * w_o [n_heads][d_head][d_model], w_v [n_kv_heads][d_head][d_model]. */
int kvd_accumulator_weights(kvd_accumulator *a, int layer, const float *w_o, const float *w_v, kvd_err *err);

#endif
