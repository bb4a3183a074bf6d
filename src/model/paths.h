/* Names of the files that belong together in a checkpoint. Texts are allocated. */
#ifndef KVD_MODEL_PATHS_H
#define KVD_MODEL_PATHS_H

#include <stdbool.h>

#include "common/err.h"

/* NULL with *err when memory runs out. */
char *kvd_path_in_folder(const char *folder, const char *name, kvd_err *err);
/* The file `name` in the folder that holds the file `path`. */
char *kvd_path_beside(const char *path, const char *name, kvd_err *err);
/* path, which ends with `old`, with `fresh` in its place. */
char *kvd_path_with_ending(const char *path, const char *old, const char *fresh, kvd_err *err);

/* Something stands before the ending. */
bool kvd_path_ends_with(const char *path, const char *end);

/* 1: there; 0: not there; -1 with *err: cannot tell. */
int kvd_path_exists(const char *path, kvd_err *err);

/* Puts `path` into *found when it exists and *found is still NULL. Takes the text, which may be
 * NULL when it could not be made; *err is filled then. */
int kvd_path_take_existing(char *path, char **found, kvd_err *err);

/* The one file beside `path` (NAME.bin) called NAME.tok*.bin; *found NULL when there is none. Two are
 * an error. NAME is compared, not used as a pattern: it may hold any character. */
int kvd_path_tok_bin(const char *path, char **found, kvd_err *err);

#endif
