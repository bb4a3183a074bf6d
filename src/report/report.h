/*
 * What a report consists of: sections with words, tables and figures. The studies fill it; tables.c,
 * plots.c and page.c write it.
 */
#ifndef KVD_REPORT_REPORT_H
#define KVD_REPORT_REPORT_H

#include "report/tables.h"
#include "report/text.h"

/* A figure is a gnuplot script of plots/ that reads CSV files of tables/. */
typedef struct {
    char name[64];      /* figures/NAME.svg, figures/NAME.png                                  */
    const char *script; /* "spectra.gp"                                                        */
    char *settings;     /* gnuplot assignments; made of our words and numbers, never of a file's */
    char *caption;      /* plain text                                                          */
    int width, height;  /* of the SVG, in its units; the PNG has twice as many pixels          */
} kvd_figure;

typedef struct {
    const char *id, *title;
    kvd_text words; /* HTML */
    kvd_table **table;
    size_t n_tables;
    kvd_figure *figure;
    size_t n_figures;
} kvd_section;

typedef struct {
    kvd_section **section;
    size_t n;
} kvd_report;

/* Each returns what it has added, or NULL with *err when memory runs out. The report owns it. */
kvd_section *kvd_report_section(kvd_report *r, const char *id, const char *title, kvd_err *err);
kvd_table *kvd_section_table(kvd_section *s, const char *name, const char *title, kvd_err *err);

/* script and the format of settings are ours. Returns 0 or -1. */
int kvd_section_figure(kvd_section *s, const char *name, const char *script, int width, int height,
                       const char *caption, kvd_err *err, const char *settings, ...) KVD_PRINTF(8, 9);

/*
 * Height of a figure whose key, the distinct texts of column `series` of its table, stands below the panels as key_rows of common.gp lays it
 * out, in `columns` columns at the most: `height` has room for three lines, and each further one makes the figure higher, so that the panels keep
 * their size. drawn: the column that says "yes" of rows that are drawn; SIZE_MAX: all are.
 */
int kvd_height_with_key(int height, int width, int columns, const kvd_table *t, size_t series, size_t drawn);

void kvd_report_release(kvd_report *r);

#endif
