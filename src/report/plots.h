/* Figures through gnuplot, which runs as a child process with scripts of plots/. */
#ifndef KVD_REPORT_PLOTS_H
#define KVD_REPORT_PLOTS_H

#include "report/report.h"

/*
 * Writes DIR/figures/NAME.svg and NAME.png of every figure. DIR/tables/ must have been written: gnuplot
 * runs in DIR and reads tables/NAME.csv. `scripts` is the folder that holds common.gp and the scripts.
 *
 * Returns -1 when gnuplot is not installed ("gnuplot is not installed ..."), and when a script fails: *err
 * then holds the last line of what gnuplot wrote to stderr, and *said all of it (to be released).
 */
int kvd_plots_write(const kvd_report *r, const char *dir, const char *scripts, kvd_text *said, kvd_err *err);

#endif
