/*
 * A report: sections with words, tables and figures, filled by studies/, written by tables.c and
 * page.c.
 */
#ifndef KVD_REPORT_REPORT_H
#define KVD_REPORT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/files/output_folder.h"
#include "common/stats.h"

/* Tables are written as CSV (full precision), Markdown and HTML (rounded, with units). */

/* A string that grows. Without memory, kvd_text_check fails. */

typedef struct {
    char *s; /* zero-terminated; NULL while empty */
    size_t len, size;
    bool failed; /* memory ran out; s keeps the earlier text */
} kvd_text;

void kvd_text_add(kvd_text *t, const char *fmt, ...) KVD_PRINTF(2, 3);
void kvd_text_raw(kvd_text *t, const char *s);
/* Escapes & < > " ' and replaces bytes that HTML forbids by '?'. */
void kvd_text_html(kvd_text *t, const char *s);
/* Escapes | and line ends for a Markdown table cell, and writes < as &lt;. */
void kvd_text_markdown(kvd_text *t, const char *s);
/* Appends item i of n, of which at most `most` are named: "a, b and 3 more". */
void kvd_text_item(kvd_text *t, size_t i, size_t n, size_t most, const char *item);

/* Returns "" if the text is empty, never NULL. */
const char *kvd_text_get(const kvd_text *t);
int kvd_text_check(const kvd_text *t, kvd_err *err);
void kvd_text_release(kvd_text *t);

typedef enum { KVD_CELL_TEXT, KVD_CELL_INT, KVD_CELL_REAL } kvd_cell_kind;

typedef struct {
    char *name; /* heading in CSV files */
    /* heading with unit in Markdown and HTML */
    char *heading;
    kvd_cell_kind kind;
    /* significant digits in Markdown and HTML; 0: no decimals */
    int digits;
    /* value range of the background colours; none unless shade_lo < shade_hi */
    double shade_lo;
    double shade_hi;
    /* true: "value [from, to]", with the ends from the next two columns */
    bool interval;
} kvd_table_col;

typedef struct {
    char *text;
    int64_t number;
    double real; /* NaN is an empty cell, also in an int column */
} kvd_cell;

typedef struct {
    char name[64]; /* name of the CSV file without its ending: letters, digits, '-' */
    char *title;
    char *note; /* text below the table; "" for none */
    /* true if the table only holds a figure's data and is not on the page */
    bool only_files;
    bool no_markdown; /* too long for a Markdown file */
    kvd_table_col *col;
    size_t n_cols;
    kvd_cell *cell; /* [n_rows][n_cols] */
    size_t n_rows, size, at;
    bool failed;
} kvd_table;

void kvd_table_init(kvd_table *t, const char *name, const char *title);
void kvd_table_note(kvd_table *t, const char *fmt, ...) KVD_PRINTF(2, 3);
/* Adds a column; all columns come before the first row. `digits`: significant digits of reals. */
void kvd_table_add_column(kvd_table *t, kvd_cell_kind kind, int digits, const char *name,
                          const char *heading);
/* Shades the last column's cells by value between `lo` and `hi`. */
void kvd_table_shade(kvd_table *t, double lo, double hi);

/* Shows the last column with an interval, whose ends are in the next two columns. */
void kvd_table_interval(kvd_table *t);
/* Adds a column of reals, and its interval's ends as columns NAME_lo and NAME_hi. */
void kvd_table_add_interval(kvd_table *t, int digits, const char *name, const char *heading);

/* Append the next cell; a row is complete with its last cell. */
void kvd_table_text(kvd_table *t, const char *value);
void kvd_table_int(kvd_table *t, int64_t value);
void kvd_table_no_int(kvd_table *t); /* appends an empty cell */
/* Appends an integer read as a real number, or an empty cell for NaN. */
void kvd_table_count(kvd_table *t, double value);
void kvd_table_real(kvd_table *t, double value);
/* Appends three cells: a value and its interval's ends. */
void kvd_table_bounded(kvd_table *t, kvd_interval x);

const kvd_cell *kvd_table_cell(const kvd_table *t, size_t row, size_t col);

/* Removes every row that equals an earlier row in all cells. */
void kvd_table_unique(kvd_table *t);

int kvd_table_check(const kvd_table *t, kvd_err *err);
/* Writes tables/NAME.csv and, unless no_markdown, tables/NAME.md. */
int kvd_table_write(const kvd_table *t, const kvd_output *out, kvd_err *err);
/* Appends the table as HTML, a long one folded into <details>. */
void kvd_table_html(const kvd_table *t, kvd_text *out);
void kvd_table_plain(const kvd_table *t, kvd_text *out);
void kvd_table_release(kvd_table *t);

/* A figure, drawn by a gnuplot script of plots/ from CSV files of tables/. */
typedef struct {
    char name[64];      /* of figures/NAME.svg and figures/NAME.png */
    const char *script; /* such as "spectra.gp" */
    /* gnuplot assignments without text of a result file, which gnuplot would execute */
    char *settings;
    char *caption;
    /* size of the SVG in its units; the PNG has twice as many pixels */
    int width, height;
    bool folded; /* shown only after a click on its title */
    kvd_text left_out;
    /* why the figure is not drawn; empty if it is */
    kvd_text why;
} kvd_figure;

/* CSV columns of a table that one panel of a figure draws. */
typedef struct {
    const char *title;
    /* Columns of the axes; x NULL: rows are spread evenly. */
    const char *x, *y;
    bool log_x, log_y;
    /* true: rows with an empty cell in column y are left out without a note */
    bool sparse;
    /* Draws only rows with the text `is` in column `where`; NULL: all rows. */
    const char *where, *is;
} kvd_panel;

typedef struct {
    const char *id, *title;
    kvd_text words; /* paragraphs as HTML */
    kvd_table **table;
    size_t n_tables;
    kvd_figure *figure;
    size_t n_figures;
} kvd_section;

typedef struct {
    kvd_text title; /* plain text */
    kvd_section **section;
    size_t n;
} kvd_report;

/*
 * Return a new section or table, which the report owns. On failure (or interrupt) return NULL and
 * fill *err.
 */
kvd_section *kvd_report_section(kvd_report *r, const char *id, const char *title, kvd_err *err);
kvd_table *kvd_section_table(kvd_section *s, const char *name, const char *title, kvd_err *err);

/*
 * Adds a figure. `script` and `settings` must hold no text of a result file: gnuplot would execute
 * it. Returns 0 or -1.
 */
int kvd_section_figure(kvd_section *s, const char *name, const char *script, int width, int height,
                       const char *caption, kvd_err *err, const char *settings, ...)
    KVD_PRINTF(8, 9);

/*
 * Counts the rows that the last figure's panels cannot show (not finite, or not above 0 on a
 * logarithmic axis), for the page. Without points the figure is not drawn.
 */
void kvd_section_panels(kvd_section *s, const kvd_table *t, const kvd_panel *panel,
                        size_t n_panels);

/* Shows only the title of the last figure until a click. */
void kvd_section_fold(kvd_section *s);

/* Adds a sentence on data that the last figure does not show. */
void kvd_section_left_out(kvd_section *s, const char *fmt, ...) KVD_PRINTF(2, 3);

/* Says why the last figure is not drawn; the page shows the reason. */
void kvd_section_not_drawn(kvd_section *s, const char *fmt, ...) KVD_PRINTF(2, 3);

/*
 * Returns a figure's height with a legend of the distinct texts of column `series` in up to
 * `columns` columns; `height`: with three lines. key_rows of plots/common.gp computes the same
 * lines. `drawn`: column with "yes" in drawn rows; SIZE_MAX: all.
 */
int kvd_height_with_key(int height, int width, int columns, const kvd_table *t, size_t series,
                        size_t drawn);

void kvd_report_release(kvd_report *r);

/*
 * Writes index.html, one page without scripts or other servers. `figures`: with the SVG files of
 * figures/; a missing figure is explained.
 */
int kvd_page_write(const kvd_report *r, bool figures, const kvd_output *out, kvd_err *err);

/*
 * Draws figures/NAME.svg and NAME.png with the gnuplot scripts of folder `scripts`, from tables
 * already in the output folder.
 *
 * A failure goes into the figure's `why` and *why, and increases *failed. Returns -1 with *err only
 * if a file cannot be written or on an interrupt.
 */
int kvd_plots_write(const kvd_report *r, const kvd_output *out, const char *scripts, bool quiet,
                    size_t *failed, kvd_err *why, kvd_err *err);

#endif
