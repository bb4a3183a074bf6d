/* Prints accuracy results: as a table for people, or as JSON for scripts. */
#ifndef KVD_EVALUATE_ACCURACY_TEXT_H
#define KVD_EVALUATE_ACCURACY_TEXT_H

#include <jansson.h>

#include "evaluate/target.h"
#include "formats/rows.h"

enum { KVD_ACCURACY_LINE = 256 };

/*
 * Heading of the printed table. Column "B/token" has the nominal bytes per token: of all stored
 * numbers, with 16 bits for each. Column "stored" has the bytes per token that the cache really
 * stored, with quantisation and side information.
 */
extern const char kvd_accuracy_heading[];
/* Writes one line of the table into line [KVD_ACCURACY_LINE] and returns `line`. */
const char *kvd_accuracy_line(const kvd_rows *rows, size_t i, char *line);
/*
 * Writes the method's name, such as "zack". Appends "/qk" or "/v" if only Q and K or only V is
 * compressed, and "#7" for results with random seed 7.
 */
void kvd_accuracy_method_name(const kvd_rows *rows, size_t i, char *name, size_t size);
/*
 * Writes the result of a search (--target) as one or two lines of text. The search looks for the
 * strongest compression that keeps a fraction of a score. `what` is the name of that score, and
 * `key` the name of the parameter that the search varied. `line` has 2 * KVD_ACCURACY_LINE
 * characters and is returned.
 */
const char *kvd_accuracy_target_line(const char *name, const char *key, const char *what,
                                     const kvd_target *t, char *line);

/* Returns the results of n searches for a target as a JSON object. NaN becomes null. */
json_t *kvd_accuracy_targets_json(const kvd_method_target *t, size_t n, const char *metric);

#endif
