/*
 * Model families. A family is one file in families/. It reads config.json into a kvd_config, and
 * lists under which tensor name each weight matrix and norm is stored. The kvd_config alone decides
 * which weights a model has and how the forward pass uses them, in the same way for all families.
 *
 * docs/adding.md explains how to add a family.
 */
#ifndef KVD_MODEL_CHECKPOINT_FAMILY_H
#define KVD_MODEL_CHECKPOINT_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/config.h"

/*
 * Parts of a model. A part is one kind of weight matrix, such as W_Q, or the gain of a norm,
 * together with its bias if it has one.
 */
typedef enum {
    /* Parts that each layer has once, in the order in which the forward pass uses them. */
    KVD_PART_NORM_ATTENTION,
    KVD_PART_Q,
    KVD_PART_K,
    KVD_PART_V,
    /*
     * Gains of the norms of Q and K: vectors [d_head], common to all heads of a layer. If the
     * configuration sets qk_norm_whole, each norm covers all heads together: [n_heads * d_head] for
     * Q, [n_kv_heads * d_head] for K.
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
     * Matrix that scores the routed experts: [n_experts][d_model]. Layers with a router have no
     * GATE, UP and DOWN.
     */
    KVD_PART_ROUTER,
    KVD_PART_SHARED_GATE,
    KVD_PART_SHARED_UP,
    KVD_PART_SHARED_DOWN,
    /*
     * Matrix w [1][d_model] of a layer with a shared expert, whose output is multiplied by
     * sigmoid(x w) for the input x.
     */
    KVD_PART_SHARED_SCALE,
    /* Attention sink logits [n_heads], stored under a name without ".weight". */
    KVD_PART_SINKS,
    /*
     * Bias [n_experts] that is added to router scores only to choose experts; stored under a name
     * without ".weight".
     */
    KVD_PART_ROUTER_BIAS,
    /*
     * Latent attention: first factor [q_rank][d_model] of the query projection; KVD_PART_Q is the
     * second factor.
     */
    KVD_PART_Q_DOWN,
    KVD_PART_NORM_Q_DOWN, /* gain [q_rank] of the norm after Q_DOWN */
    /* Maps the input to latent and rotated key: [latent + rope_dims][d_model]. */
    KVD_PART_LATENT,
    KVD_PART_NORM_LATENT, /* gain [latent] of the norm of the latent */
    /*
     * Maps the latent, head by head, to d_nope dimensions of the key and d_value dimensions of the
     * value: [n_heads * (d_nope + d_value)][latent].
     */
    KVD_PART_LATENT_UP,
    KVD_N_LAYER_PARTS,
    /* Weights outside the layers, which a model has once. */
    KVD_PART_EMBEDDING = KVD_N_LAYER_PARTS,
    /* Learned position embeddings: two unused rows, then one row per position. */
    KVD_PART_POSITIONS,
    KVD_PART_PROJECT_IN, /* projection from d_embed to d_model */
    KVD_PART_NORM_FINAL,
    KVD_PART_PROJECT_OUT, /* projection from d_model to d_embed */
    /*
     * Output head. If it is tied to the embedding, it is the embedding, though a file may store
     * both.
     */
    KVD_PART_HEAD,
    KVD_N_PARTS,
    /* Matrices that each routed expert of a layer has once. */
    KVD_PART_EXPERT_GATE = KVD_N_PARTS,
    KVD_PART_EXPERT_UP,
    KVD_PART_EXPERT_DOWN,
    KVD_N_ALL_PARTS
} kvd_part;

/*
 * Arrangement of the rows of a weight matrix (part) in its stored tensor, which may hold several
 * matrices. KVD_ROWS_ALL: the tensor holds this matrix alone.
 */
typedef enum {
    KVD_ROWS_ALL,
    /* Several matrices are in one tensor, one after another in the order of kvd_part. */
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
     * Tensor name without ".weight" or ".bias". For a weight of a layer, the text after
     * "<layers>N.", in which '#' is replaced by the index of a routed expert.
     */
    const char *name;
    kvd_part_rows rows;
    /*
     * Returns true if a model of configuration *c stores the weight under this name; NULL means
     * always.
     */
    bool (*when)(const kvd_config *c);
} kvd_stored;

struct json_t;

typedef struct {
    const char *name;         /* value of model_type in config.json */
    const char *architecture; /* name of the language model in `architectures` of config.json */
    /*
     * Reads the configuration: fills the zeroed *c from the JSON object `root`, except for the
     * member c->family.
     */
    int (*read)(const struct json_t *root, kvd_config *c, kvd_err *err);
    /*
     * Prefix of all tensor names except the output head's, such as "model.". The prefix is absent
     * in a file that was saved from the model without its output head.
     */
    const char *base;
    /*
     * other_bases: prefixes that a file may have in place of `base`. other_models: prefixes of
     * tensors that belong to other models in the same file and are ignored. Both lists end with
     * NULL, and a NULL list is empty.
     */
    const char *const *other_bases, *const *other_models;
    /*
     * Prefix of the names of a layer's tensors, to which the layer number is appended, such as
     * "model.layers.".
     */
    const char *layers;
    const kvd_stored *stored;
    size_t n_stored;
    /*
     * Name of a tensor in each layer of old exports that is not read, because the configuration
     * determines its values; NULL if there is none.
     */
    const char *ignored_layer;
    /*
     * Name of a tensor outside the layers that is not read, because the configuration determines
     * its values; NULL if there is none.
     */
    const char *ignored;
    /*
     * True if safetensors files store each weight matrix of all experts of a layer in one tensor
     * (shards.h). If the key quantization_config says so, the tensor holds blocks of MXFP4.
     */
    bool experts_together;
} kvd_family;

/*
 * kvd_family_count returns the number of model families, kvd_family_at family i. kvd_family_find
 * returns the family with this model_type or architecture, or NULL if there is none.
 */
size_t kvd_family_count(void);
const kvd_family *kvd_family_at(size_t i);
const kvd_family *kvd_family_find(const char *model_type, const char *architecture);

/*
 * Returns the model family of a configuration that has been read. llama2.c files belong to the
 * family llama.
 */
const kvd_family *kvd_family_of(const kvd_config *c);

/* ---- weights of a model and their tensors --------------------------------------------------- */

enum { KVD_PART_NAME = 128 };

/*
 * Location of a weight matrix or vector (part) in its stored tensor. Row i of the matrix is row
 * first + (i / block) * stride + i % block of the tensor, which has stored_rows rows.
 */
typedef struct {
    char name[KVD_PART_NAME];
    size_t stored_rows;
    /* Size of the matrix W [rows = outputs][cols = inputs], as stored; cols is 0 for a vector. */
    size_t rows, cols;
    size_t first, block, stride;
} kvd_place;

/*
 * Stores the shape of a weight matrix or vector in *rows and *cols, or of its bias if `bias`.
 * Returns false and sets *rows to 0 if a model of this configuration does not have it.
 */
bool kvd_part_shape(const kvd_config *c, kvd_part part, bool bias, size_t *rows, size_t *cols);

/*
 * Finds where a weight matrix or vector (or, if `bias`, its bias) is stored, and fills *place with
 * the tensor's name and the rows of the tensor that hold it. `layer` is ignored for weights outside
 * the layers. Returns false if a model of this configuration does not have the weight.
 */
bool kvd_part_place(const kvd_config *c, kvd_part part, bool bias, int layer, kvd_place *place);

/*
 * Finds where a weight (or, if `bias`, its bias) of the routed expert number `expert` of a layer is
 * stored, and fills *place with the tensor's name and the rows of the tensor that hold the weight.
 * Returns false if a model of this configuration does not have the weight.
 */
bool kvd_expert_place(const kvd_config *c, kvd_part part, bool bias, int layer, int expert,
                      kvd_place *place);

/*
 * Finds which weight the stored tensor `tensor` holds. Sets *part to the weight (to the first if
 * the tensor holds several), sets *bias to true if the tensor is the weight's bias, and fills
 * *place with the rows of the tensor that hold the weight. Returns false if a model of this
 * configuration has no such tensor. A tied output head is found under its own name.
 */
bool kvd_family_place(const kvd_config *c, const char *tensor, kvd_part *part, bool *bias,
                      kvd_place *place);

/*
 * Returns true if a file of a model of this configuration may contain a tensor of that name: a
 * weight, a tied output head, or a tensor that is ignored.
 */
bool kvd_family_knows(const kvd_config *c, const char *tensor);

/*
 * Returns the number of weights of a model, biases included. An output head that is tied to the
 * embedding is not counted again.
 */
size_t kvd_family_elements(const kvd_config *c);

#endif
