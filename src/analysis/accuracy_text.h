/* Rows of kvdim/accuracy for people and for scripts: lines of a table, JSON. */
#ifndef KVD_ANALYSIS_ACCURACY_TEXT_H
#define KVD_ANALYSIS_ACCURACY_TEXT_H

#include <jansson.h>

#include "analysis/target.h"
#include "formats/rows.h"

enum { KVD_ACCURACY_LINE = 256 };

/* Aligned with the lines below. B/token counts a 16-bit cache, stored what the run held. */
extern const char kvd_accuracy_heading[];
/* Row i into line [KVD_ACCURACY_LINE], which is returned. */
const char *kvd_accuracy_line(const kvd_rows *rows, size_t i, char *line);
/* What row i came to when it ran free, with intervals, into line [4 * KVD_ACCURACY_LINE]; NULL when it did not. */
const char *kvd_accuracy_free_line(const kvd_rows *rows, size_t i, char *line);
/* The answer of a search for `key` in one or two lines, into line [2 * KVD_ACCURACY_LINE]. */
const char *kvd_accuracy_target_line(const char *name, const char *key, const kvd_target *t, char *line);

/* A target as an object. NaN, which JSON lacks, becomes null. */
json_t *kvd_accuracy_target_json(const char *key, const kvd_target *t);

#endif
