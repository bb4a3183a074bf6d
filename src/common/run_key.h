/* What decides the numbers of a run, as text: files that an interrupted run left are taken up again only under the same key. */
#ifndef KVD_COMMON_RUN_KEY_H
#define KVD_COMMON_RUN_KEY_H

#include <stddef.h>

#include "common/err.h"

/* Lines "name=value\n"; two runs with the same key write the same datasets. */
typedef struct {
    char text[2048];
    size_t used;
} kvd_run_key;

/* Adds a line; fails when the key is full. The value is made printable. */
int kvd_run_key_add(kvd_run_key *k, kvd_err *err, const char *name, const char *fmt, ...) KVD_PRINTF(4, 5);

/* 0 when equal; -1 with "'path' <what>: name was X, is now Y" for the first line that differs. */
int kvd_run_key_same(const char *path, const char *what, const char *then, const kvd_run_key *now,
                     kvd_err *err);

#endif
