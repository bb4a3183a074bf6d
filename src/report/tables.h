/*
 * Tables of the report: filled row by row, written as CSV (full precision, snake_case headings) and
 * as Markdown and HTML (rounded, headings with units).
 *
 * Memory that runs out while a table is filled is remembered and reported by kvd_table_check.
 */
#ifndef KVD_REPORT_TABLES_H
#define KVD_REPORT_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/files/output_folder.h"

/*
 * A growing string. If memory runs out, the string remembers it and the caller asks once at the
 * end, so that code that builds a page needs no checks in between.
 */

typedef struct {
    char *s; /* zero-terminated; NULL while empty */
    size_t len, size;
    bool failed; /* true after memory ran out; s keeps the text from before */
} kvd_text;

void kvd_text_add(kvd_text *t, const char *fmt, ...) KVD_PRINTF(2, 3);
/* Appends the text unchanged. */
void kvd_text_raw(kvd_text *t, const char *s);
/*
 * Appends text from a file to HTML: escapes & < > " ' and replaces bytes that HTML forbids by '?'.
 */
void kvd_text_html(kvd_text *t, const char *s);
/* Appends text to a cell of a Markdown table: escapes | and line ends, and writes < as &lt;. */
void kvd_text_markdown(kvd_text *t, const char *s);
/*
 * Appends item i of n of a list of which at most `most` items are named: "a", "a, b", "a, b and 3
 * more".
 */
void kvd_text_item(kvd_text *t, size_t i, size_t n, size_t most, const char *item);

/* Returns the text; "" if it is empty. Never returns NULL. */
const char *kvd_text_get(const kvd_text *t);
int kvd_text_check(const kvd_text *t, kvd_err *err);
void kvd_text_release(kvd_text *t);

typedef enum { KVD_CELL_TEXT, KVD_CELL_INT, KVD_CELL_REAL } kvd_cell_kind;

typedef struct {
    char *name;    /* heading in CSV files */
    char *heading; /* heading with the unit, in Markdown and HTML */
    kvd_cell_kind kind;
    int digits;      /* significant digits of a real in Markdown and HTML; 0 means no decimals */
    double shade_lo; /* if shade_lo < shade_hi, HTML cells are shaded from the one to the other */
    double shade_hi;
    bool interval; /* shown as "value [from, to]", where the next two columns are from and to */
} kvd_table_col;

typedef struct {
    char *text;
    int64_t number;
    double real; /* NaN is an empty cell, also in an int column */
} kvd_cell;

typedef struct {
    char name[64]; /* file name without its ending: letters, digits, '-' */
    char *title;
    char *note; /* text below the table; "" for none */
    /* true if the page does not show the table, which holds the data of a figure */
    bool only_files;
    bool no_markdown; /* too long for Markdown */
    kvd_table_col *col;
    size_t n_cols;
    kvd_cell *cell; /* [n_rows][n_cols] */
    size_t n_rows, size, at;
    bool failed;
} kvd_table;

void kvd_table_init(kvd_table *t, const char *name, const char *title);
void kvd_table_note(kvd_table *t, const char *fmt, ...) KVD_PRINTF(2, 3);
/*
 * Adds a column. All columns must be added before the first row. `digits`: significant digits of a
 * real number.
 */
void kvd_table_add_column(kvd_table *t, kvd_cell_kind kind, int digits, const char *name,
                          const char *heading);
/* Shades the cells of the column added last. */
void kvd_table_shade(kvd_table *t, double lo, double hi);

/* Makes the column added last the value of an interval. The next two columns are its ends. */
void kvd_table_interval(kvd_table *t);

/* Appends the next cell of the row. A row is complete when its last cell was appended. */
void kvd_table_text(kvd_table *t, const char *value);
void kvd_table_int(kvd_table *t, int64_t value);
void kvd_table_no_int(kvd_table *t); /* appends an empty cell to an int column */
/*
 * Appends a whole number that was read as a real number, or an empty cell for NaN (not measured).
 */
void kvd_table_count(kvd_table *t, double value);
void kvd_table_real(kvd_table *t, double value);

const kvd_cell *kvd_table_cell(const kvd_table *t, size_t row, size_t col);

/* Removes every row that equals an earlier row in all of its cells. */
void kvd_table_unique(kvd_table *t);

int kvd_table_check(const kvd_table *t, kvd_err *err);
/* Writes tables/NAME.csv into the folder, and tables/NAME.md unless the table is too long. */
int kvd_table_write(const kvd_table *t, const kvd_output *out, kvd_err *err);
/* Appends the table in a container that scrolls; a long table is folded into <details>. */
void kvd_table_html(const kvd_table *t, kvd_text *out);
/* Appends the table with aligned columns for a terminal. */
void kvd_table_plain(const kvd_table *t, kvd_text *out);
void kvd_table_release(kvd_table *t);

#endif
