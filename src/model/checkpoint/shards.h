/* Finds tensors by name in a safetensors file, or in the files of an index. */
#ifndef KVD_MODEL_CHECKPOINT_SHARDS_H
#define KVD_MODEL_CHECKPOINT_SHARDS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/safetensors.h"

/* The following functions for paths return text that the caller frees, or NULL with *err. */

/* Returns the path "folder/name", which the caller frees. */
char *kvd_path_in_folder(const char *folder, const char *name, kvd_err *err);
/* Returns the path of file `name` in the folder that contains the file `path`. */
char *kvd_path_beside(const char *path, const char *name, kvd_err *err);
char *kvd_path_with_ending(const char *path, const char *old, const char *fresh, kvd_err *err);

/* Returns true if `path` ends with `end` and is longer. */
bool kvd_path_ends_with(const char *path, const char *end);

/* Returns 1 if the file exists, 0 if not, -1 with *err if this is unknown. */
int kvd_path_exists(const char *path, kvd_err *err);

/* If *found is NULL and the file exists, moves `path` to *found. Otherwise frees `path`. */
int kvd_path_take_existing(char *path, char **found, kvd_err *err);

/*
 * Finds the tokenizer NAME.tok*.bin of the checkpoint NAME.bin. *found receives its allocated path
 * or NULL. Two such files are an error.
 */
int kvd_path_tok_bin(const char *path, char **found, kvd_err *err);

typedef struct {
    const char *tensor; /* name of the tensor, borrowed from its file */
    size_t file;
} kvd_shard_entry;

typedef struct {
    kvd_safetensors **file;
    /* Names of the checkpoint's files in the folder; NULL if it is a single file. */
    char **name;
    size_t n_files;
    kvd_shard_entry *entries; /* sorted by name */
    size_t n_entries;
} kvd_shards;

/*
 * Opens a safetensors file in the zeroed *s. The caller must call kvd_shards_release even on
 * failure.
 */
int kvd_shards_open_file(kvd_shards *s, const char *path, kvd_err *err);

/*
 * Opens the safetensors files in `folder` that the index file names. Fails if index and files
 * disagree.
 */
int kvd_shards_open_index(kvd_shards *s, const char *folder, const char *index_path, kvd_err *err);
void kvd_shards_release(kvd_shards *s);

/* Finds a tensor. Returns 1 if there is none, -1 with *err if its dtype is not supported. */
int kvd_shards_find(const kvd_shards *s, const char *tensor, kvd_tensor *out, kvd_err *err);

/* Describes the tensor of this name, of any data type. Returns 1 if there is none. */
int kvd_shards_stored(const kvd_shards *s, const char *tensor, kvd_tensor_spec *spec,
                      const void **data, size_t *bytes, const char **file);

/*
 * Tensors that hold the matrices of all experts of a layer, as in gpt-oss. Expert N's matrix has
 * `in` columns and `out` rows:
 *
 *   "x.experts.N.y.weight"  is matrix N of "x.experts.y" [n_experts][in][out]. In MXFP4 files,
 *                           its codes are "x.experts.y_blocks" [n_experts][out][in / 32][16] (U8)
 *                           and its scales "x.experts.y_scales" [n_experts][out][in / 32] (U8).
 *   "x.experts.N.y.bias"    is row N of "x.experts.y_bias" [n_experts][out].
 */

/* Finds the part of a tensor that belongs to one expert. Returns 1 if there is none. */
int kvd_stacked_find(const kvd_shards *s, const char *name, size_t n_experts, kvd_tensor *out,
                     kvd_err *err);

/*
 * Writes to `name` the name that expert 0's part of a stored tensor has: "x.experts.0.y.weight" for
 * "x.experts.y_blocks".
 */
bool kvd_stacked_name(const char *stored, char *name, size_t size);

#endif
