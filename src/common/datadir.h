/*
 * Finds the folders of files that are installed with the programs, such as published numbers and
 * plot scripts.
 */
#ifndef KVD_COMMON_DATADIR_H
#define KVD_COMMON_DATADIR_H

#include <limits.h>

#include "common/err.h"

/*
 * Stores in `found` the folder that holds `file`. Folders are tried in this order: `given` if it is
 * not NULL; `in_tree` of the source tree that this program was built in (build/bin/../..);
 * `installed` next to an installed program (bin/../share/kvdim); the folder that programs of this
 * build are installed to. The error message names `option`, with which a user sets the folder
 * ("--paper DIR"); NULL if there is no such option.
 */
int kvd_data_folder(const char *given, const char *option, const char *in_tree,
                    const char *installed, const char *file, char found[2 * PATH_MAX],
                    kvd_err *err);

#endif
