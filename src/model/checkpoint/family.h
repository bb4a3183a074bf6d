/* Model families: how each reads config.json and names its tensors (docs/adding.md). */
#ifndef KVD_MODEL_CHECKPOINT_FAMILY_H
#define KVD_MODEL_CHECKPOINT_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/config.h"

/* Weights of a language model, such as the query projection. Each may have a bias. */
typedef enum {
    /* Weights of a layer, in the order in which the forward pass uses them. */
    KVD_PART_NORM_ATTENTION,
    KVD_PART_Q,
    KVD_PART_K,
    KVD_PART_V,
    /* gain of the norm of Q: [d_head], or [n_heads * d_head] if one norm covers all heads */
    KVD_PART_NORM_Q,
    KVD_PART_NORM_K,
    KVD_PART_O,
    KVD_PART_NORM_O, /* norm of the output of attention */
    KVD_PART_NORM_FFN,
    KVD_PART_GATE,
    KVD_PART_UP,
    KVD_PART_DOWN,
    KVD_PART_NORM_DOWN, /* norm of the output of the feed-forward block */
    /* matrix that gives the router's logits: [n_experts][d_model] */
    KVD_PART_ROUTER,
    KVD_PART_SHARED_GATE,
    KVD_PART_SHARED_UP,
    KVD_PART_SHARED_DOWN,
    /* vector w: the shared expert's output is multiplied by sigmoid(x w), for its input x */
    KVD_PART_SHARED_SCALE,
    /* logits of the attention sinks, [n_heads] */
    KVD_PART_SINKS,
    /* bias [n_experts] that affects which experts the router chooses, but not their weights */
    KVD_PART_ROUTER_BIAS,
    /* first matrix of the query projection: [q_rank][d_model] */
    KVD_PART_Q_DOWN,
    KVD_PART_NORM_Q_DOWN, /* gain [q_rank] of the norm after Q_DOWN */
    /* matrix of latent attention that maps the layer's input to the latent and the rotated key */
    KVD_PART_LATENT,
    KVD_PART_NORM_LATENT, /* gain [latent] of the norm of the latent */
    /* matrix of latent attention, from the latent to keys and values: [n_heads * (d_nope +
     * d_value)][latent] */
    KVD_PART_LATENT_UP,
    KVD_N_LAYER_PARTS,
    KVD_PART_EMBEDDING = KVD_N_LAYER_PARTS,
    /* vectors of learned positions: two unused rows, then one row per position */
    KVD_PART_POSITIONS,
    KVD_PART_PROJECT_IN, /* from d_embed to d_model dimensions */
    KVD_PART_NORM_FINAL,
    KVD_PART_PROJECT_OUT, /* from d_model to d_embed dimensions */
    /* output head; a file may store it even if it equals the embedding */
    KVD_PART_HEAD,
    KVD_N_PARTS,
    /* matrices of each routed expert */
    KVD_PART_EXPERT_GATE = KVD_N_PARTS,
    KVD_PART_EXPERT_UP,
    KVD_PART_EXPERT_DOWN,
    KVD_N_ALL_PARTS
} kvd_part;

/* order of a matrix's rows in the stored tensor */
typedef enum {
    KVD_ROWS_ALL,
    /* matrices such as gate and up, one after another in the order of kvd_part */
    KVD_ROWS_STACKED,
    /* Falcon: for each KV head, its query heads, then key head and value head */
    KVD_ROWS_GROUPED,
    /* gpt-oss: even rows are of the gate matrix, odd rows of the up matrix */
    KVD_ROWS_INTERLEAVED
} kvd_part_rows;

typedef struct {
    kvd_part part;
    /* name of the stored tensor without layer, ".weight" or ".bias"; '#' in it is replaced by an
     * expert's number */
    const char *name;
    kvd_part_rows rows;
    /* Returns true if the model has the tensor. NULL: all models have it. */
    bool (*when)(const kvd_config *c);
} kvd_stored;

struct json_t;

typedef struct {
    const char *name;         /* model_type in config.json */
    const char *other_name;   /* model_type of other models that compute the same, or NULL */
    const char *architecture; /* name of the language model in `architectures` of config.json */
    /* other architecture name that is accepted in config.json, or NULL */
    const char *other_architecture;
    /* Fills the zeroed *c, except c->family, from config.json. */
    int (*read)(const struct json_t *root, kvd_config *c, kvd_err *err);
    /* prefix of all tensor names, such as "model." */
    const char *base;
    /* other_bases: prefixes that some files have instead of `base`. other_models: prefixes of
     * tensors that kvdim does not use. Each list ends with NULL. */
    const char *const *other_bases, *const *other_models;
    /* prefix of a layer's tensors, such as "model.layers." */
    const char *layers;
    /* tensors that Llama does not have, or has under another name; an empty entry ends the list.
     * NULL if there are none. */
    const kvd_stored *stored;
    /* name of an unused tensor in each layer, or NULL */
    const char *ignored_layer;
    /* name of an unused tensor outside the layers, or NULL */
    const char *ignored;
    /* true if one tensor holds the matrices of all experts of a layer */
    bool experts_together;
} kvd_family;

/* kvd_family_at returns the model family of index i. kvd_family_find returns a family by model_type
 * or architecture. Both return NULL if there is none. */
const kvd_family *kvd_family_at(size_t i);
const kvd_family *kvd_family_find(const char *model_type, const char *architecture);

const kvd_family *kvd_family_of(const kvd_config *c);

enum { KVD_PART_NAME = 128 };

/* place of a weight matrix in a stored tensor, which may hold several matrices */
typedef struct {
    char name[KVD_PART_NAME];
    size_t stored_rows;
    /* shape [rows = outputs][cols = inputs] of the weight; cols is 0 for a vector */
    size_t rows, cols;
    /* The matrix consists of blocks of `block` adjacent rows of the stored tensor. The first block
     * begins at row `first`, each other block `stride` rows after the block before it. */
    size_t first, block, stride;
} kvd_place;

/* Computes the shape of a weight or, if `bias`, of its bias. Returns false if the model has no such
 * weight. */
bool kvd_part_shape(const kvd_config *c, kvd_part part, bool bias, size_t *rows, size_t *cols);

/* Finds the stored tensor that holds a weight, and the weight's rows in it. Returns false if the
 * model has no such weight. */
bool kvd_part_place(const kvd_config *c, kvd_part part, bool bias, int layer, kvd_place *place);

/* Finds the stored tensor that holds a weight of an expert, and the weight's rows in it. Returns
 * false if the model has no such weight. */
bool kvd_expert_place(const kvd_config *c, kvd_part part, bool bias, int layer, int expert,
                      kvd_place *place);

/* Finds which weight of the model the file stores as `tensor`. If the tensor holds several weights,
 * finds the first of them. Returns false if the model has no such tensor. */
bool kvd_family_place(const kvd_config *c, const char *tensor, kvd_part *part, bool *bias,
                      kvd_place *place);

/* Returns true if a file of this model may contain a tensor of this name, even one that is not
 * read. */
bool kvd_family_knows(const kvd_config *c, const char *tensor);

/* Returns how many numbers all weights of a model have together. A tied output head is counted
 * once. */
size_t kvd_family_elements(const kvd_config *c);

#endif
