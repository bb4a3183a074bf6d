/* Tables of measured points as JSON, for --json. */
#ifndef KVD_FORMATS_ROWS_JSON_H
#define KVD_FORMATS_ROWS_JSON_H

#include <jansson.h>

#include "formats/rows.h"

/* A list of objects, one member per column. NaN and infinity, which JSON lacks, become null. The caller drops it; NULL when
 * memory runs out. */
json_t *kvd_rows_json(const kvd_rows *rows);

#endif
