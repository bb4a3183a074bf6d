/* The JSON summary that programs print with --json. */
#ifndef KVD_COMMON_JSON_H
#define KVD_COMMON_JSON_H

#include <jansson.h>

#include "common/err.h"

/*
 * Prints `summary` on stdout, numbers with 10 digits, and releases it. Fails if it is NULL, which
 * jansson returns when memory ran out, or if stdout cannot be written.
 */
int kvd_json_print(json_t *summary, kvd_err *err);

#endif
