/* A report: sections with words, tables and figures. */
#ifndef KVD_REPORT_REPORT_H
#define KVD_REPORT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/files/output_folder.h"
#include "common/stats.h"
#include "formats/rows.h"

/* ---- Tables, written as CSV (full precision), Markdown and HTML (rounded, with units) ---- */

/* text that grows; if memory runs out, kvd_text_check fails */

typedef struct {
    char *s; /* zero-terminated; NULL while empty */
    size_t len, size;
    bool failed; /* true if memory ran out; s keeps the earlier text */
} kvd_text;

void kvd_text_add(kvd_text *t, const char *fmt, ...) KVD_PRINTF(2, 3);
void kvd_text_raw(kvd_text *t, const char *s);
/* Appends s with & < > " ' escaped for HTML. */
void kvd_text_html(kvd_text *t, const char *s);
/* Appends item i of n, of which `most` are named, as in "a, b and 3 more". */
void kvd_text_item(kvd_text *t, size_t i, size_t n, size_t most, const char *item);

/* Returns the text, never NULL. */
const char *kvd_text_get(const kvd_text *t);
int kvd_text_check(const kvd_text *t, kvd_err *err);
void kvd_text_release(kvd_text *t);

typedef enum { KVD_CELL_TEXT, KVD_CELL_INT, KVD_CELL_REAL } kvd_cell_kind;

typedef struct {
    char *name; /* heading in CSV files */
    /* heading with unit, in Markdown and HTML */
    char *heading;
    kvd_cell_kind kind;
    int digits; /* significant digits in Markdown and HTML; 0 means no decimals */
    /* value of the first background colour; cells have colours only if shade_lo < shade_hi */
    double shade_lo;
    double shade_hi;
    /* true if cells are "value [from, to]", whose ends are in the next two columns */
    bool interval;
} kvd_table_col;

typedef struct {
    char *text;
    int64_t number;
    double real; /* NaN is an empty cell, also in an int column */
} kvd_cell;

typedef struct {
    char name[64]; /* name of the CSV file without its ending */
    char *title;
    char *note;       /* text below the table; "" for none */
    bool only_files;  /* true if the table is not on the page; empty tables never are */
    bool no_markdown; /* true if the table is too long for a Markdown file */
    kvd_table_col *col;
    size_t n_cols;
    kvd_cell *cell; /* [n_rows][n_cols] */
    size_t n_rows, size, at;
    bool failed;
} kvd_table;

void kvd_table_init(kvd_table *t, const char *name, const char *title);
void kvd_table_note(kvd_table *t, const char *fmt, ...) KVD_PRINTF(2, 3);
/* Adds a column, before the first row. `digits`: significant digits. */
void kvd_table_add_column(kvd_table *t, kvd_cell_kind kind, int digits, const char *name,
                          const char *heading);
/* Colours the cells of the last column by their values, from `lo` to `hi`. */
void kvd_table_shade(kvd_table *t, double lo, double hi);
/* Adds columns NAME, NAME_lo and NAME_hi: real numbers and the ends of their 95 % intervals. */
void kvd_table_add_interval(kvd_table *t, int digits, const char *name, const char *heading);

/* Append the next cell. The last cell completes a row. */
void kvd_table_text(kvd_table *t, const char *value);
/* Appends a text without the characters that gnuplot would misread. */
void kvd_table_series(kvd_table *t, const char *value);
void kvd_table_int(kvd_table *t, int64_t value);
void kvd_table_no_int(kvd_table *t); /* appends an empty cell */
/* Appends an integer that was read as a real number. NaN gives an empty cell. */
void kvd_table_count(kvd_table *t, double value);
void kvd_table_real(kvd_table *t, double value);
/* Appends real numbers, given one by one after t, as cells. */
#define kvd_table_reals(t, ...)                                                                    \
    kvd_table_real_cells(t, (const double[]){__VA_ARGS__},                                         \
                         sizeof(const double[]){__VA_ARGS__} / sizeof(double))
void kvd_table_real_cells(kvd_table *t, const double *value, size_t n);
/* Appends a value and the two ends of its interval. */
void kvd_table_bounded(kvd_table *t, kvd_interval x);
/* Appends n cells from the columns of `rows` with the table's names. */
void kvd_table_row(kvd_table *t, const kvd_rows *rows, size_t row, size_t n);

const kvd_cell *kvd_table_cell(const kvd_table *t, size_t row, size_t col);

/* Removes every row that equals an earlier one. */
void kvd_table_unique(kvd_table *t);

int kvd_table_check(const kvd_table *t, kvd_err *err);
/* Writes tables/NAME.csv and, unless no_markdown, tables/NAME.md. */
int kvd_table_write(const kvd_table *t, const kvd_output *out, kvd_err *err);
/* Appends the table as HTML. A long table is folded. */
void kvd_table_html(const kvd_table *t, kvd_text *out);
void kvd_table_plain(const kvd_table *t, kvd_text *out);
void kvd_table_release(kvd_table *t);

/* a figure, drawn by a gnuplot script from CSV files */
typedef struct {
    char name[64];      /* name of figures/NAME.svg and figures/NAME.png */
    const char *script; /* name of the script, such as "spectra.gp" */
    /* assignments for gnuplot, without text of result files, which it would execute */
    char *settings;
    char *caption;
    int width, height; /* size of the SVG in its units; the PNG has twice as many pixels */
    bool folded;       /* true if shown only after a click on its title */
    kvd_text left_out;
    kvd_text why; /* reason why the figure is not drawn; empty if it is drawn */
} kvd_figure;

/* columns that one panel of a figure draws */
typedef struct {
    const char *title;
    /* column of the horizontal position, or NULL for even spacing, and of the vertical position */
    const char *x, *y;
    bool log_x, log_y;
    bool sparse; /* true if rows with an empty cell in column y are left out without a note */
    /* rows to draw: those with text `is` in column `where`, or all if NULL */
    const char *where, *is;
} kvd_panel;

typedef struct {
    const char *id, *title;
    kvd_text words; /* paragraphs as HTML */
    kvd_table **table;
    size_t n_tables;
    kvd_figure *figure;
    size_t n_figures;
    bool failed;    /* true if memory ran out or the user interrupted */
    kvd_table lost; /* takes the cells of tables that failed */
} kvd_section;

typedef struct {
    kvd_text title; /* plain text */
    kvd_section **section;
    size_t n;
    kvd_section lost; /* takes the content of sections that failed */
} kvd_report;

/* Return a new section or table, owned by the report. kvd_report_check reports failures. */
kvd_section *kvd_report_section(kvd_report *r, const char *id, const char *title);
kvd_table *kvd_section_table(kvd_section *s, const char *name, const char *title);
/* Returns a new table of a figure's data, only written as CSV. */
kvd_table *kvd_section_data(kvd_section *s, const char *name, const char *title);
/* Fails if memory ran out or the user has interrupted. */
int kvd_report_check(const kvd_report *r, kvd_err *err);

/* Adds a figure. `script` and `settings` must have no text of result files: gnuplot executes it. */
void kvd_section_figure(kvd_section *s, const char *name, const char *script, int width, int height,
                        const char *caption, const char *settings, ...) KVD_PRINTF(7, 8);

/* Notes how many points of the panels cannot be shown. If none can, the figure is not drawn. */
void kvd_section_panels(kvd_section *s, const kvd_table *t, const kvd_panel *panel,
                        size_t n_panels);

/* Shows only the title of the last figure until the reader clicks it. */
void kvd_section_fold(kvd_section *s);

/* Adds a sentence about data that the last figure leaves out. */
void kvd_section_left_out(kvd_section *s, const char *fmt, ...) KVD_PRINTF(2, 3);

/* States why the last figure is not drawn. */
void kvd_section_not_drawn(kvd_section *s, const char *fmt, ...) KVD_PRINTF(2, 3);

/* Returns the height in pixels of a figure with the texts of column `series` in its legend.
 * `height`: height with three lines of legend. `drawn`: column that is "yes" in rows to draw, or
 * SIZE_MAX. */
int kvd_height_with_key(int height, int width, int columns, const kvd_table *t, size_t series,
                        size_t drawn);

void kvd_report_release(kvd_report *r);

/* Writes index.html, with the SVG files of figures/ if `figures`. */
int kvd_page_write(const kvd_report *r, bool figures, const kvd_output *out, kvd_err *err);

/* Draws all figures as figures/NAME.svg and .png. *failed: number that failed; *why: reason. */
int kvd_plots_write(const kvd_report *r, const kvd_output *out, const char *scripts, bool quiet,
                    size_t *failed, kvd_err *why, kvd_err *err);

#endif
