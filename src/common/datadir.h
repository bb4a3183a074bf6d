/* Finds folders that are installed with the programs, such as plot scripts. */
#ifndef KVD_COMMON_DATADIR_H
#define KVD_COMMON_DATADIR_H

#include <limits.h>

#include "common/err.h"

/*
 * Stores in `found` the first of these folders that holds `file`:
 * 1. `given`, if it is not NULL
 * 2. `in_tree` of the source tree, if the program runs from build/bin
 * 3. `installed` relative to an installed program (bin/../share/kvdim)
 * 4. the folder to which this build installs
 * The message names `option`, with which a user sets the folder; NULL if there is none.
 */
int kvd_data_folder(const char *given, const char *option, const char *in_tree,
                    const char *installed, const char *file, char found[2 * PATH_MAX],
                    kvd_err *err);

#endif
