/* Declares the benchmark scores that the leaderboard compares, and the parts that its tables and
 * figures share. */
#ifndef KVD_REPORT_STUDIES_LEADERBOARD_H
#define KVD_REPORT_STUDIES_LEADERBOARD_H

#include "report/report.h"
#include "report/results.h"
#include "report/rows.h"

/* a method with its parameters, and its results from one file */
typedef struct {
    const kvd_accuracy_entry *all; /* row with the mean score over all tasks, or of the only task */
    size_t set; /* number of its set of tasks; settings are compared only within a set */
    const kvd_accuracy_entry *task[]; /* [n_tasks] row of each task; NULL if the task was not run */
} kvd_standing;

typedef struct {
    const char **task;
    size_t n_tasks;
    kvd_standing **point;
    size_t n;
    size_t n_sets;      /* number of different sets of benchmark tasks, counted for each model */
    size_t n_task_sets; /* number of different sets of benchmark tasks */
    bool models;        /* true if the results are of more than one model */
    double link;        /* bytes per second of the modelled link; NaN without --link-bandwidth */
} kvd_leaderboard;

/* Returns the mean score over the tasks, from 0 to 1. */
double kvd_standing_score(const kvd_standing *x);
/* Returns the bytes that a step reads, divided by those of an uncompressed 16-bit cache. */
double kvd_standing_read(const kvd_standing *x);
/* Returns the name of the compression method in tables and figures of one model. */
const char *kvd_standing_name(const kvd_standing *x);

/* note below a table: explains the columns of stored and of read cache bytes */
extern const char kvd_leaderboard_bytes_note[];
void kvd_leaderboard_byte_columns(kvd_table *t, int digits);
/* Appends a cell with the method's parameters. */
void kvd_leaderboard_put_settings(kvd_table *t, const kvd_standing *x);
/* Appends three cells: a score in percent and the ends of its 95 % interval. Writes rounding errors
 * next to 0 as 0. */
void kvd_leaderboard_put_percent(kvd_table *t, const kvd_standing *x, const char *column);

/* Adds a table. Its title also names the model if the report has several models, and the tasks if
 * it has several sets of tasks. */
kvd_table *kvd_leaderboard_table(const kvd_leaderboard *b, const char *name, const char *title,
                                 kvd_section *s);
/* Adds columns to a figure's table: score, ends of the score's interval, Pareto front and, if there
 * are several models, model. fronts: heading of the column for the Pareto front. */
void kvd_leaderboard_score_columns(const kvd_leaderboard *b, kvd_table *t, const char *fronts);
void kvd_leaderboard_put_score(const kvd_leaderboard *b, kvd_table *t, const kvd_standing *x,
                               int fronts);
/* Adds a figure of the scores in table `t`. The figure's text is `title`, to which names of the
 * model and the tasks may be added, and then `caption`.
 *
 * steps: true if the scores are drawn against times of decode steps */
void kvd_leaderboard_figure(const kvd_leaderboard *b, const kvd_table *t, const char *name,
                            const char *title, const char *caption, bool steps,
                            const kvd_panel *panel, size_t n_panels, kvd_section *s);

/* Adds a figure and a table of benchmark scores against decode-step times, if at least two methods
 * have both. */
int kvd_leaderboard_steps(const kvd_leaderboard *b, const kvd_results *r, kvd_section *s,
                          kvd_err *err);

#endif
