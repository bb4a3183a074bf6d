/* Prints accuracy results, as a table or as JSON. */
#ifndef KVD_EVALUATE_ACCURACY_TEXT_H
#define KVD_EVALUATE_ACCURACY_TEXT_H

#include <jansson.h>

#include "evaluate/inputs.h"
#include "evaluate/target.h"
#include "formats/rows.h"

enum { KVD_ACCURACY_LINE = 512 };

/* Lines that explain columns in the tables of kvdim-eval and of kvdim-tasks. */
#define KVD_CACHE_LEGEND                                                                           \
    "B/token: bytes per token that the cache stores; cache: these over an uncompressed 16-bit "    \
    "cache\n"
#define KVD_READ_LEGEND                                                                            \
    "read: bytes that a step reads over an uncompressed 16-bit cache, mean over the steps of all " \
    "tasks\n"
#define KVD_SETTINGS_LEGEND                                                                        \
    "settings: keys that differ from their defaults, and the key that --sweep varies"
/* Line that explains column "settings" of a table without a column for p, the removed fraction of
 * dimensions. */
#define KVD_P_SETTINGS_LEGEND                                                                      \
    "settings: p, the fraction of the dimensions removed; keys that differ from their defaults, "  \
    "and the key that --sweep varies"
/* Heading of the printed table of accuracies, and lines that explain its columns. */
extern const char kvd_accuracy_heading[], kvd_accuracy_legend[];
/* Prints `legend`. If the cache has 32-bit numbers because option --cache was not given, also
 * prints a line about that. */
void kvd_print_legend(const char *legend, const kvd_inputs_options *in);
/* Writes row i of the accuracy table as text into `line` [KVD_ACCURACY_LINE]. Returns `line`. */
const char *kvd_accuracy_line(const kvd_rows *rows, size_t i, char *line);
/* Appends the settings of row i that differ from their defaults to `line`, which has room for
 * `size` bytes. */
void kvd_settings_add(const kvd_rows *rows, size_t i, char *line, size_t size);
/* Appends p, the fraction of dimensions that the compression method of row i removes, to `line`,
 * unless p is 0. Then appends the settings that differ from their defaults. `line` has room for
 * `size` bytes. */
void kvd_p_and_settings_add(const kvd_rows *rows, size_t i, char *line, size_t size);
/* Writes the method's name in row i. In "zack/qk#7", "/qk" means that only Q and K are compressed,
 * and "#7" that the random seed is 7. */
void kvd_accuracy_method_name(const kvd_rows *rows, size_t i, char *name, size_t size);
/* Writes a line of text about the strongest compression that option --target found. `line` has 2 *
 * KVD_ACCURACY_LINE bytes, and is returned. `key`: name of the parameter that was varied; `what`:
 * name of the score, such as "the accuracy". */
const char *kvd_accuracy_target_line(const char *name, const char *key, const char *what,
                                     const kvd_target *t, char *line);

/* Returns the results of n searches for the strongest compression, as JSON with null for NaN.
 * `metric`: name of the score that the compressed model must keep, such as "top1". */
json_t *kvd_accuracy_targets_json(const kvd_method_target *t, size_t n, const char *metric);

#endif
