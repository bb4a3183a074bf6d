/* Finds tensors by name in one safetensors file, or in the shards that an index names. */
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
/* Returns `path` with its ending `old` replaced by `fresh`. */
char *kvd_path_with_ending(const char *path, const char *old, const char *fresh, kvd_err *err);

/* Returns true if `path` ends with `end` and is longer. */
bool kvd_path_ends_with(const char *path, const char *end);

/* Returns 1 if the file exists, 0 if not, or -1 with *err if unknown. */
int kvd_path_exists(const char *path, kvd_err *err);

/*
 * Takes ownership of `path`; stores it in *found if the file exists and *found is NULL, else frees
 * it. If `path` is NULL, returns -1; the caller has filled *err.
 */
int kvd_path_take_existing(char *path, char **found, kvd_err *err);

/*
 * Finds NAME.tok*.bin for `path` (NAME.bin): allocated path or NULL in *found. Two such files are
 * an error.
 */
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

/*
 * Opens one file into the zeroed *s. Returns 0, or -1 with *err; call kvd_shards_release even then.
 */
int kvd_shards_open_file(kvd_shards *s, const char *path, kvd_err *err);

/*
 * Opens the files of model.safetensors.index.json in `folder`, as kvd_shards_open_file does. Fails
 * if index and files disagree.
 */
int kvd_shards_open_index(kvd_shards *s, const char *folder, const char *index_path, kvd_err *err);
void kvd_shards_release(kvd_shards *s);

/* Finds a tensor: 0 and *out, 1 if absent, -1 with *err for unsupported dtypes. */
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

/*
 * Finds one expert's part of a tensor of n_experts. Returns 0, 1 if absent, or -1 with *err for
 * unexpected shapes or types.
 */
int kvd_stacked_find(const kvd_shards *s, const char *name, size_t n_experts, kvd_tensor *out,
                     kvd_err *err);

/*
 * Writes the name for expert 0: "x.experts.0.y.weight" for "x.experts.y_blocks". False if not a
 * tensor of experts or too long.
 */
bool kvd_stacked_name(const char *stored, char *name, size_t size);

#endif
