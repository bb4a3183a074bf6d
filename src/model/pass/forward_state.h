/* State of the CPU's forward pass, which the backward pass shares. */
#ifndef KVD_MODEL_PASS_FORWARD_STATE_H
#define KVD_MODEL_PASS_FORWARD_STATE_H

#include "model/checkpoint/streaming.h"
#include "model/checkpoint/weights.h"
#include "model/pass/forward.h"
#include "model/pass/layer.h"

enum { KVD_N_ONCE = KVD_N_PARTS - KVD_N_LAYER_PARTS };

struct kvd_forward {
    kvd_config config;
    const char *pass; /* precedes "layer" in messages */
    /* width_q is n_heads * d_head, width_k is n_kv_heads * d_head. */
    size_t d_model, d_ffn, d_embed, width_q, width_k;
    size_t max_tokens, max_len;

    kvd_weight *part; /* [n_layers][KVD_LAYER_WEIGHTS] */
    kvd_weight embedding, positions, head;
    kvd_prefetch prefetch;
    kvd_experts *experts;

    float *layer;
    /* float32 copy of some rows of the output head; NULL if the file has the output head in
     * float32 */
    float *slab;
    size_t slab_rows;
    size_t slab_first;

    /* Weights [0] and biases [1] that are not part of a layer, such as the final norm. NULL if the
     * model has none. */
    float *once[KVD_N_ONCE][2];
    float *x; /* residual stream: [max_tokens][d_model] */
    /* Q, K, V and attention output of one layer: q, o [max_tokens][width_q]; k, v
     * [max_tokens][width_k] */
    float *q, *k, *v, *o;
    /* Q and K before RoPE, and the layer's input; NULL unless an attention hook reads them */
    float *q_pre, *k_pre, *input;
    float *cosine, *sine; /* RoPE tables: [kvd_batch_rope_rows][d_head / 2] */
    uint32_t *position;
    uint32_t *rope_row;

    /* number of tokens that a thread processes at a time */
    size_t block;
    size_t work_size;
    size_t work_n;
    float *work;
    /* residual stream after projection to d_embed dimensions, for the output head; NULL if not
     * needed */
    float *narrow;
    size_t narrow_n;
};

/* Allocates a x b floats; `what` names them in error messages. Returns NULL with *err on
 * failure. */
float *kvd_floats(const char *what, size_t a, size_t b, kvd_err *err);

/* Returns the descriptions of a layer's weights in the checkpoint, [KVD_LAYER_WEIGHTS]. */
const kvd_weight *kvd_forward_parts(const kvd_forward *f, int layer);

/* Returns the matrix or gain of a model part outside the layers, such as the final norm. If `bias`,
 * returns the part's bias instead. Returns NULL if the model has none. */
const float *kvd_forward_once(const kvd_forward *f, kvd_part part, int bias);

/* Returns float32 rows of the output head's matrix from row `first` on, and the number of these
 * rows in *rows. */
const float *kvd_forward_head(kvd_forward *f, size_t first, size_t *rows);

/* Fails if a row of x [n_tokens][width] is not finite. */
int kvd_batch_check_finite(const kvd_config *c, const kvd_batch *b, const char *where,
                           const float *x, size_t width, kvd_err *err);

/* Checks the batch, and sets the residual stream f->x to the embeddings of its tokens. */
int kvd_forward_begin(kvd_forward *f, const kvd_batch *b, const kvd_attention *hook, kvd_err *err);

/* Runs one layer on the residual stream f->x. If `stop`, ends after the layer's attention, whose
 * output is f->o. */
int kvd_forward_layer(kvd_forward *f, const kvd_batch *b, int layer, const kvd_layer_weights *w,
                      kvd_attention *hook, int stop, kvd_err *err);

#endif
