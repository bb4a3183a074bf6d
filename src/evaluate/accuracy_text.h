/* Prints accuracy results, as a table or as JSON. */
#ifndef KVD_EVALUATE_ACCURACY_TEXT_H
#define KVD_EVALUATE_ACCURACY_TEXT_H

#include <jansson.h>

#include "evaluate/target.h"
#include "formats/rows.h"

enum { KVD_ACCURACY_LINE = 256 };

/* heading of the table of methods' accuracies; its column "B/token" has a token's bytes at 16 bits
 * per number, "stored" all stored bytes per token */
extern const char kvd_accuracy_heading[];
/* Writes row i of the table as text into `line` and returns it. */
const char *kvd_accuracy_line(const kvd_rows *rows, size_t i, char *line);
/* Writes a name such as "zack/qk#7": only Q and K are compressed, seed 7. */
void kvd_accuracy_method_name(const kvd_rows *rows, size_t i, char *name, size_t size);
/* Writes into line [2 * KVD_ACCURACY_LINE] the result of a search for the strongest compression
 * that keeps score `what`. `key`: name of the varied parameter. */
const char *kvd_accuracy_target_line(const char *name, const char *key, const char *what,
                                     const kvd_target *t, char *line);

/* Returns n searches for the strongest compression that keeps `metric`, as JSON (NaN: null). */
json_t *kvd_accuracy_targets_json(const kvd_method_target *t, size_t n, const char *metric);

#endif
