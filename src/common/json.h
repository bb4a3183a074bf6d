#ifndef KVD_COMMON_JSON_H
#define KVD_COMMON_JSON_H

#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "common/err.h"

/* Returns a number, or null for NaN and infinity, which JSON cannot hold. */
static inline json_t *kvd_json_real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

/* Prints `summary` as the output of --json, and releases it. Fails if `summary` is NULL. */
static inline int kvd_json_print(json_t *summary, kvd_err *err)
{
    const int failed = !summary ||
                       json_dumpf(summary, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) ||
                       puts("") < 0;
    json_decref(summary);
    return failed ? kvd_fail(err, "cannot write the JSON summary") : 0;
}

#endif
