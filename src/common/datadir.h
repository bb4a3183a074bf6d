/* Finds folders of files that are installed with the programs, such as plot scripts. */
#ifndef KVD_COMMON_DATADIR_H
#define KVD_COMMON_DATADIR_H

#include <limits.h>

#include "common/err.h"

/* Stores in `found` the path of the first of these folders that contains `file`:
 *
 * - `given`, the value of option `option`; if it is not NULL, no other folder is tried
 * - `in_tree` in the source tree
 * - `installed` in the installation's data folder */
int kvd_data_folder(const char *given, const char *option, const char *in_tree,
                    const char *installed, const char *file, char found[2 * PATH_MAX],
                    kvd_err *err);

#endif
