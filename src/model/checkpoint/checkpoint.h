/*
 * Opens a checkpoint, reads its configuration, and finds its tensors by their Hugging Face names. A
 * checkpoint is one of
 *
 *   - a folder with config.json and model.safetensors,
 *   - a folder with config.json, model.safetensors.index.json and the files that the index lists,
 *   - a NAME.safetensors file with NAME.config.json (or config.json) in the same folder,
 *   - a llama2.c v0 export (NAME.bin): float32 tensors in llama2.c order, found under the Hugging
 *     Face names, with interleaved RoPE,
 *   - a GGUF file (NAME.gguf), whose tensors are found under the Hugging Face names too.
 *
 * Files are memory-mapped, so a checkpoint larger than memory can be opened. A folder that holds
 * both model.safetensors and an index is read from model.safetensors.
 */
#ifndef KVD_MODEL_CHECKPOINT_CHECKPOINT_H
#define KVD_MODEL_CHECKPOINT_CHECKPOINT_H

#include "common/run.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/shards.h"

typedef struct kvd_checkpoint kvd_checkpoint;

/*
 * Returns the opened checkpoint at `path`. On failure returns NULL and fills *err.
 *
 * Fails if the safetensors files contradict their index, or if the embedding or output head is
 * missing. Also fails if the file has a tensor that a model of this configuration does not use,
 * because the forward pass would silently ignore it. The shape of a tensor is checked later, by
 * kvd_checkpoint_tensor.
 *
 * If a model was saved without its output head, the tensor names in its file lack the family's
 * prefix. Callers always use the names with the prefix.
 *
 * If the output head is tied, both the name of the embedding and that of the head find the one
 * stored tensor. If a file stores both tensors, their values must be equal.
 */
kvd_checkpoint *kvd_checkpoint_open(const char *path, kvd_err *err);

/*
 * Returns a checkpoint that has no file: a model with random weights (random.h). bf16 represents
 * these weights exactly. On failure returns NULL and fills *err.
 *
 * Matrices, embeddings and learned positions are close to normal with variance 1 / columns; gains
 * are 1 and biases 0. Products with such matrices keep the norm of vectors approximately.
 *
 * `path` is the name of the checkpoint in messages and files. `hash` is its content hash, which
 * must follow from configuration and seed.
 */
kvd_checkpoint *kvd_checkpoint_random(const char *path, const char *hash, const kvd_config *config,
                                      uint64_t seed, kvd_err *err);
/*
 * Replaces the weights by the random weights that kvd_checkpoint_random makes from `seed`.
 * Configuration, path and tokenizer stay. The content hash then follows from seed and
 * configuration. Must be called before any tensor is read. On failure returns -1 and fills *err.
 */
int kvd_checkpoint_untrain(kvd_checkpoint *c, uint64_t seed, kvd_err *err);
void kvd_checkpoint_close(kvd_checkpoint *c);

const kvd_config *kvd_checkpoint_config(const kvd_checkpoint *c);
const char *kvd_checkpoint_path(const kvd_checkpoint *c);
/*
 * Returns the path of config.json, or NULL if the weight file contains the configuration (GGUF,
 * llama2.c).
 */
const char *kvd_checkpoint_config_path(const kvd_checkpoint *c);

/*
 * Makes kvd_weight_read (weights.h) quantise the matrices that it returns to `bits` bits. The
 * quantisation covers the matrices of Q, K, V, attention output and feed-forward network, not
 * norms, biases, embeddings or output head. Each matrix row (the weights of one output) is rounded
 * to nearest in groups of `group` weights (common/quantise.h). Other readers of tensors see the
 * values of the file.
 *
 * `bits` is 2 to 8, or 0 to undo the quantisation. `group` is 1 to KVD_WEIGHT_GROUP.
 */
enum { KVD_WEIGHT_GROUP = 4096 };
void kvd_checkpoint_quantise(kvd_checkpoint *c, int bits, size_t group);
/*
 * Returns the bits per weight set by kvd_checkpoint_quantise, or 0 if weights are read as stored.
 * Writes the number of weights per quantisation group to *group.
 */
int kvd_checkpoint_weight_bits(const kvd_checkpoint *c, size_t *group);

/*
 * Returns the storage type of most weights: "f32", "f16", "bf16" or the name of a packed format
 * (tensor.h). Returns "random" for a checkpoint without a file, and "initial" after
 * kvd_checkpoint_untrain.
 */
const char *kvd_checkpoint_dtype(const kvd_checkpoint *c);

/*
 * Adds the checkpoint with its content hash to the inputs that result files list. Returns 0, or -1
 * with *err.
 */
int kvd_checkpoint_add_input(const kvd_checkpoint *c, kvd_run *run, kvd_err *err);

/*
 * kvd_checkpoint_tensor fills *out with the tensor `name`, which must have the shape [rows][cols],
 * or [rows] if cols is 0. If the tensor is missing or has another shape, returns -1 and fills *err.
 * kvd_checkpoint_has returns 1 if the tensor exists, even with an unsupported data type, else 0.
 */
int kvd_checkpoint_tensor(const kvd_checkpoint *c, const char *name, size_t rows, size_t cols,
                          kvd_tensor *out, kvd_err *err);
int kvd_checkpoint_has(const kvd_checkpoint *c, const char *name);

/* Returns the safetensors files of the checkpoint, or NULL if it has none. */
const kvd_shards *kvd_checkpoint_shards(const kvd_checkpoint *c);

/*
 * Returns the allocated path of the checkpoint's tokenizer. The tokenizer is searched in these
 * places:
 *
 *   - for a folder, tokenizer.json in it,
 *   - for NAME.safetensors, NAME.tokenizer.json or tokenizer.json in the same folder,
 *   - for a llama2.c NAME.bin, NAME.tok*.bin or tokenizer.bin in the same folder,
 *   - for a GGUF file, the file itself; if it holds no tokenizer, NAME.tokenizer.json or
 *     tokenizer.json in the same folder.
 *
 * If there is no tokenizer or more than one, returns NULL and fills *err.
 */
char *kvd_checkpoint_tokenizer_path(const kvd_checkpoint *c, kvd_err *err);

#endif
