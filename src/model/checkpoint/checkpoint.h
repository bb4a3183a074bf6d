/* Opens a checkpoint, reads its configuration, and finds tensors by Hugging Face names.
 *
 * Accepts a safetensors folder or file, a llama2.c export (NAME.bin), or a GGUF file. Files are
 * memory-mapped. Functions that return pointers return NULL and fill *err on failure. */
#ifndef KVD_MODEL_CHECKPOINT_CHECKPOINT_H
#define KVD_MODEL_CHECKPOINT_CHECKPOINT_H

#include "common/run.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/shards.h"

typedef struct kvd_checkpoint kvd_checkpoint;

/* Opens a checkpoint. Fails if a tensor is missing or unused.
 *
 * Tensor names always have the prefix of the model family. A tied output head has its own name and
 * that of the embedding. */
kvd_checkpoint *kvd_checkpoint_open(const char *path, kvd_err *err);

/* Returns a checkpoint of random weights: matrices near normal with variance 1 / columns, gains 1,
 * biases 0.
 *
 * `path` is a name for messages. `hash` must identify the configuration and the seed. */
kvd_checkpoint *kvd_checkpoint_random(const char *path, const char *hash, const kvd_config *config,
                                      uint64_t seed, kvd_err *err);
/* Replaces all weights by random ones. Must be called before any tensor is read. */
int kvd_checkpoint_untrain(kvd_checkpoint *c, uint64_t seed, kvd_err *err);
void kvd_checkpoint_close(kvd_checkpoint *c);

const kvd_config *kvd_checkpoint_config(const kvd_checkpoint *c);
const char *kvd_checkpoint_path(const kvd_checkpoint *c);
/* Returns the path of config.json, or NULL if the weight file has the configuration. */
const char *kvd_checkpoint_config_path(const kvd_checkpoint *c);

/* Makes kvd_weight_read round matrices to `bits` bits, 2 to 8, or 0 for none. Each `group` weights
 * of a row share a scale; KVD_WEIGHT_GROUP is the largest `group`. */
enum { KVD_WEIGHT_GROUP = 4096 };
void kvd_checkpoint_quantise(kvd_checkpoint *c, int bits, size_t group);
/* Returns the bits per weight set by kvd_checkpoint_quantise, or 0. *group: weights per scale. */
int kvd_checkpoint_weight_bits(const kvd_checkpoint *c, size_t *group);

/* Returns the type of most weights, such as "bf16", or "random" or "initial" (untrained). */
const char *kvd_checkpoint_dtype(const kvd_checkpoint *c);

/* Records the checkpoint and its hash as an input of the run. */
int kvd_checkpoint_add_input(const kvd_checkpoint *c, kvd_run *run, kvd_err *err);

/* Finds a tensor of shape [rows][cols], or [rows] if cols is 0. */
int kvd_checkpoint_tensor(const kvd_checkpoint *c, const char *name, size_t rows, size_t cols,
                          kvd_tensor *out, kvd_err *err);

/* Returns the checkpoint's safetensors files, or NULL if it has none. */
const kvd_shards *kvd_checkpoint_shards(const kvd_checkpoint *c);

/* Returns the path of the tokenizer, which the caller frees. There must be exactly one. */
char *kvd_checkpoint_tokenizer_path(const kvd_checkpoint *c, kvd_err *err);

#endif
