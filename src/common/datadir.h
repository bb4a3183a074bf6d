/*
 * Finds the folders of files that are installed with the programs, such as published numbers and
 * plot scripts.
 */
#ifndef KVD_COMMON_DATADIR_H
#define KVD_COMMON_DATADIR_H

#include <limits.h>

#include "common/err.h"

/*
 * Stores in `found` the folder that holds the file `file`. Four folders are tried, in this order:
 *
 * 1. `given`, if it is not NULL.
 *
 * 2. The folder `in_tree` of the source tree, if the program runs where it was built (build/bin).
 *
 * 3. The folder `installed` relative to an installed program (bin/../share/kvdim).
 *
 * 4. The folder to which this build installs.
 *
 * The error message names `option`, with which a user sets the folder ("--paper DIR"). `option` is
 * NULL if there is no such option.
 */
int kvd_data_folder(const char *given, const char *option, const char *in_tree,
                    const char *installed, const char *file, char found[2 * PATH_MAX],
                    kvd_err *err);

#endif
