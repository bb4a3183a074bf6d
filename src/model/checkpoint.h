/*
 * A checkpoint: configuration and tensors by their Hugging Face names, from
 *   - a folder with config.json and model.safetensors,
 *   - a folder with config.json, model.safetensors.index.json and its shards,
 *   - a NAME.safetensors file with NAME.config.json (or config.json) beside it,
 *   - a llama2.c v0 export (NAME.bin): float32, the tensors in llama2.c order;
 *     handed out under the same Hugging Face names, RoPE interleaved.
 * Memory-mapped: a checkpoint larger than memory can be opened.
 */
#ifndef KVD_MODEL_CHECKPOINT_H
#define KVD_MODEL_CHECKPOINT_H

#include "model/config.h"
#include "model/safetensors.h"

typedef struct kvd_checkpoint kvd_checkpoint;

kvd_checkpoint *kvd_checkpoint_open(const char *path, kvd_err *err);
void kvd_checkpoint_close(kvd_checkpoint *c);

const kvd_config *kvd_checkpoint_config(const kvd_checkpoint *c);
const char *kvd_checkpoint_path(const kvd_checkpoint *c);

/* The dtype that most elements are stored in, for /model. */
kvd_dtype kvd_checkpoint_dtype(const kvd_checkpoint *c);

/*
 * The tensor `name` with exactly this shape (rank 1: cols = 0). Fails naming the file, the
 * tensor, the shape found and the shape wanted, or that it is missing. kvd_checkpoint_has
 * only asks.
 */
int kvd_checkpoint_tensor(const kvd_checkpoint *c, const char *name, size_t rows, size_t cols,
                          kvd_tensor *out, kvd_err *err);
int kvd_checkpoint_has(const kvd_checkpoint *c, const char *name);

/*
 * Where the tokenizer of this checkpoint is: tokenizer.json in the folder, NAME.tokenizer.json
 * beside NAME.safetensors, NAME.tok*.bin or tokenizer.bin beside a llama2.c NAME.bin. The
 * text is allocated; NULL with *err when there is none.
 */
char *kvd_checkpoint_tokenizer_path(const kvd_checkpoint *c, kvd_err *err);

#endif
