#include "common/json.h"

#include <stdio.h>

int kvd_json_print(json_t *summary, kvd_err *err)
{
    const int failed = !summary ||
                       json_dumpf(summary, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) ||
                       puts("") < 0;
    json_decref(summary);
    return failed ? kvd_fail(err, "cannot write the JSON summary") : 0;
}
