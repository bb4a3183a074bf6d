/*
 * A model family is one file in families/, which reads config.json into a kvd_config and lists the
 * names of stored tensors. The kvd_config alone decides which weights a model has and how the
 * forward pass uses them. docs/adding.md explains how to add a family.
 */
#ifndef KVD_MODEL_CHECKPOINT_FAMILY_H
#define KVD_MODEL_CHECKPOINT_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/config.h"

/* Kinds of weights: a matrix such as W_Q, or the gain of a norm. A weight may have a bias. */
typedef enum {
    /*
     * From here to KVD_N_LAYER_PARTS: weights of a layer, in the order in which the forward pass
     * uses them.
     */
    KVD_PART_NORM_ATTENTION,
    KVD_PART_Q,
    KVD_PART_K,
    KVD_PART_V,
    /*
     * Gain of the norm of Q: [d_head], common to all heads of a layer. If qk_norm_whole is set,
     * each head has its own gains: [n_heads * d_head], and for the norm of K [n_kv_heads * d_head].
     */
    KVD_PART_NORM_Q,
    KVD_PART_NORM_K,
    KVD_PART_O,
    KVD_PART_NORM_O, /* norm of the output of attention */
    KVD_PART_NORM_FFN,
    KVD_PART_GATE,
    KVD_PART_UP,
    KVD_PART_DOWN,
    KVD_PART_NORM_DOWN, /* norm of the output of the feed-forward block */
    /*
     * Matrix [n_experts][d_model] that scores the routed experts. Layers with a router have no
     * weights KVD_PART_GATE, KVD_PART_UP and KVD_PART_DOWN.
     */
    KVD_PART_ROUTER,
    KVD_PART_SHARED_GATE,
    KVD_PART_SHARED_UP,
    KVD_PART_SHARED_DOWN,
    /* Vector w [1][d_model]: the output of the shared expert is multiplied by sigmoid(x w). */
    KVD_PART_SHARED_SCALE,
    /* Attention sink logits [n_heads]; the tensor name has no ".weight". */
    KVD_PART_SINKS,
    /*
     * Bias [n_experts] that is added to router scores only when experts are chosen; the tensor's
     * name has no ".weight".
     */
    KVD_PART_ROUTER_BIAS,
    /*
     * Latent attention: the query projection is a product of two matrices. KVD_PART_Q_DOWN
     * [q_rank][d_model] is applied first, then KVD_PART_Q.
     */
    KVD_PART_Q_DOWN,
    KVD_PART_NORM_Q_DOWN, /* gain [q_rank] of the norm after Q_DOWN */
    /*
     * Matrix from the layer's input to the latent and the rotated key: [latent +
     * rope_dims][d_model].
     */
    KVD_PART_LATENT,
    KVD_PART_NORM_LATENT, /* gain [latent] of the norm of the latent */
    /*
     * Matrix from the latent, for each head, to d_nope dimensions of the key and d_value dimensions
     * of the value: [n_heads * (d_nope + d_value)][latent].
     */
    KVD_PART_LATENT_UP,
    KVD_N_LAYER_PARTS,
    KVD_PART_EMBEDDING = KVD_N_LAYER_PARTS,
    /* Learned position embeddings: two unused rows, then one row per position. */
    KVD_PART_POSITIONS,
    KVD_PART_PROJECT_IN, /* projection from d_embed to d_model dimensions */
    KVD_PART_NORM_FINAL,
    KVD_PART_PROJECT_OUT, /* projection from d_model to d_embed */
    /* Output head; a file may store it even if it is tied to the embedding. */
    KVD_PART_HEAD,
    KVD_N_PARTS,
    /* From here on: matrices that each routed expert of a layer has. */
    KVD_PART_EXPERT_GATE = KVD_N_PARTS,
    KVD_PART_EXPERT_UP,
    KVD_PART_EXPERT_DOWN,
    KVD_N_ALL_PARTS
} kvd_part;

/*
 * Arrangement of a weight matrix's rows in its stored tensor. With KVD_ROWS_ALL, the matrix is the
 * whole tensor.
 */
typedef enum {
    KVD_ROWS_ALL,
    /* One tensor holds several matrices, one after another in the order of kvd_part. */
    KVD_ROWS_STACKED,
    /*
     * Falcon: the tensor holds, for each KV head, the rows of its query heads, its key head and its
     * value head.
     */
    KVD_ROWS_GROUPED,
    /*
     * gpt-oss: rows 0, 2, 4, ... of the tensor belong to the gate matrix, rows 1, 3, 5, ... to the
     * up matrix.
     */
    KVD_ROWS_INTERLEAVED
} kvd_part_rows;

typedef struct {
    kvd_part part;
    /*
     * Tensor name without ".weight" or ".bias", and without the prefix of the layer. A '#' is
     * replaced by the index of a routed expert.
     */
    const char *name;
    kvd_part_rows rows;
    /*
     * Returns true if a model of configuration *c has a tensor of this name. If the pointer is
     * NULL, every model of the family has the tensor.
     */
    bool (*when)(const kvd_config *c);
} kvd_stored;

struct json_t;

typedef struct {
    const char *name;         /* model_type in config.json */
    const char *other_name;   /* model_type of other models that compute the same, or NULL */
    const char *architecture; /* name of the language model in `architectures` of config.json */
    /* Another name that files with the model_type `name` have there, or NULL. */
    const char *other_architecture;
    /* Fills the zeroed *c from the JSON object `root` of config.json, except for c->family. */
    int (*read)(const struct json_t *root, kvd_config *c, kvd_err *err);
    /*
     * Prefix of all tensor names except the output head's, such as "model.". The prefix is absent
     * in a file that was saved from a model without its output head.
     */
    const char *base;
    /*
     * other_bases are prefixes that a file may have in place of `base`. other_models are prefixes
     * of tensors that are ignored, such as those of a vision model. Both lists end with NULL, and a
     * NULL list is empty.
     */
    const char *const *other_bases, *const *other_models;
    /* Prefix of a layer's tensors, before the layer number, such as "model.layers.". */
    const char *layers;
    const kvd_stored *stored;
    size_t n_stored;
    /*
     * Names, separated by spaces, of tensors of a layer that are not read, because their values
     * follow from the configuration. NULL: none.
     */
    const char *ignored_layer;
    /*
     * Name of a tensor outside the layers. It is not read, because its values follow from the
     * configuration. NULL if there is none.
     */
    const char *ignored;
    /*
     * True if one tensor of a safetensors file stores the same matrix (such as the gate matrix) of
     * all experts of a layer, one after another (shards.h). If config.json has the key
     * quantization_config, the tensor holds blocks of MXFP4.
     */
    bool experts_together;
} kvd_family;

/*
 * kvd_family_count returns the number of families, and kvd_family_at returns family i.
 * kvd_family_find returns NULL if there is no family with this model_type or architecture.
 */
size_t kvd_family_count(void);
const kvd_family *kvd_family_at(size_t i);
const kvd_family *kvd_family_find(const char *model_type, const char *architecture);

/* Returns the family of the model, which is Llama for a llama2.c file. */
const kvd_family *kvd_family_of(const kvd_config *c);

enum { KVD_PART_NAME = 128 };

/*
 * Location of a weight in its stored tensor. The weight is stored in blocks of `block` rows,
 * `stride` rows apart: row i of the weight is row first + (i / block) * stride + i % block of the
 * tensor.
 */
typedef struct {
    char name[KVD_PART_NAME];
    size_t stored_rows;
    /* Size [rows = outputs][cols = inputs]; cols is 0 for a vector. */
    size_t rows, cols;
    size_t first, block, stride;
} kvd_place;

/*
 * Stores the shape of a weight (or of its bias) in *rows and *cols. Returns false and sets *rows to
 * 0 if a model of this configuration does not have it.
 */
bool kvd_part_shape(const kvd_config *c, kvd_part part, bool bias, size_t *rows, size_t *cols);

/*
 * Finds where a weight (or its bias) is stored: the tensor and the rows in it. `layer` is ignored
 * for weights outside the layers. Returns false if a model of this configuration does not have the
 * weight.
 */
bool kvd_part_place(const kvd_config *c, kvd_part part, bool bias, int layer, kvd_place *place);

/*
 * Finds where a weight (or its bias) of a routed expert is stored. Returns false if a model of this
 * configuration does not have the weight.
 */
bool kvd_expert_place(const kvd_config *c, kvd_part part, bool bias, int layer, int expert,
                      kvd_place *place);

/*
 * Finds which weight, or bias, the stored tensor `tensor` holds. If the tensor holds several
 * weights, *part is the first of them. A tied output head that a file stores is found under the
 * head's name, not as the embedding. Returns false if a model of this configuration has no such
 * tensor.
 */
bool kvd_family_place(const kvd_config *c, const char *tensor, kvd_part *part, bool *bias,
                      kvd_place *place);

/*
 * Returns true if a file of a model with this configuration may contain a tensor of that name: a
 * weight, a tied output head, or a tensor that kvdim ignores.
 */
bool kvd_family_knows(const kvd_config *c, const char *tensor);

/* Returns the number of weights, biases included; a tied output head is counted once. */
size_t kvd_family_elements(const kvd_config *c);

#endif
