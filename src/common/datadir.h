/* Where the files that come with the programs are: published numbers, plot scripts. */
#ifndef KVD_COMMON_DATADIR_H
#define KVD_COMMON_DATADIR_H

#include <limits.h>

#include "common/err.h"

/*
 * The folder that holds `file`: `given` if not NULL, or `in_tree` of the source tree that this program was
 * built in (build/bin/../..), or `installed` beside an installed program (bin/../share/kvdim), or where
 * programs of this build are installed to. `option` is how a user says which ("--paper DIR"), for the message
 * when there is none; NULL: there is no such option.
 */
int kvd_data_folder(const char *given, const char *option, const char *in_tree, const char *installed,
                    const char *file, char found[2 * PATH_MAX], kvd_err *err);

#endif
