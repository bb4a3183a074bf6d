/* Finds tensors by name in a checkpoint's safetensors files, one or several. */
#ifndef KVD_MODEL_CHECKPOINT_SHARDS_H
#define KVD_MODEL_CHECKPOINT_SHARDS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/safetensors.h"

/* Returns the path "folder/name", which the caller frees. */
char *kvd_path_in_folder(const char *folder, const char *name, kvd_err *err);
/* Returns the path of a file `name` in the folder that contains the file `path`. The caller frees
 * it. */
char *kvd_path_beside(const char *path, const char *name, kvd_err *err);
char *kvd_path_with_ending(const char *path, const char *old, const char *fresh, kvd_err *err);

/* Returns true if `path` ends with `end` and is longer than `end`. */
bool kvd_path_ends_with(const char *path, const char *end);

/* Returns 1 if the file exists, 0 if not, -1 with *err if the system cannot tell. */
int kvd_path_exists(const char *path, kvd_err *err);

/* Sets *found to `path` if the file `path` exists and *found is NULL. Otherwise frees `path`. */
int kvd_path_take_existing(char *path, char **found, kvd_err *err);

/* Finds the tokenizer NAME.tok*.bin of the checkpoint NAME.bin. *found receives its path, which the
 * caller frees, or NULL if there is none. Fails if there are two. */
int kvd_path_tok_bin(const char *path, char **found, kvd_err *err);

typedef struct {
    const char *tensor; /* name of the tensor, borrowed from its file */
    size_t file;
} kvd_shard_entry;

typedef struct {
    kvd_safetensors **file;
    /* names of the files in the checkpoint's folder; NULL if the checkpoint is a single file */
    char **name;
    size_t n_files;
    kvd_shard_entry *entries; /* sorted by name */
    size_t n_entries;
} kvd_shards;

/* Opens a checkpoint of one safetensors file; *s must be zeroed. Call kvd_shards_release even on
 * failure. */
int kvd_shards_open_file(kvd_shards *s, const char *path, kvd_err *err);

/* Opens the safetensors files that an index file lists. Fails if their tensors are not those in the
 * index. */
int kvd_shards_open_index(kvd_shards *s, const char *folder, const char *index_path, kvd_err *err);
void kvd_shards_release(kvd_shards *s);

/* Finds a tensor by name. Returns 1 if there is none, -1 if its data type is not supported. */
int kvd_shards_find(const kvd_shards *s, const char *tensor, kvd_tensor *out, kvd_err *err);

/* Describes a tensor of any data type in *spec. Returns 1 if there is no such tensor. */
int kvd_shards_stored(const kvd_shards *s, const char *tensor, kvd_tensor_spec *spec,
                      const void **data, size_t *bytes, const char **file);

/* Names of one expert's matrices in tensors that hold all experts of a layer, as in gpt-oss:
 *
 * "x.experts.N.y.weight"  is matrix N of "x.experts.y" [n_experts][in][out]
 * "x.experts.N.y.bias"    is row N of "x.experts.y_bias" [n_experts][out]
 *
 * In MXFP4, the matrix is stored as numbers "x.experts.y_blocks" [n_experts][out][in / 32][16] and
 * scales "x.experts.y_scales" [n_experts][out][in / 32]. */

/* Finds one expert's part of a tensor that holds all experts of a layer. Returns 1 if there is
 * none. */
int kvd_stacked_find(const kvd_shards *s, const char *name, size_t n_experts, kvd_tensor *out,
                     kvd_err *err);

/* Writes the name of expert 0's part of a tensor that holds all experts: "x.experts.0.y.weight" for
 * "x.experts.y_blocks". */
bool kvd_stacked_name(const char *stored, char *name, size_t size);

#endif
