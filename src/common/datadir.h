/* Finds folders that are installed with the programs, such as plot scripts. */
#ifndef KVD_COMMON_DATADIR_H
#define KVD_COMMON_DATADIR_H

#include <limits.h>

#include "common/err.h"

/*
 * Stores in `found` the first of these folders that contains `file`:
 * 1. `given`, if it is not NULL
 * 2. `in_tree` in the source tree, if the program runs from build/bin
 * 3. `installed`, relative to the folder of an installed program (bin/../share/kvdim)
 * 4. the folder to which this build installs
 * `option`, which may be NULL, is the option that sets the folder; the error message names it.
 */
int kvd_data_folder(const char *given, const char *option, const char *in_tree,
                    const char *installed, const char *file, char found[2 * PATH_MAX],
                    kvd_err *err);

#endif
