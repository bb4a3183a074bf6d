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
 * Files are memory-mapped, so a checkpoint larger than memory can be opened.
 *
 * A folder that holds both model.safetensors and an index is read from model.safetensors, as the
 * Hugging Face library does.
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
 * missing. Also fails if the file has a tensor that a model of this family and configuration does
 * not have, such as a bias or a surplus layer: the forward pass would silently ignore it. The shape
 * of a tensor is checked later, by kvd_checkpoint_tensor.
 *
 * A file saved from a model without its output head (Hugging Face's base model; OPT as published)
 * has tensor names without the family's prefix ("decoder.layers.0..." instead of
 * "model.decoder.layers.0..."). Its tensors are found under the full names.
 *
 * If the output head is tied, embedding and head are one tensor, which a file may store under
 * either name; both names then find that tensor. If a file stores both, their values must be equal.
 */
kvd_checkpoint *kvd_checkpoint_open(const char *path, kvd_err *err);

/*
 * Returns a checkpoint that has no file: a model of configuration `config` with random weights
 * (random.h), which bf16 represents exactly. On failure returns NULL and fills *err.
 *
 * Matrices, embeddings and learned positions are close to normal with variance 1 / columns; gains
 * are 1 and biases 0. A product of a matrix and a vector then has about the size of the vector,
 * whatever the number of columns. If the model has a norm before attention and feed-forward block,
 * the residual stream after n layers stays below about sqrt(2n), without a scale that depends on
 * the depth (tests/model/test_shapes.c runs 80 layers of every family).
 *
 * `path` is the name of the checkpoint in messages and files. `hash` is its content hash, which
 * must follow from configuration and seed.
 */
kvd_checkpoint *kvd_checkpoint_random(const char *path, const char *hash, const kvd_config *config,
                                      uint64_t seed, kvd_err *err);
/*
 * Replaces the weights of an opened checkpoint by the random weights that kvd_checkpoint_random
 * makes from `seed`. The configuration, path and tokenizer stay. The dtype becomes "initial", and
 * the content hash follows from seed and configuration. Must be called before any tensor is read.
 * On failure returns -1 and fills *err.
 */
int kvd_checkpoint_untrain(kvd_checkpoint *c, uint64_t seed, kvd_err *err);
void kvd_checkpoint_close(kvd_checkpoint *c);

const kvd_config *kvd_checkpoint_config(const kvd_checkpoint *c);
const char *kvd_checkpoint_path(const kvd_checkpoint *c);
/*
 * Returns the path of the configuration file, or NULL if the file of weights contains the
 * configuration (GGUF, llama2.c).
 */
const char *kvd_checkpoint_config_path(const kvd_checkpoint *c);

/*
 * Makes kvd_weight_read (weights.h) return matrices as if they were quantised to `bits` bits, to
 * measure the effect of weight quantisation. It applies to the matrices of queries, keys, values,
 * attention output and feed-forward network, not to norms, biases, embeddings or output head. Each
 * matrix row (the weights of one output) is rounded to nearest in groups of `group` weights
 * (common/quantise.h). No quantised copy is stored: kvd_weight_read quantises at every call, and
 * other readers of tensors see the values of the file. `bits` is 2 .. 8, or 0 to undo the
 * quantisation; `group` is 1 .. KVD_WEIGHT_GROUP.
 */
enum { KVD_WEIGHT_GROUP = 4096 };
void kvd_checkpoint_quantise(kvd_checkpoint *c, int bits, size_t group);
/*
 * Returns the number of bits per weight set by kvd_checkpoint_quantise, or 0 if weights are read as
 * stored. Writes the number of weights per quantisation group to *group.
 */
int kvd_checkpoint_weight_bits(const kvd_checkpoint *c, size_t *group);

/*
 * Returns the storage type of most weights, which result files record in the group /model: "f32",
 * "f16", "bf16" or the name of a packed format (tensor.h). Returns "random" for a checkpoint
 * without a file, and "initial" after kvd_checkpoint_untrain.
 */
const char *kvd_checkpoint_dtype(const kvd_checkpoint *c);

/*
 * Records the checkpoint as an input of the program's run, so that result files name it. Hashes its
 * files, or takes the hash given to kvd_checkpoint_random. Returns 0, or -1 with *err.
 */
int kvd_checkpoint_add_input(const kvd_checkpoint *c, kvd_run *run, kvd_err *err);

/*
 * Fills *out with the tensor `name`, which must have the shape [rows][cols], or [rows] if cols is
 * 0. If the tensor is missing or has another shape, returns -1, and *err names the file, the tensor
 * and both shapes. kvd_checkpoint_has returns 1 if the tensor exists, even with an unsupported
 * dtype, else 0.
 */
int kvd_checkpoint_tensor(const kvd_checkpoint *c, const char *name, size_t rows, size_t cols,
                          kvd_tensor *out, kvd_err *err);
int kvd_checkpoint_has(const kvd_checkpoint *c, const char *name);

/*
 * Returns the safetensors files of the checkpoint, for programs that rewrite them, or NULL if the
 * checkpoint has another format.
 */
const kvd_shards *kvd_checkpoint_shards(const kvd_checkpoint *c);

/*
 * Returns the allocated path of the checkpoint's tokenizer. It is searched in these places:
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
