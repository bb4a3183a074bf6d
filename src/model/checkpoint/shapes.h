/*
 * Published model shapes with random weights: checkpoints without a file, for studies of time and
 * memory. Spectra and accuracies of such a model mean nothing. Every result made with it shows
 * that: its name is "shape:NAME" and its dtype "random".
 *
 * A shape is the model's config.json, read by the family's own reader. kvd_checkpoint_random
 * defines the weights.
 */
#ifndef KVD_MODEL_CHECKPOINT_SHAPES_H
#define KVD_MODEL_CHECKPOINT_SHAPES_H

#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"

typedef struct {
    const char *name;   /* "llama-3.1-8b" */
    const char *title;  /* "Llama 3.1 8B" */
    const char *source; /* publication of the numbers */
    const char *json;   /* the keys of config.json that the family's reader uses */
} kvd_shape;

/*
 * Seed of a shape's weights, the same for all users. The option --seed of the programs does not
 * change it.
 */
enum { KVD_SHAPE_SEED = 1 };

size_t kvd_shape_count(void);
const kvd_shape *kvd_shape_at(size_t i);
/* Returns the model shape with this name, or NULL with *err, which lists all names. */
const kvd_shape *kvd_shape_find(const char *name, kvd_err *err);

/*
 * Returns a checkpoint with random weights and the model shape *s, which need not be one of the
 * published shapes. Returns NULL with *err on failure. The texts of *s are not needed afterwards.
 * kvd_checkpoint_path is "shape:NAME"; the content hash follows from JSON and seed.
 */
kvd_checkpoint *kvd_checkpoint_of_shape(const kvd_shape *s, uint64_t seed, kvd_err *err);

#endif
