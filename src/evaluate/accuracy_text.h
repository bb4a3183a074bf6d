/* Prints accuracy results: as a table for people, or as JSON for scripts. */
#ifndef KVD_EVALUATE_ACCURACY_TEXT_H
#define KVD_EVALUATE_ACCURACY_TEXT_H

#include <jansson.h>

#include "evaluate/target.h"
#include "formats/rows.h"

enum { KVD_ACCURACY_LINE = 256 };

/*
 * Heading of the table of results. Column "B/token" counts bytes per token at 16 bits per number,
 * "stored" all stored bytes, including scales and indices.
 */
extern const char kvd_accuracy_heading[];
/* Writes a table line into line [KVD_ACCURACY_LINE] and returns `line`. */
const char *kvd_accuracy_line(const kvd_rows *rows, size_t i, char *line);
/*
 * Writes a name such as "zack/qk#7": /qk or /v if only Q and K, or only V, are compressed, #7 for
 * seed 7.
 */
void kvd_accuracy_method_name(const kvd_rows *rows, size_t i, char *name, size_t size);
/*
 * Writes the strongest compression that a search (--target) found to line [2 * KVD_ACCURACY_LINE]
 * and returns it. `what` names the score to keep, `key` the searched parameter.
 */
const char *kvd_accuracy_target_line(const char *name, const char *key, const char *what,
                                     const kvd_target *t, char *line);

/* Returns n searches as a JSON object, with null for NaN. */
json_t *kvd_accuracy_targets_json(const kvd_method_target *t, size_t n, const char *metric);

#endif
