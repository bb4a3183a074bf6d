/* Builds a report from sections, which have paragraphs, tables and figures. */
#ifndef KVD_REPORT_REPORT_H
#define KVD_REPORT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/files/output_folder.h"
#include "common/stats.h"
#include "formats/rows.h"

/* text buffer that grows; if memory runs out, it keeps the earlier text and kvd_text_check fails */
typedef struct {
    char *s; /* zero-terminated; NULL while empty */
    size_t len, size;
    bool failed; /* true if memory ran out; s keeps the earlier text */
} kvd_text;

void kvd_text_add(kvd_text *t, const char *fmt, ...) KVD_PRINTF(2, 3);
void kvd_text_raw(kvd_text *t, const char *s);
/* Appends s to the text, with the characters & < > " ' escaped for HTML. */
void kvd_text_html(kvd_text *t, const char *s);
/* Appends item number `i` of a list of `n` items. Names only the first `most` items and counts the
 * others, as in "a, b and 3 more". */
void kvd_text_item(kvd_text *t, size_t i, size_t n, size_t most, const char *item);

/* Returns the text of the buffer; never NULL. */
const char *kvd_text_get(const kvd_text *t);
int kvd_text_check(const kvd_text *t, kvd_err *err);
void kvd_text_release(kvd_text *t);

/* ---- Tables, written as CSV (full precision), Markdown and HTML (rounded, with units) ---- */

typedef enum { KVD_CELL_TEXT, KVD_CELL_INT, KVD_CELL_REAL } kvd_cell_kind;

typedef struct {
    char *name; /* heading in CSV files */
    /* column heading with unit, for Markdown and HTML */
    char *heading;
    kvd_cell_kind kind;
    int digits; /* significant digits in Markdown and HTML; 0 means no decimals */
    /* cell value at the start of the colour scale for cell backgrounds; if shade_lo >= shade_hi,
     * cells have no background colour */
    double shade_lo;
    double shade_hi;
    /* true if each cell is shown as "value [from, to]", with `from` and `to` taken from the next
     * two columns */
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
/* Adds a column to a table that has no rows yet. `digits`: number of significant digits to show. */
void kvd_table_add_column(kvd_table *t, kvd_cell_kind kind, int digits, const char *name,
                          const char *heading);
/* Gives each cell of the newest column a background colour by its value, on a colour scale from the
 * value `lo` to the value `hi`. */
void kvd_table_shade(kvd_table *t, double lo, double hi);
/* Adds three columns of real numbers: NAME has a value, NAME_lo and NAME_hi have the ends of its 95
 * % interval. */
void kvd_table_add_interval(kvd_table *t, int digits, const char *name, const char *heading);

/* Appends a cell to the current row. After a row's last cell, the next cell begins a new row. */
void kvd_table_text(kvd_table *t, const char *value);
/* Appends a cell with a text. Replaces characters that gnuplot would misread. */
void kvd_table_series(kvd_table *t, const char *value);
void kvd_table_int(kvd_table *t, int64_t value);
void kvd_table_no_int(kvd_table *t); /* appends an empty cell */
/* Appends a cell with an integer. `value` is the integer as a double; the cell is empty for NaN and
 * for numbers that are too large. */
void kvd_table_count(kvd_table *t, double value);
void kvd_table_real(kvd_table *t, double value);
/* Appends a cell for each real number in the arguments after t. */
#define kvd_table_reals(t, ...)                                                                    \
    kvd_table_real_cells(t, (const double[]){__VA_ARGS__},                                         \
                         sizeof(const double[]){__VA_ARGS__} / sizeof(double))
void kvd_table_real_cells(kvd_table *t, const double *value, size_t n);
/* Appends three cells: a value and the two ends of its interval. */
void kvd_table_bounded(kvd_table *t, kvd_interval x);
/* Appends n cells with values from row `row` of `rows`. Columns of the table and of `rows` are
 * matched by name. */
void kvd_table_row(kvd_table *t, const kvd_rows *rows, size_t row, size_t n);

const kvd_cell *kvd_table_cell(const kvd_table *t, size_t row, size_t col);

/* Removes duplicate rows of the table. */
void kvd_table_unique(kvd_table *t);

int kvd_table_check(const kvd_table *t, kvd_err *err);
/* Writes the table to tables/NAME.csv and, unless t->no_markdown is true, to tables/NAME.md. */
int kvd_table_write(const kvd_table *t, const kvd_output *out, kvd_err *err);
/* Appends the table as HTML. A long table is shown only after a click on its title. */
void kvd_table_html(const kvd_table *t, kvd_text *out);
void kvd_table_plain(const kvd_table *t, kvd_text *out);
void kvd_table_release(kvd_table *t);

/* a figure of the report, which a gnuplot script draws from CSV files */
typedef struct {
    char name[64];      /* name of figures/NAME.svg and figures/NAME.png */
    const char *script; /* name of the script, such as "spectra.gp" */
    /* assignments to variables of gnuplot; must not contain text from result files, because gnuplot
     * would execute it */
    char *settings;
    char *caption;
    int width, height; /* size of the SVG in its units; the PNG has twice as many pixels */
    bool folded;       /* true if shown only after a click on its title */
    kvd_text left_out;
    kvd_text why; /* reason why the figure is not drawn; empty if it is drawn */
    /* reason why the figure is drawn only as SVG; empty if it is also drawn as PNG */
    kvd_text no_png;
} kvd_figure;

/* columns of a table that one panel of a figure draws */
typedef struct {
    const char *title;
    /* table columns for the x axis and the y axis; x may be NULL, for evenly spaced points */
    const char *x, *y;
    bool log_x, log_y;
    bool sparse; /* true if rows with an empty cell in column y are left out without a note */
    /* If `where` is not NULL, only rows whose cell in column `where` equals `is` are drawn. */
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

/* Adds a section to the report and returns it. The report frees it. If memory ran out,
 * kvd_report_check fails later. */
kvd_section *kvd_report_section(kvd_report *r, const char *id, const char *title);
kvd_table *kvd_section_table(kvd_section *s, const char *name, const char *title);
/* Adds a table with the data of a figure and returns it. The table is written to a CSV file but not
 * shown in the report. */
kvd_table *kvd_section_data(kvd_section *s, const char *name, const char *title);
/* Fails if memory ran out while the report was built, or if the user interrupted the program. */
int kvd_report_check(const kvd_report *r, kvd_err *err);

/* Adds a figure. gnuplot executes `script` and `settings`, so they must not contain text from
 * result files. */
void kvd_section_figure(kvd_section *s, const char *name, const char *script, int width, int height,
                        const char *caption, const char *settings, ...) KVD_PRINTF(7, 8);

/* Adds a note below the section's last figure: how many rows of table `t` each panel leaves out. If
 * all panels are empty, the figure is not drawn. */
void kvd_section_panels(kvd_section *s, const kvd_table *t, const kvd_panel *panel,
                        size_t n_panels);

/* Folds the section's last figure: the page shows only its title until the reader clicks it. */
void kvd_section_fold(kvd_section *s);

/* Adds a sentence about data that the section's last figure leaves out. */
void kvd_section_left_out(kvd_section *s, const char *fmt, ...) KVD_PRINTF(2, 3);

/* Marks the section's last figure as not drawn and states the reason. */
void kvd_section_not_drawn(kvd_section *s, const char *fmt, ...) KVD_PRINTF(2, 3);

/* Returns the height of a figure in pixels: `height` plus room for a long legend.
 *
 * series: column whose distinct texts the legend lists
 * drawn: column with "yes" in the rows to draw; SIZE_MAX: all rows are drawn */
int kvd_height_with_key(int height, int width, int columns, const kvd_table *t, size_t series,
                        size_t drawn);

void kvd_report_release(kvd_report *r);

/* Writes the report as index.html. If `figures` is true, embeds the SVG files of the folder
 * figures/. */
int kvd_page_write(const kvd_report *r, bool figures, const kvd_output *out, kvd_err *err);

/* Draws all figures as figures/NAME.svg and figures/NAME.png. Draws no PNG of a figure with a
 * character that no installed font has. *failed: number of figures that gnuplot could not draw;
 * *why: its last error message. */
int kvd_plots_write(const kvd_report *r, const kvd_output *out, const char *scripts, bool quiet,
                    size_t *failed, kvd_err *why, kvd_err *err);

#endif
