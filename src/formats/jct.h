/* What rows of kvdim/jct files (serving/jct_file.h) say together; for the program that writes them and for the report. */
#ifndef KVD_FORMATS_JCT_H
#define KVD_FORMATS_JCT_H

#include "formats/rows.h"

/* Whether two job rows differ in nothing but method and the lengths named: "input", "output", "" for none. */
bool kvd_jct_comparable(const kvd_rows *rows, size_t a, size_t b, const char *length);

/* The job row of method none that is comparable to this one, lengths included; SIZE_MAX without one. */
size_t kvd_jct_uncompressed(const kvd_rows *rows, size_t row);

/*
 * The least length from which on a method is faster than `none`, among job rows that differ in nothing but that length (input, or
 * output): between two measured lengths where its JCT crosses none's, linear in both; the least measured one when it is faster there already.
 * NaN: nowhere in the sweep, or no row of none to compare with.
 */
double kvd_jct_break_even(const kvd_rows *rows, size_t row, bool output);

/* How many lengths its method was run at, everything else being the same. */
size_t kvd_jct_lengths(const kvd_rows *rows, size_t row, bool output);

/* Whether it is the first job row of its method, batch and other length: one line or table row each. */
bool kvd_jct_first_of_lengths(const kvd_rows *rows, size_t row, bool output);

#endif
