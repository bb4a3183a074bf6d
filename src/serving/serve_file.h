/*
 * kvdim/serving: simulated serving, in rows of three kinds.
 *
 *   point       a method at one rate
 *   max-rate    the same at the highest rate whose mean normalised latency stays within latency_bound_s
 *   validation  one statistic of a replay that kvdim-jct measured, and of its simulation
 */
#ifndef KVD_SERVING_SERVE_FILE_H
#define KVD_SERVING_SERVE_FILE_H

#include "formats/model_info.h"
#include "formats/rows.h"
#include "serving/serve_point.h"

extern const kvd_schema kvd_schema_serving;

typedef struct {
    kvd_rows *rows;
    size_t n, capacity;
    double *
        curve[3]; /* [n][KVD_LATENCY_CURVE]: of ttft, tbt and normalised latency; NaN in rows of validation */
} kvd_serve_table;

/* What all rows of one method share. */
typedef struct {
    const char *method, *trace;
    const kvd_serve_setting *setting;
    double memory, reserve; /* bytes of one GPU, NaN: the measured cache */
    size_t skipped;         /* requests of the trace that were left out  */
} kvd_serve_about;

typedef struct {
    const char *quantity, *statistic; /* "TTFT", "mean" */
    double measured, simulated;       /* seconds        */
} kvd_serve_comparison;

int kvd_serve_table_init(kvd_serve_table *t, kvd_err *err);
void kvd_serve_table_release(kvd_serve_table *t);
/* bound: NaN of a point. */
int kvd_serve_add_point(kvd_serve_table *t, const kvd_serve_about *a, const kvd_serve_point *p, double bound,
                        kvd_err *err);
/* p: the simulation of the replay. */
int kvd_serve_add_comparison(kvd_serve_table *t, const kvd_serve_about *a, const kvd_serve_point *p,
                             const kvd_serve_comparison *c, kvd_err *err);

/* Into a file just created, which it completes. none: a line for each method without a sustainable rate. */
int kvd_serve_write(kvd_h5 *f, const kvd_serve_table *t, const kvd_model_info *model, const char *none,
                    kvd_err *err);

/* The table on stdout: its headings, and a line per row. */
enum { KVD_SERVE_LINE = 320 };
extern const char kvd_serve_heading[], kvd_serve_comparison_heading[];
const char *kvd_serve_line(const kvd_rows *rows, size_t row, char line[KVD_SERVE_LINE]);

#endif
