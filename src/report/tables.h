/*
 * Tables of the report: filled row by row, written as CSV (full precision, snake_case headings) and as
 * Markdown and HTML (rounded, headings with units).
 *
 * Memory that runs out while a table is filled is remembered and reported by kvd_table_check.
 */
#ifndef KVD_REPORT_TABLES_H
#define KVD_REPORT_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "report/text.h"

typedef enum { KVD_CELL_TEXT, KVD_CELL_INT, KVD_CELL_REAL } kvd_cell_kind;

typedef struct {
    char *name;    /* heading in CSV files                                             */
    char *heading; /* heading for people, with the unit                                */
    kvd_cell_kind kind;
    int digits;      /* significant digits of a real in Markdown and HTML           */
    double shade_lo; /* shade_lo < shade_hi: HTML cells are shaded between the two  */
    double shade_hi;
    bool interval; /* the next two columns are the ends of its interval: people see "value [from, to]" */
} kvd_table_col;

typedef struct {
    char *text;
    int64_t number;
    double real; /* NaN: no value, an empty cell (of an int column too) */
} kvd_cell;

typedef struct {
    char name[64]; /* file name without its ending: letters, digits, '-' */
    char *title;
    char *note;       /* below the table; "" when there is none                         */
    bool only_files;  /* not shown in the page: data of a figure                        */
    bool no_markdown; /* too long for Markdown                                         */
    kvd_table_col *col;
    size_t n_cols;
    kvd_cell *cell; /* [n_rows][n_cols] */
    size_t n_rows, size, at;
    bool failed;
} kvd_table;

void kvd_table_init(kvd_table *t, const char *name, const char *title);
void kvd_table_note(kvd_table *t, const char *fmt, ...) KVD_PRINTF(2, 3);
/* Columns come before rows. digits: for reals. */
void kvd_table_add_column(kvd_table *t, kvd_cell_kind kind, int digits, const char *name,
                          const char *heading);
/* Shades the cells of the column added last. */
void kvd_table_shade(kvd_table *t, double lo, double hi);

/* The column added last is followed by the two ends of its interval. */
void kvd_table_interval(kvd_table *t);

/* Cells of a row, in the order of the columns; a row is complete when its last cell is put. */
void kvd_table_text(kvd_table *t, const char *value);
void kvd_table_int(kvd_table *t, int64_t value);
void kvd_table_no_int(kvd_table *t); /* an empty cell of an int column */
void kvd_table_real(kvd_table *t, double value);

const kvd_cell *kvd_table_cell(const kvd_table *t, size_t row, size_t col);
/* A cell as shown to people: rounded, "-" without a value, with its interval. */
void kvd_table_show(const kvd_table *t, size_t row, size_t col, char *buf, size_t size);

int kvd_table_check(const kvd_table *t, kvd_err *err);
/* Writes DIR/NAME.csv, and DIR/NAME.md unless it is too long for that; each appears whole. */
int kvd_table_write(const kvd_table *t, const char *dir, kvd_err *err);
/* Appends <table>...</table>. */
void kvd_table_html(const kvd_table *t, kvd_text *out);
/* Aligned columns for a terminal. */
void kvd_table_plain(const kvd_table *t, kvd_text *out);
void kvd_table_release(kvd_table *t);

#endif
