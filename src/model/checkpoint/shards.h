/* Finds tensors by name in one safetensors file, or in an index's shards. */
#ifndef KVD_MODEL_CHECKPOINT_SHARDS_H
#define KVD_MODEL_CHECKPOINT_SHARDS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/safetensors.h"

/* Path functions return text that the caller frees, or NULL with *err. */

/* Returns "folder/name". */
char *kvd_path_in_folder(const char *folder, const char *name, kvd_err *err);
/* Returns the path of `name` in the folder of the file `path`. */
char *kvd_path_beside(const char *path, const char *name, kvd_err *err);
char *kvd_path_with_ending(const char *path, const char *old, const char *fresh, kvd_err *err);

/* Returns true if `path` ends with `end` and is longer. */
bool kvd_path_ends_with(const char *path, const char *end);

/* 1, 0, or -1 with *err if unknown. */
int kvd_path_exists(const char *path, kvd_err *err);

/*
 * Takes ownership of `path`; stores it in *found (if NULL) if the file exists, else frees it. NULL
 * `path`: returns -1.
 */
int kvd_path_take_existing(char *path, char **found, kvd_err *err);

/* Finds NAME.tok*.bin for NAME.bin: allocated, or NULL in *found. Two files are an error. */
int kvd_path_tok_bin(const char *path, char **found, kvd_err *err);

typedef struct {
    const char *tensor; /* name of the tensor, borrowed from its file */
    size_t file;
} kvd_shard_entry;

typedef struct {
    kvd_safetensors **file;
    /* File names in the folder; NULL for a single file. */
    char **name;
    size_t n_files;
    kvd_shard_entry *entries; /* sorted by name */
    size_t n_entries;
} kvd_shards;

/* Opens a file into the zeroed *s; call kvd_shards_release even on failure. */
int kvd_shards_open_file(kvd_shards *s, const char *path, kvd_err *err);

/* Opens the files of an index in `folder`; fails if they disagree. */
int kvd_shards_open_index(kvd_shards *s, const char *folder, const char *index_path, kvd_err *err);
void kvd_shards_release(kvd_shards *s);

/* Returns 0 and *out, 1 if absent, -1 with *err for unsupported dtypes. */
int kvd_shards_find(const kvd_shards *s, const char *tensor, kvd_tensor *out, kvd_err *err);

/* kvd_safetensors_stored by name; *file: path of the file. Returns 0, or 1 if absent. */
int kvd_shards_stored(const kvd_shards *s, const char *tensor, kvd_tensor_spec *spec,
                      const void **data, size_t *bytes, const char **file);

/*
 * Tensors of all experts, as in gpt-oss. Expert N has `in` columns and `out` rows:
 *
 *   "x.experts.N.y.weight"  matrix N of "x.experts.y" [n_experts][in][out], or in MXFP4 of
 *                           "x.experts.y_blocks" [n_experts][out][in / 32][16] (U8) and
 *                           "x.experts.y_scales" [n_experts][out][in / 32] (U8)
 *   "x.experts.N.y.bias"    row N of "x.experts.y_bias" [n_experts][out]
 */

/* Finds one expert's part. Returns 0, 1 if absent, -1 with *err for unexpected shapes. */
int kvd_stacked_find(const kvd_shards *s, const char *name, size_t n_experts, kvd_tensor *out,
                     kvd_err *err);

/* Writes "x.experts.0.y.weight" for "x.experts.y_blocks"; false for other tensors. */
bool kvd_stacked_name(const char *stored, char *name, size_t size);

#endif
