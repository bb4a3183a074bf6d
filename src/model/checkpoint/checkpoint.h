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

/* Opens a checkpoint. Fails if the file lacks a tensor of the model or has one that the model does
 * not use.
 *
 * If the output head is tied to the embedding, kvd_checkpoint_tensor finds the shared matrix under
 * both names. */
kvd_checkpoint *kvd_checkpoint_open(const char *path, kvd_err *err);

/* Returns a checkpoint of random weights: gains are 1, biases are 0. Matrix elements are
 * approximately Gaussian with variance 1 / number of columns.
 *
 * `path` is a name for messages. `hash` must identify the configuration and the seed. */
kvd_checkpoint *kvd_checkpoint_random(const char *path, const char *hash, const kvd_config *config,
                                      uint64_t seed, kvd_err *err);
/* Replaces all weights of the model by random ones. Must be called before any tensor is read. */
int kvd_checkpoint_untrain(kvd_checkpoint *c, uint64_t seed, kvd_err *err);
void kvd_checkpoint_close(kvd_checkpoint *c);

const kvd_config *kvd_checkpoint_config(const kvd_checkpoint *c);
const char *kvd_checkpoint_path(const kvd_checkpoint *c);
/* Returns the path of config.json, or NULL if the configuration is in the weight file. */
const char *kvd_checkpoint_config_path(const kvd_checkpoint *c);

/* largest number of adjacent weights that can share a quantisation scale */
enum { KVD_WEIGHT_GROUP = 4096 };
/* Makes kvd_weight_read round matrices to `bits` bits, from 2 to 8; 0 means no rounding. `group`
 * adjacent weights of a row share a scale. */
void kvd_checkpoint_quantise(kvd_checkpoint *c, int bits, size_t group);
/* Returns the bits per weight set by kvd_checkpoint_quantise, or 0 if weights are not rounded.
 * *group receives the number of weights per scale. */
int kvd_checkpoint_weight_bits(const kvd_checkpoint *c, size_t *group);

/* Returns the number type of most weights, such as "bf16". Returns "random" for weights from
 * kvd_checkpoint_random, and "initial" for random weights from kvd_checkpoint_untrain. */
const char *kvd_checkpoint_dtype(const kvd_checkpoint *c);

/* Records the checkpoint and its hash as an input of the run. */
int kvd_checkpoint_add_input(const kvd_checkpoint *c, kvd_run *run, kvd_err *err);

/* Finds a tensor by its Hugging Face name. Fails unless its shape is [rows][cols], or [rows] if
 * cols is 0. */
int kvd_checkpoint_tensor(const kvd_checkpoint *c, const char *name, size_t rows, size_t cols,
                          kvd_tensor *out, kvd_err *err);

/* Returns the checkpoint's safetensors files, or NULL if it has another file format. */
const kvd_shards *kvd_checkpoint_shards(const kvd_checkpoint *c);

/* Returns the path of the checkpoint's tokenizer file, which the caller frees. Fails unless there
 * is exactly one such file. */
char *kvd_checkpoint_tokenizer_path(const kvd_checkpoint *c, kvd_err *err);

#endif
