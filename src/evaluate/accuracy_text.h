/*
 * Prints accuracy results (schema kvdim/accuracy): as lines of a table for people, as JSON for
 * scripts.
 */
#ifndef KVD_EVALUATE_ACCURACY_TEXT_H
#define KVD_EVALUATE_ACCURACY_TEXT_H

#include <jansson.h>

#include "evaluate/target.h"
#include "formats/rows.h"

enum { KVD_ACCURACY_LINE = 256 };

/*
 * Heading of the printed table, aligned with its lines. Column "B/token" has the bytes per token
 * that the cache of this setting takes if every number has 16 bits. Column "stored" has the bytes
 * per token that the run really stored, in its own number type.
 */
extern const char kvd_accuracy_heading[];
/* Writes results line i into line [KVD_ACCURACY_LINE] and returns `line`. */
const char *kvd_accuracy_line(const kvd_rows *rows, size_t i, char *line);
/*
 * Writes the method name of a results line, e.g. "zack". If only K or only V is compressed, appends
 * the side, "zack/v"; for a line of one of several seeds, appends the seed, "keyformer#7".
 */
void kvd_accuracy_method_name(const kvd_rows *rows, size_t i, char *name, size_t size);
/*
 * Writes the answer of a search as one or two lines of text. `what` names the score of which a
 * share is kept, `key` the parameter; `line` has 2 * KVD_ACCURACY_LINE characters. Returns `line`.
 */
const char *kvd_accuracy_target_line(const char *name, const char *key, const char *what,
                                     const kvd_target *t, char *line);

/* Returns the answers of n searches as a JSON object. NaN, which JSON lacks, becomes null. */
json_t *kvd_accuracy_targets_json(const kvd_method_target *t, size_t n, const char *metric);

#endif
