/* Text of rows of schema kvdim/accuracy: lines of a table for people, JSON for scripts. */
#ifndef KVD_EVALUATE_ACCURACY_TEXT_H
#define KVD_EVALUATE_ACCURACY_TEXT_H

#include <jansson.h>

#include "evaluate/target.h"
#include "formats/rows.h"

enum { KVD_ACCURACY_LINE = 256 };

/*
 * Heading of the table, aligned with its lines. B/token counts the bytes of a 16-bit cache,
 * "stored" the bytes that the run held.
 */
extern const char kvd_accuracy_heading[];
/* Writes row i into line [KVD_ACCURACY_LINE] and returns line. */
const char *kvd_accuracy_line(const kvd_rows *rows, size_t i, char *line);
/*
 * Writes the name of a row's method: "zack"; if only one side is compressed, also the side,
 * "zack/v"; for one of several seeds, also the seed, "keyformer#7".
 */
void kvd_accuracy_method_name(const kvd_rows *rows, size_t i, char *name, size_t size);
/*
 * Writes the answer of a search for the best value of `key`, one or two lines, into line [2 *
 * KVD_ACCURACY_LINE].
 */
const char *kvd_accuracy_target_line(const char *name, const char *key, const kvd_target *t,
                                     char *line);

/*
 * Returns the answer of a search for a target accuracy as a JSON object. NaN, which JSON lacks,
 * becomes null.
 */
json_t *kvd_accuracy_target_json(const char *key, const kvd_target *t);

#endif
