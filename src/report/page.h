/* The report as one HTML page: no script, nothing loaded from elsewhere, light or dark as the reader prefers. */
#ifndef KVD_REPORT_PAGE_H
#define KVD_REPORT_PAGE_H

#include <stdbool.h>

#include "report/report.h"

/*
 * Writes DIR/index.html. `figures`: the SVG files of DIR/figures are put into the page; without it, figures
 * are named as not drawn. title and headline: plain text, and a table shown first (may be NULL).
 */
int kvd_page_write(const kvd_report *r, const char *title, const kvd_table *headline, bool figures,
                   const char *dir, kvd_err *err);

#endif
