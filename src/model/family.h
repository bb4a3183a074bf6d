/*
 * Model families. A family is one file in families/: how its config.json is read into a kvd_config,
 * and which stored tensor holds which part of a model. What a part does is the forward pass's
 * business, and the same for all; which parts a model has follows from its kvd_config alone.
 *
 * docs/adding.md says how to add one.
 */
#ifndef KVD_MODEL_FAMILY_H
#define KVD_MODEL_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/config.h"

/* A part is a matrix or a gain, and the bias that may go with it. */
typedef enum {
    /* of every layer, in the order of use */
    KVD_PART_NORM_ATTENTION,
    KVD_PART_Q,
    KVD_PART_K,
    KVD_PART_V,
    KVD_PART_NORM_Q, /* gains [d_head], the same for all heads of a layer */
    KVD_PART_NORM_K,
    KVD_PART_O,
    KVD_PART_NORM_FFN,
    KVD_PART_GATE,
    KVD_PART_UP,
    KVD_PART_DOWN,
    KVD_N_LAYER_PARTS,
    /* once */
    KVD_PART_EMBEDDING = KVD_N_LAYER_PARTS,
    KVD_PART_POSITIONS,  /* learned; two rows that no position reads, then one per position */
    KVD_PART_PROJECT_IN, /* from d_embed to d_model  */
    KVD_PART_NORM_FINAL,
    KVD_PART_PROJECT_OUT, /* from d_model to d_embed  */
    KVD_PART_HEAD,        /* with a tied head the embedding, though it may be stored as well */
    KVD_N_PARTS
} kvd_part;

/* Which rows of the stored tensor are the part. */
typedef enum {
    KVD_ROWS_ALL,
    KVD_ROWS_STACKED, /* the parts that share the tensor stand below each other, in the order of kvd_part */
    KVD_ROWS_GROUPED  /* Falcon: for each KV head the rows of its query heads, of its key head, of its
                         value head                                                           */
} kvd_part_rows;

typedef struct {
    kvd_part part;
    const char *name; /* without ".weight" or ".bias"; of a layer's part what follows "<layers>N."      */
    kvd_part_rows rows;
    bool (*when)(const kvd_config *c); /* the name that such a model uses; NULL: every model            */
} kvd_stored;

struct json_t; /* of jansson */

typedef struct {
    const char *name;         /* config.json's model_type                                        */
    const char *architecture; /* config.json's name of the language model                        */
    /* Fills the zeroed *c, family excepted, from the object `root`. */
    int (*read)(const struct json_t *root, kvd_config *c, kvd_err *err);
    /* What all names but the head's begin with, and what a file lacks that was saved from the model
     * without its head: "model.". */
    const char *base;
    const char *layers; /* what stands in front of a layer's number: "model.layers."       */
    const kvd_stored *stored;
    size_t n_stored;
    const char *ignored_layer; /* a tensor per layer that old exports hold and that follows from the
                                  configuration; NULL: none                                        */
    const char *ignored;       /* the same once                                                    */
} kvd_family;

/* All families, and one of them by model_type or architecture; NULL when there is none. */
size_t kvd_family_count(void);
const kvd_family *kvd_family_at(size_t i);
const kvd_family *kvd_family_find(const char *model_type, const char *architecture);

/* The family of a configuration that was read; llama2.c's files have Llama's names. */
const kvd_family *kvd_family_of(const kvd_config *c);

/* ---- parts -------------------------------------------------------------------------------- */

enum { KVD_PART_NAME = 128 };

/* Where a part stands. Its row i is row first + (i / block) * stride + i % block of the tensor. */
typedef struct {
    char name[KVD_PART_NAME];
    size_t stored_rows;
    size_t rows, cols; /* of the part, W [out][in] as stored; cols 0: a vector */
    size_t first, block, stride;
} kvd_place;

/* Shape of a part or of its bias. False, rows 0: a model with this configuration has none. */
bool kvd_part_shape(const kvd_config *c, kvd_part part, bool bias, size_t *rows, size_t *cols);

/* False as kvd_part_shape. layer is ignored for parts that stand once. */
bool kvd_part_place(const kvd_config *c, kvd_part part, bool bias, int layer, kvd_place *place);

/* The first part that stands in the tensor of that name, or its bias. False when a model with this configuration has none; a tied
 * head has its own name. */
bool kvd_family_place(const kvd_config *c, const char *tensor, kvd_part *part, bool *bias, kvd_place *place);

/* Whether a model with this configuration has a tensor of that name, or may: a tied head, what is ignored. */
bool kvd_family_knows(const kvd_config *c, const char *tensor);

/* Elements of all parts and biases, a tied head's once. */
size_t kvd_family_elements(const kvd_config *c);

#endif
