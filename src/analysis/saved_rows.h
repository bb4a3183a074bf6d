/*
 * Rows of an unfinished kvdim-eval, OUT.h5.rows beside OUT.h5: replaced as a whole after every row, so that a run that is killed loses the
 * row at hand and no other. The run that goes on takes them in the order in which it would have made them.
 */
#ifndef KVD_ANALYSIS_SAVED_ROWS_H
#define KVD_ANALYSIS_SAVED_ROWS_H

#include "analysis/accuracy.h"
#include "common/run_key.h"

typedef struct {
    char *path; /* NULL: nothing is saved */
    kvd_run_key key;
    kvd_accuracy from; /* what an earlier run left */
    size_t next;       /* the first of them that was not taken */
} kvd_saved_rows;

/*
 * Reads OUT.rows when it is there. Fails when its key is another one ("was X, is now Y") or when it is damaged. like: an initialised
 * kvd_accuracy of this run. s->key stands already.
 */
int kvd_saved_rows_open(kvd_saved_rows *s, const char *output, const kvd_accuracy *like, kvd_err *err);
void kvd_saved_rows_release(kvd_saved_rows *s);

/* The next row, when there is one, becomes the last one of *to, and *taken says so. Fails when it is of another point. */
int kvd_saved_rows_take(kvd_saved_rows *s, const char *purpose, const kvd_point_source *source,
                        const kvd_point *point, kvd_accuracy *to, bool *taken, kvd_err *err);

/* Replaces OUT.rows by the rows that are there now; nothing while saved rows are still being taken. */
int kvd_saved_rows_save(const kvd_saved_rows *s, const kvd_run *run, const kvd_accuracy *rows, kvd_err *err);
/* OUT.h5 is complete: OUT.rows goes. */
int kvd_saved_rows_remove(const kvd_saved_rows *s, kvd_err *err);

#endif
