/*
 * The points of a method that are to be evaluated: from a rates file, from a wanted p or removal rate, or
 * one after another in a search; and the projections that belong to them.
 */
#ifndef KVD_ANALYSIS_POINTS_H
#define KVD_ANALYSIS_POINTS_H

#include "analysis/widths.h"
#include "methods/presets.h"

/* Files that were given, each with its path for messages. */
typedef struct {
    kvd_spectrum *spectrum; /* [n_spectra] */
    const char *const *spectrum_path;
    size_t n_spectra;
    kvd_rates *rates; /* [n_rates] */
    const char *const *rates_path;
    size_t n_rates;
    kvd_error_table *table; /* NULL: none */
    const char *table_path;
} kvd_point_files;

/* What one method takes its bases and widths from; all borrowed. */
typedef struct {
    const kvd_method *method;
    const kvd_spectrum *spectrum; /* NULL for none                                */
    const char *spectrum_path;
    const kvd_rates *rates; /* NULL: no rates file has the method's pairs   */
    const char *rates_path;
    const kvd_error_table *table; /* only with ranks=error                        */
    const char *table_path;
} kvd_point_source;

/*
 * Finds the files of a method: the one spectrum with both its pairs, the one rates file with its pairs.
 * Fails when there is no such spectrum, when two files would do, when rates or table belong to other
 * pairs, and when the table was measured with other bases. method none needs nothing.
 */
int kvd_point_source_find(kvd_point_source *s, const kvd_method *method, const kvd_point_files *files,
                          kvd_err *err);

typedef struct {
    const char *rule;    /* "none", "eq6", "eq6-energy", "error" or "uniform"   */
    double removal_rate; /* NaN where no single r stands behind the widths      */
    double p_wanted;     /* NaN where an r was asked for; of both sides, cut or left whole */
    double overall_p;    /* of stored elements, a side left whole included; 0 for none */
    double side_p[2];    /* the same of Q-K and of V alone                            */
    double low_p[2];     /* of entries at the low level; NaN: there is none           */
    int cut;             /* 0: none, dims is unused                             */
    kvd_dims dims;
    kvd_dims low; /* of entries at the low level; head NULL: as dims */
} kvd_point;

/* All points of the method: one for keys of kvd_point_of_keys, else those of the rates file (uniform: its overall p).
 * *n is 0 when there is neither. points is allocated; kvd_points_free. */
int kvd_points_make(const kvd_point_source *s, kvd_point **points, size_t *n, kvd_err *err);
void kvd_points_free(kvd_point *points, size_t n);

/* The point at overall p: at or just above it, for uniform the nearest. */
int kvd_point_at(const kvd_point_source *s, double p, kvd_point *point, kvd_err *err);
/* The point that keys p, p.qk and p.v, or r of the method ask for (kvd_method_has_point). */
int kvd_point_of_keys(const kvd_point_source *s, kvd_point *point, kvd_err *err);
/* The point at removal rate r, and the i-th of the rates file; both need a method with dims. */
int kvd_point_at_r(const kvd_point_source *s, double r, kvd_point *point, kvd_err *err);
int kvd_point_of_rates(const kvd_point_source *s, size_t i, kvd_point *point, kvd_err *err);
void kvd_point_release(kvd_point *point);
/* The largest overall p that kvd_point_at can reach. */
int kvd_point_largest(const kvd_point_source *s, double *p, kvd_err *err);

/* Every head at full width, a side that key cut leaves whole without matrices. */
int kvd_point_full(const kvd_point_source *s, kvd_dims *dims, kvd_err *err);

#endif
